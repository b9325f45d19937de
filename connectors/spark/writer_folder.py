"""What a `BatchWriter` keeps in the query's checkpoint beside its log, and what a start refuses.

`commits/N` says only that the user's function has returned. It is no proof that the batch is
written: the function may have skipped the call, or caught its error. So the writer notes itself
what it has finished.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from connectors.pipeline.run import Run
from connectors.spark.checkpoint_files import finished_checkpoint
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import DecisionLogError, IdentityMismatchError, ReplayMismatchError
from transactions.log_backend import LocalFileBackend, answering, make_folder
from transactions.log_entries import this_process
from transactions.log_state import LogState

logger = logging.getLogger(__name__)

#: The folder in the query's checkpoint that holds one folder per application.
OURS: Final = "sparkonce"
_LOG: Final = "decisions"
_FIRST: Final = "first-batch"
_FINISHED: Final = "finished-batch"
_SECOND_CALL: Final = "second-call-"


class WriterFolder:
    """The folder of one application. Used on the driver, by one writer at a time.

    Args:
        checkpoint: of the query.
        app_id: the application.
    """

    def __init__(self, checkpoint: Path, app_id: str) -> None:
        self.checkpoint = checkpoint
        self.path = checkpoint / OURS / app_id
        self._app_id = app_id
        #: Whose broken logs were told.
        self._told: set[Path] = set()

    def note_call(self, batch_id: int) -> None:
        """Note the first batch that this application is called for, before anything can fail: a
        later start must see that a batch is missing, even if the error of the first was caught.
        """
        make_folder(self.path)
        is_first = LocalFileBackend(self.path).put_if_absent(_FIRST, str(batch_id).encode())
        if is_first and batch_id > 0:
            logger.warning(
                "application %s begins with batch %d of the query in %s: it has written none of "
                "the batches before",
                self._app_id,
                batch_id,
                self.checkpoint,
            )

    def note_finished(self, batch_id: int) -> None:
        """Note that every record of a batch is committed. If a power cut takes the note away, the
        next start asks the brokers.
        """
        new = self.path / f".{_FINISHED}.new"
        new.write_text(str(batch_id), "ascii")
        new.replace(self.path / _FINISHED)

    def note_second_call(self, batch_id: int) -> None:
        """Note that rows of a decided batch were refused: no later run can write them."""
        LocalFileBackend(self.path).put_if_absent(f"{_SECOND_CALL}{batch_id}", b"")

    def finished(self) -> int:
        """Return the last batch that is finished for sure, -1 for none."""
        return min(finished_checkpoint(self.checkpoint), self._number(_FINISHED))

    def noted(self) -> int:
        """Return the last batch of `note_finished`, -1 for none: all of a job, which has no log of
        Spark's.
        """
        return self._number(_FINISHED)

    def check(
        self,
        batch_id: int,
        *,
        accept_duplicates: bool,
        siblings: Collection[Path] | None = None,
    ) -> None:
        """Check that a run may begin with a batch.

        Args:
            batch_id: the batch.
            accept_duplicates: write it even if another application has written it.
            siblings: the folders of other writers that this run of the query has called: a
                foreachBatch function can have several. None: the query has this one writer.

        Raises:
            ReplayMismatchError: rows of an earlier batch are not written, and will not be.
            IdentityMismatchError: another application has written this batch.
            DecisionLogError: another one may have; its log cannot be used.
        """
        for note in sorted(self.path.glob(f"{_SECOND_CALL}*")):
            raise ReplayMismatchError(
                "The rows of a second call are not written.",
                where=f"application {self._app_id}, batch {note.name.removeprefix(_SECOND_CALL)}",
                cause="the batch was committed by the first call, so the second one was refused",
                option="write these rows with another BatchWriter that has its own app_id, then "
                f"remove {note}",
            )
        last = _last_decided(_log_in(self.path))
        spark = finished_checkpoint(self.checkpoint)
        if spark > last and spark >= self._number(_FIRST):
            raise ReplayMismatchError(
                "Spark has finished a batch that this application has not written.",
                where=f"application {self._app_id} in {self.path}: its last batch is {last}, and "
                f"commits/{spark} is there",
                cause="the function of foreachBatch did not call the writer, or has caught its "
                "error; the query had another sink meanwhile; or the folder was restored from a "
                "backup",
                option=f"if only batch {last + 1} is missing, remove commits/{last + 1} and its "
                "checksum, and Spark runs it again. Another app_id goes on from here, without the "
                "records of the batches left out",
            )
        if not accept_duplicates:
            for other in self._others(siblings):
                with self._about(other, batch_id, last):
                    self._refuse_decided(
                        other, _log_in(other), batch_id, last, alone=siblings is None
                    )

    def stop_others(
        self,
        run: Run,
        batch_id: int,
        *,
        accept_duplicates: bool,
        siblings: Collection[Path] | None = None,
    ) -> None:
        """Stop the runs of other applications on this checkpoint, and look again what they have
        decided. A driver with an earlier app_id can still be in this very batch.

        Called after this run's own Fence. So if two applications begin at once, the later one finds
        the log of the earlier one, and at most one of them decides.

        Args:
            run: of this application; it sweeps what the others have left.
            batch_id: the batch that the run begins with.
            accept_duplicates: see `check`; then nobody is stopped.
            siblings: the folders that this process has opened for a foreachBatch function: its
                writers are several applications, and none of them stops another. None: see `check`.

        Raises:
            IdentityMismatchError: another application has decided this batch meanwhile.
            DecisionLogError: see `check`.
        """
        if accept_duplicates:
            return
        last = _last_decided(_log_in(self.path))
        for other in self._others(siblings):
            with self._about(other, batch_id, last):
                self._stop(run, other, batch_id, last, alone=siblings is None)

    def _stop(self, run: Run, other: Path, batch_id: int, last: int, *, alone: bool) -> None:
        log = _log_in(other)
        self._refuse_decided(other, log, batch_id, last, alone=alone)
        if not log.log_id:
            return
        # At each start: a start before may have died behind its Fence, and living tasks of the
        # stopped run open more. The entry is little, and the old log is compacted.
        stopped = DecisionLog.open(
            LocalFileBackend(other / _LOG),
            application_id=log.application_id,
            identity=None,
            check=lambda state: state.accepted,
            host=f"{this_process()} for application {self._app_id}",
        )
        self._refuse_decided(other, stopped.state, batch_id, last, alone=alone)
        done = WriterFolder(self.checkpoint, other.name).finished()
        run.sweep_other(stopped, finished=done)

    def _others(self, siblings: Collection[Path] | None) -> list[Path]:
        """Return the folders of other applications.

        A name of a host and a number of a process do not tell a sibling from an earlier name: in a
        container that is made anew both can be the same.
        """
        return sorted({*self.path.parent.iterdir()} - {self.path, *(siblings or ())})

    @contextlib.contextmanager
    def _about(self, other: Path, batch_id: int, last: int) -> Iterator[None]:
        """Judge an error of another application's log: it stops us if that one may have decided
        this batch. A note of its last finished batch is no proof: it can have decided the next one.

        Args:
            other: the folder of the other application.
            batch_id: the batch.
            last: the last batch that we have decided, -1 for none.

        Raises:
            DecisionLogError: it may have.
        """
        try:
            yield
        except DecisionLogError as error:
            # We have decided a batch since it began, and since it finished its last one: a start of
            # ours has stopped it then, and a start of its own has been refused since.
            began, finished = _number_in(other / _FIRST), _number_in(other / _FINISHED)
            if not (0 <= began <= last and finished < last):
                raise type(error)(
                    "The decision log of another application of this checkpoint cannot be used, "
                    "and it may have decided this batch.",
                    where=f"batch {batch_id}; application {other.name}, {error.where}",
                    cause=error.cause,
                    option=f"app_id={self._app_id}: make that log readable; or, if {other.name} "
                    f"had ended before batch {batch_id} began, move {other} out of the checkpoint; "
                    f"or accept_duplicates=True, if batch {batch_id} may be written twice",
                ) from error
            if other not in self._told:
                self._told.add(other)
                logger.warning(
                    "the decision log of application %s cannot be used; %s goes on, as it has "
                    "written batches since. What the other one has left open may stay open: %s",
                    other.name,
                    self._app_id,
                    error,
                )

    def _refuse_decided(
        self, other: Path, log: LogState, batch_id: int, last: int, *, alone: bool
    ) -> None:
        """Check that another application has not decided this batch, unless we have: Spark runs it
        again, and we would write it a second time.

        Args:
            other: the folder of the other application.
            log: what it has decided.
            batch_id: the batch.
            last: the last batch that we have decided, -1 for none.
            alone: the query has this one writer.
        """
        decided = _last_decided(log)
        # A writer of the same function was there before: it was only called first in this batch.
        is_sibling = not alone and last >= 0 and _number_in(other / _FIRST) <= last
        if decided < batch_id or last >= batch_id or is_sibling:
            return
        raise IdentityMismatchError(
            "Another application has written this batch.",
            where=f"batch {batch_id}; application {other.name}, in {log.host}, has decided "
            f"batch {decided}",
            cause="the app_id was changed before Spark had finished the batch",
            option=f"app_id={self._app_id}: use {other.name} again; or accept_duplicates="
            "True, if both write this query on purpose",
        )

    def _number(self, name: str) -> int:
        return _number_in(self.path / name)


def _number_in(note: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(note.read_text("ascii"))
    return -1


def _log_in(folder: Path) -> LogState:
    place = folder / _LOG
    try:
        place.stat()  # is_dir() is also False where nobody may look
    except (FileNotFoundError, NotADirectoryError):
        return LogState()
    except OSError as error:
        raise DecisionLogError(
            "The decision log cannot be reached.",
            where=f"{place}: {error}",
            cause="a right is missing, or the disk is gone",
            option=f"checkpointLocation={folder.parent.parent}",
        ) from error
    backend = LocalFileBackend(place)
    with answering(backend):
        return read_log(backend)


def _last_decided(log: LogState) -> int:
    return -1 if log.decision is None else log.decision.checkpoint_id
