"""StdOutWriteAheadSink: the smallest write-ahead sink, to look at a pipeline's output."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import orjson
import pyarrow as pa

from connectors.wal.write_ahead_sink import WriteAheadSink


@dataclasses.dataclass(frozen=True, kw_only=True)
class StdOutWriteAheadSink(WriteAheadSink):
    """Prints each record of a completed checkpoint on the driver's stdout, as a line of JSON."""

    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,  # noqa: ARG002
        subtask: int,  # noqa: ARG002
        timestamp_ms: int,  # noqa: ARG002
    ) -> bool:
        """See `WriteAheadSink.send_values`."""
        for batch in records:
            for row in batch.to_pylist():
                sys.stdout.write(orjson.dumps(row, default=_as_text).decode() + "\n")
        sys.stdout.flush()
        return True


def _as_text(value: object) -> str:
    """Return bytes as text, which they usually are, and other values as Python's text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
