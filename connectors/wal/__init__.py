"""Write-ahead sinks: Flink's `GenericWriteAheadSink` and its `CheckpointCommitter`s.

For a target without transactions: the records of a checkpoint wait in a durable buffer, and are
sent after the checkpoint's decision. docs/write_ahead_sink.md says what this promises.
"""

from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.file_committer import FileCheckpointCommitter
from connectors.wal.sqlite_committer import SQLiteCheckpointCommitter
from connectors.wal.sqlite_sink import SQLiteWriteAheadSink
from connectors.wal.stdout_sink import StdOutWriteAheadSink
from connectors.wal.write_ahead_sink import WriteAheadSink

__all__ = [
    "CheckpointCommitter",
    "FileCheckpointCommitter",
    "SQLiteCheckpointCommitter",
    "SQLiteWriteAheadSink",
    "StdOutWriteAheadSink",
    "WriteAheadSink",
]
