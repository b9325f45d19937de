"""An embedded real Kafka: jars, broker processes, and their keeper."""
