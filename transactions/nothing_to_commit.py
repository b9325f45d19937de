"""The committer of a sink that promises less than exactly-once: nobody asks it for anything.

The writer of such a sink returns committables whose `needs_commit` is False, so nothing of them is
decided, committed, recovered or swept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import Owner


class NothingToCommit:
    """Commits nothing: the sink's records are visible as soon as they are written.

    Args:
        name: of the sink.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def check_prepared(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> list[Committable]:
        """See `Committer.check_prepared`: never called."""
        self._never(committables)

    def commit(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: never called."""
        self._never(committables)

    def recover_and_commit(
        self,
        committables: Sequence[Committable],
        deadline: Deadline,  # noqa: ARG002
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`: never called; a start refuses a checkpoint whose log
        has transactions of this sink.
        """
        self._never(committables)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.lingering`: nothing is ever open."""
        return []

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:  # noqa: ARG002
        """See `Committer.recover_and_abort`: nothing is ever open."""
        assert not transaction_ids

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:  # noqa: ARG002
        """See `Committer.hidden`: a record without a transaction needs no marker."""
        return []

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`: there are no ids."""
        return frozenset()

    def close(self) -> None:
        """See `Committer.close`: it holds nothing."""

    def _never(self, committables: Sequence[Committable]) -> NoReturn:
        raise AssertionError(f"{self.name} has no transactions: {committables}")
