"""Measurements of sparkonce, and of others beside it."""
