"""CheckpointCommitter: a write-ahead sink's memory of what it has sent to its target.

Such a target cannot say whether it has a checkpoint. So the sink sets a mark after sending one, and
looks for the mark before it sends: like Flink's class of the same name.

It stores, per job, operator and subtask, the highest checkpoint id that was sent. That is enough
only if the ids of one such key ascend, and they do because

* the job id (``<application>.<log id>.<run epoch>.<random>``) names the *start* that wrote the
  records, as in their transaction's id, not the run that asks. Within one start checkpoint ids
  ascend, and the next checkpoint is not decided before the last one is settled;
* ids go back if an older copy of the folder is restored (and run epochs with them), and begin at 0
  again in a new folder. Both are another start, so another key: an old mark never hides new
  records. With Flink's key, operator and id alone, checkpoint 4 after the restore would count as
  sent;
* the subtask is the one that wrote the records, as in the committable. After a rescale another
  subtask, or as here the driver, asks under that number; new subtasks have new runs.

Flink's operator id is a fresh UUID for every construction of the sink. So a job that is submitted
again does not find its own marks and sends twice. Here it is the sink's name.

Marks are never removed: there is one small row per subtask and run that wrote something. Marks of
runs that the last decision does not name may be deleted by hand.
"""

from __future__ import annotations

import abc
import contextlib
from typing import Final

from transactions.errors import ConfigurationError

#: The job of a mark that only proves that the storage can keep marks.
_PROBE: Final = "probe"


class CheckpointCommitter(abc.ABC):
    """Storage for marks, outside the checkpoint. All methods run on the driver.

    The user makes a committer as plain data; it holds nothing live before `open`. Every backend
    passes the suite in tests/unit/test_checkpoint_committer.py.
    """

    job_id: str = ""
    operator_id: str = ""

    def set_job_id(self, job_id: str) -> None:
        """Set the owner of the marks for the next calls; called again whenever it changes.

        Args:
            job_id: ``<application>.<log id>.<run epoch>.<random>`` of the start that wrote them.
        """
        self.job_id = job_id

    def set_operator_id(self, operator_id: str) -> None:
        """Set the sink of the marks, once, before `create_resource`.

        Args:
            operator_id: the sink's name, the same after every restart and resubmission.
        """
        self.operator_id = operator_id

    def bind(self, operator_id: str) -> None:
        """Become the committer of one sink, and prove that the storage can keep marks: if a mark
        failed after records were sent, they would be sent again. Once per start, before any data.

        Raises:
            ConfigurationError: it belongs to another sink; their marks would be mixed up.
            Exception: a mark could not be written and read back.
        """
        if self.operator_id not in {"", operator_id}:
            raise ConfigurationError(
                "Two write-ahead sinks share one committer.",
                where=f"sinks {self.operator_id!r} and {operator_id!r}",
                cause="a committer keeps the marks of one sink",
                option=f"committer={self.describe()}: make one for each sink",
            )
        self.set_operator_id(operator_id)
        self.create_resource()
        self.open()
        self.set_job_id(_PROBE)
        self.commit_checkpoint(0, 0)
        if not self.is_checkpoint_committed(0, 0):
            raise ConfigurationError(
                "A mark that was written cannot be read back.",
                where=f"sink {operator_id!r}",
                cause="the storage lost the write, or the read went to a copy of it",
                option=f"committer={self.describe()}",
            )

    @abc.abstractmethod
    def create_resource(self) -> None:
        """Create the table or folder of the marks, if it is missing. Before `open`.

        Raises:
            OSError or the storage's own error: creation failed.
        """

    @abc.abstractmethod
    def open(self) -> None:
        """Connect; called again after `close`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what `open` took; harmless when nothing is open."""

    @abc.abstractmethod
    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """Record, durably, that the records of this checkpoint and all before it were sent.

        Idempotent; a lower id changes nothing.

        Raises:
            Exception: the result is *unknown*; the caller looks for the mark before any other step.
        """

    @abc.abstractmethod
    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """Return whether this checkpoint of the subtask, or a later one, was marked.

        Raises:
            Exception: the answer is unknown. Then never return False: that would send twice.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Return the place of the marks, for error texts and for the identity of a checkpoint."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Return the context around the question for the mark, `send_values` and the mark itself.

        If the marks are in the target's own database, a committer begins a transaction here,
        commits it at the end and rolls it back on any exception. Then records and mark are both
        there or both absent, and neither window for duplicates remains. By default there is no such
        transaction.
        """
        return contextlib.nullcontext()
