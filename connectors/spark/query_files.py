"""Spark's part of a driver's checkpoint: what our side reads of it, and what it must sync.

Spark itself reads and writes these files through Hadoop, wherever they lie. Only the driver of
micro-batches uses this: a query of the user's own has a folder (`connectors.spark.writer_folder`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from connectors.spark.checkpoint_files import (
    SPARK,
    BatchTexts,
    batches_in,
    bring_back,
    files_of,
    finished_checkpoint,
    is_finished,
    planned_end,
    replace,
)
from connectors.spark.durable_files import DurableFiles
from connectors.spark.failures import reason
from connectors.spark.hadoop_files import HadoopFiles
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import DecisionLog
from transactions.errors import SparkOnceError
from transactions.log_state import LogState

logger = logging.getLogger(__name__)


class RunFiles(Protocol):
    """Spark's files in one run: what a replay reads must be durable before its decision."""

    def begin(self) -> Callable[[], None]:
        """Begin to make durable what Spark has written so far.

        Returns:
            A function that waits until all of it is. It raises a `SparkOnceError` if that is not
            known.
        """

    def make_state_durable(self) -> None:
        """Make durable what a batch has written, if the query keeps state. Called before Spark
        writes commits/N, which names the state for the next batch.

        Raises:
            SparkOnceError: it is not known whether all of it is durable.
        """

    def has_state(self) -> bool:
        """Return whether the query keeps state of operators."""


class QueryFiles(BatchTexts, Protocol):
    """Spark's part of one driver's checkpoint, from start to end. On the driver."""

    @property
    def address(self) -> str:
        """What Spark is told as `checkpointLocation`."""

    @property
    def notes(self) -> Path:
        """The folder of this machine in which the driver leaves notes for the source's process:
        where it begins, and how large a batch is. They are no state.
        """

    def finished(self) -> int:
        """Return the newest batch that Spark has recorded as done, -1 before the first."""

    def planned_end(self) -> dict[str, int]:
        """Return where batch 0 ends, see `checkpoint_files.planned_end`."""

    def has_state(self) -> bool:
        """Return whether the query keeps state of operators."""

    def has_finished(self, batch_id: int) -> bool:
        """Return whether Spark goes on behind a batch, and does not run it again."""

    def has_any(self) -> bool:
        """Return whether there are plans of batches."""

    def begin_run(self, log: LogState) -> RunFiles:
        """Return the files of a run that begins after the log's last decision. What a power cut may
        have left of later batches is removed, and what an older driver has replaced is brought
        back: Spark looks for a file and then renames its own to that name, which in a folder and in
        an object store replaces what was written between the two. No run can prevent that.
        """

    def to_copy(self, batch_id: int) -> Mapping[str, str]:
        """Return what a savepoint of a finished batch copies, by path below the checkpoint."""


def files_at(spark: SparkSession, location: CheckpointLocation) -> QueryFiles:
    """Return Spark's part of a checkpoint. It makes and asks nothing yet."""
    if location.folder is None:
        return HadoopFiles(spark, location)
    return FolderFiles(location.folder)


def is_written_down(files: QueryFiles, log: DecisionLog | None) -> bool:
    """Return whether Spark has recorded the last decided batch as done; False while the store does
    not say it. A stop and a savepoint ask for it, and neither may end a run that works.
    """
    last = None if log is None else log.state.decision
    try:
        return last is None or files.finished() >= last.checkpoint_id
    except SparkOnceError as error:
        logger.warning("whether Spark has finished its last batch is not known: %s", reason(error))
        return False


class FolderFiles:
    """Spark's part in a folder of a file system; see `QueryFiles`.

    Args:
        checkpoint: the driver's folder.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.notes = checkpoint
        self._spark = checkpoint / SPARK
        self.address = str(self._spark)

    def finished(self) -> int:
        """See `QueryFiles.finished`."""
        return finished_checkpoint(self._spark)

    def planned_end(self) -> dict[str, int]:
        """See `QueryFiles.planned_end`."""
        return planned_end(self._spark)

    def has_state(self) -> bool:
        """See `QueryFiles.has_state`."""
        return (self._spark / "state").exists()

    def has_any(self) -> bool:
        """See `QueryFiles.has_any`."""
        return bool(batches_in(self._spark / "offsets"))

    def has_finished(self, batch_id: int) -> bool:
        """See `QueryFiles.has_finished`."""
        return is_finished(self._spark, batch_id)

    def read(self, name: str) -> str | None:
        """See `BatchTexts.read`."""
        path = self._spark / name
        return path.read_text("utf-8") if path.exists() else None

    def replace(self, name: str, text: str) -> None:
        """See `BatchTexts.replace`."""
        replace(self._spark / name, text)

    def begin_run(self, log: LogState) -> DurableFiles:
        """See `QueryFiles.begin_run`."""
        files = DurableFiles.of_run(self._spark, log.decision)
        if log.decided_here is not None:
            bring_back(self, log.decided_here)
        return files

    def to_copy(self, batch_id: int) -> dict[str, str]:
        """See `QueryFiles.to_copy`."""
        return files_of(self.notes, batch_id)
