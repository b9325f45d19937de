"""The file sink's half on the driver: a commit is a rename.

(Flink: the `TransactionalFileSink` of the article on TwoPhaseCommitSinkFunction, and the
`FileCommitter` of `FileSink`.) A task has prepared a hidden file; the driver renames it after the
decision. A look at the names shows the outcome: the final name exists, or the hidden one, or
neither. So a doubt lasts only while the file system is unreachable. If neither name exists,
somebody removed the file: it is lost, and healed.

In an object store the rename is a put-if-absent of another object, see `object_folder`. Here only
the folder's own texts differ.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from connectors.files.checkpoint_manifest import write_manifest
from connectors.files.prepared_file import PreparedFile
from connectors.files.target_folder import TargetFolder
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import BrokerUnavailableError, PhaseOneError
from transactions.sink import Owner

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")


class FileCommitter:
    """Publishes prepared files, and discards those that no decision names.

    Attributes:
        name: see `Committer.name`.
        path: see `FileSink`.
        folder: the folder at that path.
    """

    def __init__(self, name: str, path: str, folder: TargetFolder) -> None:
        self.name = name
        self.path = path
        self.folder = folder
        self._made_durable = False

    def check_target(self) -> None:
        """Check that the target can commit files. At start, before any data moves.

        Raises:
            ConfigurationError: it cannot.
            BrokerUnavailableError: it does not answer.
        """
        with self._reached():
            self.folder.check()

    def close(self) -> None:
        """Do nothing: the driver holds nothing."""

    def check_prepared(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> list[Committable]:
        """See `Committer.check_prepared`: every file exists with its size, and can be
        renamed. This also writes the manifest of the checkpoint, because after the decision no step
        may be left that could fail.
        """
        if not committables:
            return []
        try:
            if not self._made_durable:
                self.folder.make_durable()
                self._made_durable = True
            obstacle = self.folder.obstacle()
            problems = self._for_each(committables, self._not_prepared)
            for one, its_own in zip(committables, problems, strict=True):
                if problem := obstacle or its_own:
                    raise self._unprepared(one, problem)
            write_manifest(self.folder, committables)
        except OSError as error:
            raise self._unprepared(committables[0], str(error)) from error
        return list(committables)

    def _not_prepared(self, one: Committable) -> str:
        file = PreparedFile.of(one)
        size = self.folder.size_of(one.transactional_id, file.name)
        if size is None:
            return "its file is gone"
        return "" if size == file.size else f"its file has {size} bytes, {file.size} were written"

    def _unprepared(self, one: Committable, problem: str) -> PhaseOneError:
        return PhaseOneError(
            f"A prepared file cannot be committed: {problem}.",
            where=f"{self.path}, checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
            f"{one.transactional_id}",
            cause=f"somebody removed or changed it; {self.folder.trouble}; or the workers write to "
            "another place than the driver reads",
            option=f"path={self.path}",
        )

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: rename every file, then sync the folders.

        A rename itself returns what it found, so a recovery commits in the same way.
        """
        found = self._for_each(committables, lambda one: self._publish(one, deadline))
        outcomes = {one.token: outcome for one, outcome in zip(committables, found, strict=True)}
        try:
            # Even if all were renamed before: that process may have died before this step.
            self.folder.sync_published()
        except OSError as error:
            logger.warning("the renames in %s are not durable yet: %s", self.path, error)
            return dict.fromkeys(outcomes, Outcome.UNKNOWN)
        return outcomes

    def _publish(self, one: Committable, deadline: Deadline) -> Outcome:
        if deadline.expired():
            return Outcome.UNKNOWN
        crash_points.reach("rename_started", one.checkpoint_id)
        try:
            outcome = self.folder.publish(one.transactional_id, PreparedFile.of(one).name)
        except OSError as error:
            logger.warning(
                "the outcome of the rename of %s is unknown: %s", one.transactional_id, error
            )
            return Outcome.UNKNOWN
        if outcome is Outcome.COMMITTED:
            crash_points.reach("renamed", one.checkpoint_id)
        return outcome

    def _for_each(self, all_of_them: Iterable[_T], do: Callable[[_T], _R]) -> list[_R]:
        """Apply a function to every file, several at a time if that is faster."""
        if self.folder.at_once == 1:
            return [do(one) for one in all_of_them]
        with ThreadPoolExecutor(self.folder.at_once) as pool:
            return list(pool.map(do, all_of_them))

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`. ABORTED: the file has neither name."""
        return self.commit(committables, deadline)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.lingering`: hidden files, and manifests that are not whole.

        Raises:
            BrokerUnavailableError: the folder cannot be read now.
        """
        mine = [owner.application_id, owner.log_id]
        with self._reached():
            return [
                name
                for name in self.folder.open_ids()
                if (parts := name.split("."))[:2] == mine and int(parts[2]) <= owner.run_epoch
            ]

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:  # noqa: ARG002
        """See `Committer.recover_and_abort`: without its file a writer cannot commit.

        Raises:
            BrokerUnavailableError: the folder cannot be written now.
        """
        with self._reached():
            self._for_each(transaction_ids, self.folder.discard)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise our error, for the restart strategy, if the folder is unreachable."""
        try:
            yield
        except OSError as error:
            raise BrokerUnavailableError(
                "The folder of a file sink cannot be used.",
                where=f"sink {self.name!r}, {self.path}",
                cause=str(error),
                option=f"path={self.path}",
            ) from error

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: readers see every renamed file."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: an id is used once."""
        return frozenset()
