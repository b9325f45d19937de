"""A pipeline's life on the driver: a run, its recovery, restarts, savepoints and metrics."""
