"""WriteAheadSink: records wait in a durable buffer until their checkpoint is decided.

It is Flink's `GenericWriteAheadSink`, as a user of the two-phase contract. Phase 1, in a task:
records go to a buffer, which is sealed and synced. Phase 2, on the driver, for each buffer in
order, unless its mark exists: `send_values`, then the mark (`CheckpointCommitter`), then removal.

It promises at-least-once, with two windows for duplicates, both of them crashes:

* inside `send_values`: the part of this buffer that the target took is sent again;
* between `send_values` and the mark: all of this buffer is sent again.

If a fenced older driver still sends, that is such a crash for the driver that took over. If target
and marks share a transaction (`CheckpointCommitter.transaction`), neither window remains:
exactly-once. See `connectors.wal.sqlite_sink`, and docs/write_ahead_sink.md.

Three faults of Flink's class are not here. There, a refused send stops the order only by an
exception, so a later checkpoint can overtake; exceptions are logged and dropped; and marks have a
random name, so a job that is submitted again does not find them.
"""

from __future__ import annotations

import abc
import dataclasses
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.options.option import NAME
from connectors.records.row_fingerprint import check_comparable
from connectors.wal.buffer_folder import START_LENGTH
from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.folder import absolute_folder
from connectors.wal.write_ahead_committer import WriteAheadCommitter
from connectors.wal.write_ahead_writer import WriteAheadWriter
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.sink import OpenSink, SinkContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteAheadSink(abc.ABC):
    """The base of a user's sink: subclass it, implement `send_values`, and write a frame to it.

    It stays on the driver; a `WriteAheadWriter` goes to the tasks. A restart uses the same object.
    So what a method keeps in it (a `functools.cached_property` with a connection) lives until
    `close` removes it. A subclass with fields of its own is also a ``dataclass(frozen=True,
    kw_only=True)``.

    Attributes:
        name: unique in the driver and the same at every restart; also the committer's operator.
        buffer: folder that every worker and the driver see: a local one in local mode, one on a
            shared file system on a cluster. It outlives driver and workers.
        committer: stores the marks.

    Raises:
        ConfigurationError: an option is wrong.
    """

    name: str
    buffer: str | Path
    committer: CheckpointCommitter

    def __post_init__(self) -> None:
        """Check the options, and make the folder absolute: workers run in another folder."""
        if not NAME.fullmatch(self.name):
            raise ConfigurationError(
                "A sink's name has letters, digits, _ and -.",
                where=type(self).__name__,
                cause="it names a folder of buffers and the operator of the marks",
                option=f"name={self.name}",
            )
        object.__setattr__(self, "buffer", absolute_folder(self.buffer, option="buffer"))

    def __getstate__(self) -> dict[str, Any]:
        """Return the options; live objects stay in this process."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    @abc.abstractmethod
    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,
        subtask: int,
        timestamp_ms: int,
    ) -> bool:
        """Send the records of one subtask and checkpoint to the target. On the driver, after the
        decision; one call at a time, so subtasks of a checkpoint one after the other.

        It may be called again with the same records (see the two windows of this module), and then
        with the same `checkpoint_id`, `subtask` and `committer.job_id`. A target can use these to
        drop what it has. (Without the job id the numbers repeat after a restored savepoint.)

        Args:
            records: in the order of their writing; read from the buffer as they are taken, one
                batch in memory at a time. Its bytes are verified already.
            checkpoint_id: N.
            subtask: the subtask that wrote them.
            timestamp_ms: wall clock when the buffer was sealed, milliseconds since 1970 UTC.

        Returns:
            True: the target has all of them, durably. False: not now; it is called again until the
            checkpoint's timeout, and then after a restart.

        Raises:
            Exception: has the effect of False, and is logged. But a permanent `SparkOnceError` ends
                the driver.
        """

    def check_columns(self, schema: pa.Schema) -> None:
        """Check the columns of the frame, at start, before any data moves. On the driver.

        Raises:
            ConfigurationError: the target cannot take them; by default: rows cannot be compared.
        """
        check_comparable(schema, f"sink {self.name!r}")

    @property
    def folder_on_disk(self) -> Path:
        """See `connectors.options.sink.folder_on_disk`; the records wait in the buffer."""
        return Path(self.buffer)

    def identity(self) -> dict[str, str]:
        """Return what must be the same at every restart on one checkpoint.

        Without its marks, records would be sent again. The buffer may move, with its files.
        """
        return {"kind": "write-ahead", "committer": self.committer.describe()}

    def open(self, context: SinkContext) -> OpenSink:  # noqa: ARG002 - a subclass checks its target
        """See `Sink.open`: it opens the storage of the marks.

        Raises:
            ConfigurationError: the storage of the marks cannot be created or opened.
        """
        try:
            if "_bound" not in self.__dict__:
                self.committer.bind(self.name)
                object.__setattr__(self, "_bound", True)
            self.committer.open()
        except SparkOnceError:
            raise
        except Exception as error:
            raise ConfigurationError(
                "The marks of a write-ahead sink cannot be opened.",
                where=f"sink {self.name!r}, {self.committer.describe()}: {error}",
                cause="the folder or database is missing, read-only or not reachable",
                option=f"committer={self.committer.describe()}",
            ) from error
        start, buffer = secrets.token_hex(START_LENGTH // 2), Path(self.buffer)
        committer = WriteAheadCommitter(
            name=self.name,
            buffer=buffer,
            marks=self.committer,
            send_values=self.send_values,
            release=self.close,
        )
        return OpenSink(WriteAheadWriter(name=self.name, buffer=buffer, start=start), committer)

    def close(self) -> None:
        """Close the storage of the marks; a second call is harmless. On the driver, at the end of
        each run. A subclass whose `send_values` holds more closes it and calls this.
        """
        self.committer.close()
