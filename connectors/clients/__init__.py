"""Kafka's clients: their settings, errors, logs and versions, and the ids that we give them."""
