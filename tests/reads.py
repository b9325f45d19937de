"""What a reader of the continuous mode brings, for tests whose records are values alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from connectors.kafka.source.offsets import split_key
from connectors.kafka.source.partition_reader import Read


def read_of(positions: Mapping[str, int], values: Mapping[str, Sequence[bytes | str]]) -> Read:
    """Return a read of these values, by partition; a task gets their places beside them."""
    rows = [(split_key(name), value) for name, found in values.items() for value in found]
    if not rows:
        return Read(positions=positions, batch=None)
    columns = {
        "value": pa.array([value for _, value in rows]),
        "topic": pa.array([topic for (topic, _), _ in rows]),
        "partition": pa.array([number for (_, number), _ in rows], pa.int32()),
    }
    return Read(positions=positions, batch=pa.record_batch(columns))
