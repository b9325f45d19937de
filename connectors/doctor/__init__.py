"""Checks before a start: what a cluster must offer before we can promise exactly-once on it."""
