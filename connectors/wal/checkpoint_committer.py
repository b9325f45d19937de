"""CheckpointCommitter: where a write-ahead sink remembers what its target has been sent.

The target of such a sink cannot be asked whether it has a checkpoint. So the sink sets a mark when
it has sent one, and asks for the mark before it sends: Flink's class of the same name.

What is stored: per job, operator and subtask the highest checkpoint id that was sent. Is that
enough? Only if, for one such key, ids come in ascending order, and it is so because

* the job id (``<application>.<log id>.<run epoch>.<random>``) names the *start* that wrote the
  records, as their transaction says, not the run that asks. Within one start checkpoint ids ascend,
  and the next checkpoint is not decided before the last one is settled;
* ids can go back when an older copy of the folder is restored (and run epochs with them), and begin
  at 0 again with a new one. Both are another start, so another key: an old mark never hides new
  records. With Flink's key, operator and id alone, checkpoint 4 after the restore would be taken
  for sent;
* the subtask is that of the records, which stands in the committable. After a rescale another
  subtask, or as here the driver, asks for it under that number; new subtasks have new runs.

Flink's operator id is a fresh UUID for every construction of the sink, so that a job that is
submitted again finds no mark of itself and sends twice. Here it is the sink's name.

Marks are never removed: one small row for each run that wrote something, and subtask. Those of
runs that the last decision does not name may be deleted by hand.
"""

from __future__ import annotations

import abc
import contextlib
from typing import Final

from transactions.errors import ConfigurationError

#: The job of the mark that only shows that marks can be kept.
_PROBE: Final = "probe"


class CheckpointCommitter(abc.ABC):
    """Storage for marks, outside the checkpoint. All methods run on the driver.

    An object of it is made by the user, travels in the sink as plain data, and holds nothing live
    before `open`. Every backend passes the suite in tests/unit/test_checkpoint_committer.py.
    """

    job_id: str = ""
    operator_id: str = ""

    def set_job_id(self, job_id: str) -> None:
        """Say whose marks the next calls are about; called again whenever that changes.

        Args:
            job_id: ``<application>.<log id>.<run epoch>.<random>`` of the start that wrote them.
        """
        self.job_id = job_id

    def set_operator_id(self, operator_id: str) -> None:
        """Say which sink the marks are of, once, before `create_resource`.

        Args:
            operator_id: the sink's name, the same after every restart and resubmission.
        """
        self.operator_id = operator_id

    def bind(self, operator_id: str) -> None:
        """Become the committer of one sink, and prove that marks can be kept: a mark that fails
        after records were sent would let them be sent again. Once per start, before any data.

        Raises:
            ConfigurationError: it is another sink's; their marks would be taken for each other's.
            Exception: a mark could not be written and read back.
        """
        if self.operator_id not in {"", operator_id}:
            raise ConfigurationError(
                "Two write-ahead sinks share one committer.",
                where=f"sinks {self.operator_id!r} and {operator_id!r}",
                cause="a committer is told once whose marks it keeps",
                option=f"committer={self.describe()}: make one for each sink",
            )
        self.set_operator_id(operator_id)
        self.create_resource()
        self.open()
        self.set_job_id(_PROBE)
        self.commit_checkpoint(0, 0)
        if not self.is_checkpoint_committed(0, 0):
            raise ConfigurationError(
                "A mark was written, and is not there.",
                where=f"sink {operator_id!r}",
                cause="the storage forgets, or is a copy that is not written to",
                option=f"committer={self.describe()}",
            )

    @abc.abstractmethod
    def create_resource(self) -> None:
        """Make the table or folder of the marks, if it is not there. Before `open`.

        Raises:
            OSError or the storage's own error: it cannot be made.
        """

    @abc.abstractmethod
    def open(self) -> None:
        """Connect; called again after `close`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what `open` took; harmless when nothing is open."""

    @abc.abstractmethod
    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """Remember, durably, that the records of this checkpoint and all before it were sent.

        Idempotent; a lower id changes nothing.

        Raises:
            Exception: the result is *unknown*; the caller asks before it does anything else.
        """

    @abc.abstractmethod
    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """Tell whether this checkpoint of the subtask, or a later one, was marked.

        Raises:
            Exception: it could not be learnt. It is never False then: that would send twice.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Return where the marks are, for error texts and for the identity of a checkpoint."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Return what encloses the question for the mark, `send_values` and the mark itself.

        Where the marks lie in the target's own database, a committer begins a transaction here,
        commits it at the end and rolls it back on any exception: then records and mark are there
        both or not at all, and neither window for duplicates is left. By default there is no such
        transaction.
        """
        return contextlib.nullcontext()
