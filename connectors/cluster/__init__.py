"""An embedded real Kafka: jars, broker processes, and their keeper."""

from connectors.cluster.local_cluster import LocalCluster

__all__ = ["LocalCluster"]
