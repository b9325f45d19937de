"""Parquet: gathers batches into row groups of a size that suits readers."""

from __future__ import annotations

from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

#: A row group ends at the first limit that is reached. Bytes in memory, before encoding.
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 1 << 20


class ParquetRows:
    """Writes batches of one schema to a file; the caller keeps the file.

    Args:
        file: a file open for writing.
        compression: ``snappy``, ``zstd``, ``gzip`` or ``none``.
    """

    def __init__(self, file: BinaryIO, compression: str) -> None:
        self._file = file
        self._compression = compression
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch; write a row group as soon as there are enough rows.

        Raises:
            pa.ArrowException: the batch has another schema than the first one.
        """
        if self._writer is None:
            schema = batch.schema.remove_metadata()
            self._writer = pq.ParquetWriter(self._file, schema, compression=self._compression)
        self._batches.append(batch.cast(self._writer.schema))
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= GROUP_BYTES or self._rows >= GROUP_ROWS:
            self._end_group()

    def close(self) -> None:
        """Write the remaining rows, and the footer."""
        self._end_group()
        if self._writer is not None:
            self._writer.close()

    def _end_group(self) -> None:
        if self._writer is None or not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._bytes, self._rows = [], 0, 0
        self._writer.write_table(table, row_group_size=len(table))


def problem_of(field: pa.Field) -> str:
    """Return why a column cannot be written as Parquet, "" if it can: it asks the writer."""
    try:
        pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, ValueError) as error:
        return str(error)
    return ""
