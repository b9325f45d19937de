"""The jobs that are measured: one process each, the same work in each."""
