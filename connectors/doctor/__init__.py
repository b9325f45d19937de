"""Checks before a start: what a cluster must offer before exactly-once can be promised on it."""
