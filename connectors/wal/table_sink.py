"""TableWriteAheadSink: the common part of sinks with rows and marks in one database."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.write_ahead_sink import WriteAheadSink
from transactions.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableWriteAheadSink(WriteAheadSink):
    """Writes the rows into a table of the committer's database; a subclass names the database.

    Attributes:
        table: the table of the rows; it exists, and has the frame's columns by name.
        database: the database with its article, for the text of an error.
        committer_kind: the committer class whose `transaction` encloses rows and mark.

    Raises:
        ConfigurationError: an option is wrong.
    """

    database: ClassVar[str]
    committer_kind: ClassVar[type[CheckpointCommitter]]

    table: str

    def __post_init__(self) -> None:
        """See `WriteAheadSink.__post_init__`."""
        super().__post_init__()
        if not isinstance(self.committer, self.committer_kind):
            raise ConfigurationError(
                f"The marks of {self.database} sink must be in the database of its rows.",
                where=f"sink {self.name!r}",
                cause="in another database they cannot share a transaction with the rows",
                option=f"committer={self.committer.describe()}",
            )

    def identity(self) -> dict[str, str]:
        """See `WriteAheadSink.identity`."""
        return {**super().identity(), "table": self.table}
