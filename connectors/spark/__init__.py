"""Placeholder, replaced by the public names."""
