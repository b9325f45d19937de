"""The work of the measured job: it is very cheap, and the checker can see it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from connectors.bench.shape import DONE

#: The same work in Spark's SQL, for micro-batches and for Spark's own job.
VALUE_SQL = "cast(concat(substring(value, 1, length(value) - 1), X'54') as binary)"


class ReplaceLastByte:
    """Writes a T over the last byte of every value of a batch, in one step for the whole batch.

    Each task has its own instance. The first one that sees a record writes the time into a file,
    for the driver. On a cluster the driver cannot read the file; it then reports the time at which
    the stage was ready.
    """

    def __init__(self, first_record: str) -> None:
        self._first_record: str | None = first_record

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changed batch."""
        if self._first_record is not None:
            with contextlib.suppress(OSError), Path(self._first_record).open("x") as file:
                file.write(str(time.time_ns()))
            self._first_record = None
        value = batch.column("value")
        rows = slice(value.offset, value.offset + len(value) + 1)
        ends = np.frombuffer(value.buffers()[1], np.int32)[rows]
        data = np.frombuffer(value.buffers()[2], np.uint8).copy()
        data[ends[1:] - 1] = DONE[0]
        buffers = [value.buffers()[0], value.buffers()[1], pa.py_buffer(data)]
        changed = pa.Array.from_buffers(pa.binary(), len(value), buffers, offset=value.offset)
        return pa.RecordBatch.from_arrays([batch.column("key"), changed], names=["key", "value"])
