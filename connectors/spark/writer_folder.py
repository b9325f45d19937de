"""What a `BatchWriter` keeps in the query's checkpoint beside its log, and what a start refuses.

`commits/N` says only that the user's function has returned. It is no proof that the batch is
written: the function may have skipped the call, or caught its error. So the writer notes itself
what it has finished.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from connectors.spark.checkpoint_files import finished_checkpoint
from transactions.decision_log import read_log, this_process
from transactions.errors import IdentityMismatchError, ReplayMismatchError
from transactions.log_backend import LocalFileBackend, make_folder
from transactions.log_state import LogState

logger = logging.getLogger(__name__)

#: The folder in the query's checkpoint that holds one folder per application.
OURS: Final = "sparkonce"
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

    def check(self, batch_id: int, *, accept_duplicates: bool, alone: bool = False) -> None:
        """Check that a run may begin with a batch.

        Args:
            batch_id: the batch.
            accept_duplicates: write it even if another application has written it.
            alone: the query has this one writer, so another application of this process is an
                earlier name of it. A foreachBatch function can have several writers.

        Raises:
            ReplayMismatchError: rows of an earlier batch are not written, and will not be.
            IdentityMismatchError: another application has written this batch.
        """
        for note in sorted(self.path.glob(f"{_SECOND_CALL}*")):
            raise ReplayMismatchError(
                "The rows of a second call are not written.",
                where=f"application {self._app_id}, batch {note.name.removeprefix(_SECOND_CALL)}",
                cause="the batch was committed by the first call, so the second one was refused",
                option="write these rows with another BatchWriter that has its own app_id, then "
                f"remove {note}",
            )
        log = _log_in(self.path)
        last = -1 if log.decision is None else log.decision.checkpoint_id
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
        if log.decision is None and not accept_duplicates:
            self._refuse_others(batch_id, alone=alone)

    def _refuse_others(self, batch_id: int, *, alone: bool) -> None:
        """Check that no other application of an earlier process has decided this batch: Spark runs
        it again, and a new application would write it a second time.
        """
        for other in sorted(self.path.parent.iterdir()):
            log = _log_in(other)
            decided = -1 if log.decision is None else log.decision.checkpoint_id
            ours = log.host == this_process() and not alone
            if other != self.path and decided >= batch_id and not ours:
                raise IdentityMismatchError(
                    "Another application has written this batch.",
                    where=f"batch {batch_id}; application {other.name}, in {log.host}, has decided "
                    f"batch {decided}",
                    cause="the app_id was changed before Spark had finished the batch",
                    option=f"app_id={self._app_id}: use {other.name} again; or accept_duplicates="
                    "True, if both write this query on purpose",
                )

    def _number(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / name).read_text("ascii"))
        return -1


def _log_in(folder: Path) -> LogState:
    place = folder / "decisions"
    return read_log(LocalFileBackend(place)) if place.is_dir() else LogState()
