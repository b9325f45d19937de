"""The transactional sink: producers, their pool, and the driver's half."""
