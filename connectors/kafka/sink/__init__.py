"""The transactional sink: producers, their pool, and what the driver asks first."""
