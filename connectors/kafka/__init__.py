"""Kafka: source, transactional sink, the coordinator's wire, and an embedded real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.kafka.cluster.local_cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> Any:
    """Import on first use: a worker that reads records does not load the broker's machinery."""
    if name == "LocalCluster":
        from connectors.kafka.cluster.local_cluster import LocalCluster  # noqa: PLC0415

        return LocalCluster
    raise AttributeError(name)
