"""The workload of this repository's own measurements: 2 partitions, values of 100 bytes."""

from __future__ import annotations

from typing import Any

from connectors.bench import committed_reader
from connectors.bench.measuring_producer import MeasuringProducer
from connectors.bench.shape import Shape

PARTITIONS = 2
VALUE_BYTES = 100
SHAPE = Shape(PARTITIONS, VALUE_BYTES)


def load(bootstrap: str, topic: str, records: int) -> float:
    """Produce ids 0 to `records`; return records per second."""
    kafka = {"bootstrap.servers": bootstrap}
    with MeasuringProducer(kafka, topic, SHAPE, linger_ms=20) as producer:
        return producer.load(records, lambda _done: None)


def read_committed(bootstrap: str, topic: str) -> Any:
    """Return a consumer of all partitions, from their beginning."""
    kafka = {"bootstrap.servers": bootstrap}
    return committed_reader.committed_reader(kafka, topic, PARTITIONS)
