"""Kafka as a source and as a sink: `source` reads ranges, `sink` writes transactions."""
