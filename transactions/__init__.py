"""Two-phase commit over checkpoints: contracts and protocol, with neither Spark nor Kafka in it.

Read in this order: `list_state`, `committable`, `two_phase` (the table), `sink` (the contract),
`log_backend`, `log_entries`, `log_state`, `decision_log`, `recovery`, `sweeper`, `coordinator`.
"""

from transactions.committable import Committable, Outcome
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import SparkOnceError
from transactions.list_state import ListState, PartitionOffset
from transactions.log_backend import LocalFileBackend, LogBackend, MemoryBackend
from transactions.sink import Attempt, Committer, OpenSink, Owner, Sink, SinkContext, Writer

__all__ = [
    "Attempt",
    "Committable",
    "Committer",
    "DecisionLog",
    "ListState",
    "LocalFileBackend",
    "LogBackend",
    "MemoryBackend",
    "OpenSink",
    "Outcome",
    "Owner",
    "PartitionOffset",
    "Sink",
    "SinkContext",
    "SparkOnceError",
    "Writer",
    "read_log",
]
