"""What readers see: nothing before a commit, then exactly its records, once and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from transactions.errors import PhaseOneError
from transactions.testing.requirements import Requirement
from transactions.testing.sink_under_test import SinkUnderTest


class VisibilityContract(SinkUnderTest):
    """Phase 1, the check before the decision, and phase 2, with nobody killed."""

    __test__ = False

    def test_an_open_transaction_is_invisible(self) -> None:
        """Requirement.INVISIBLE."""
        open_one = self.begun(self.attempt(), [1, 2], [3])
        self.assert_visible([], Requirement.INVISIBLE, "with a transaction open")
        del open_one

    def test_a_prepared_transaction_is_invisible(self) -> None:
        """Requirement.INVISIBLE."""
        self.prepared(self.attempt(), [1, 2], [3])
        self.assert_visible([], Requirement.INVISIBLE, "with a transaction prepared")

    def test_commit_makes_visible_exactly_what_was_written(self) -> None:
        """Requirement.COMMIT, HIDDEN."""
        driver, one = self.driver(), self.prepared(self.attempt(), [1, 2], [], [3, 3])
        (checked,) = driver.check_prepared([one], self.deadline())
        self.commit(driver, checked)
        self.assert_visible([1, 2, 3, 3], Requirement.COMMIT, "after the commit")
        hidden = driver.hidden([checked], self.deadline())
        assert hidden == [], Requirement.HIDDEN.broken(f"all is visible, and hidden is {hidden}")
        assert isinstance(driver.retired(), frozenset), "retired() must return a frozenset"

    def test_commit_makes_nothing_else_visible(self) -> None:
        """Requirement.COMMIT: neither a neighbour's transaction nor another application's."""
        one = self.prepared(self.attempt(), [1])
        neighbour = self.prepared(self.attempt(subtask=1), [2])
        stranger = dataclasses.replace(self.owner, application_id=f"{self.owner.application_id}-2")
        self.prepared(self.attempt(owner=stranger), [3])
        open_one = self.begun(self.attempt(subtask=2), [4])
        self.commit(self.driver(), one)
        self.assert_visible([1], Requirement.INVISIBLE, "with one of four committed")
        self.commit(self.driver(), neighbour)
        self.assert_visible([1, 2], Requirement.INVISIBLE, "with two of four committed")
        del open_one

    def test_the_subtasks_of_a_checkpoint_are_committed_together(self) -> None:
        """Requirement.COMMIT: every token has its outcome."""
        written = [self.prepared(self.attempt(subtask=n), [n, n + 10]) for n in range(3)]
        assert len({one.token for one in written}) == 3, Requirement.COMMITTABLE.broken(
            "a token is unique; two subtasks have the same one"
        )
        driver = self.driver()
        self.commit(driver, *driver.check_prepared(written, self.deadline()))
        self.assert_visible([0, 1, 2, 10, 11, 12], Requirement.COMMIT, "with three subtasks")

    def test_checkpoints_keep_their_order(self) -> None:
        """Requirement.ORDER; as text 9, 10, 11 and 100 sort in another order."""
        driver = self.driver()
        numbers = {9: [[30, 10], [20]], 10: [[5]], 11: [[40, 4]], 100: [[1]]}
        for checkpoint, batches in numbers.items():
            self.commit(driver, self.prepared(self.attempt(checkpoint), *batches))
        self._assert_order([30, 10, 20, 5, 40, 4, 1])

    def test_f51_the_next_checkpoint_is_prepared_before_the_last_is_committed(self) -> None:
        """Requirement.ORDER: a task that runs on does not wait for phase 2."""
        driver, first = self.driver(), self.prepared(self.attempt(1), [3, 1])
        second = self.prepared(self.attempt(2), [2])
        self.commit(driver, first)
        self.assert_visible([3, 1], Requirement.INVISIBLE, "with the first of two committed")
        self.commit(driver, second)
        self._assert_order([3, 1, 2])

    def _assert_order(self, numbers: list[int]) -> None:
        self.assert_visible(numbers, Requirement.COMMIT, "after all checkpoints")
        if self.ordered:
            seen = self.visible()
            assert seen == numbers, Requirement.ORDER.broken(f"{seen} instead of {numbers}")

    @pytest.mark.parametrize("batches", [[], [[]]], ids=["no batch", "an empty batch"])
    def test_an_attempt_without_records_is_no_transaction(self, batches: list[list[int]]) -> None:
        """Requirement.EMPTY: nobody will ever end it."""
        task, transaction = self.begun(self.attempt(), *batches)
        one = task.pre_commit(transaction)
        assert one is None or not one.needs_commit, Requirement.EMPTY.broken(f"it returned {one}")
        self.assert_nothing_left(Requirement.EMPTY, "after an empty attempt")
        self.assert_visible([], Requirement.EMPTY, "after an empty attempt")

    def test_an_attempt_with_offsets_only_can_be_decided(self) -> None:
        """Requirement.EMPTY: offsets alone are no transaction, or one like any other."""
        attempt = self.attempt(source_offsets=self.source_offsets)
        task, transaction = self.begun(attempt)
        one = task.pre_commit(transaction)
        if one is not None and one.needs_commit:
            assert dict(one.source_offsets) == dict(self.source_offsets), (
                Requirement.COMMITTABLE.broken(f"offsets {self.source_offsets}, and {one}")
            )
            driver = self.driver()
            self.commit(driver, *driver.check_prepared([one], self.deadline()))
        self.assert_nothing_left(Requirement.EMPTY, "after an attempt with offsets only")
        self.assert_visible([], Requirement.EMPTY, "after an attempt with offsets only")

    @pytest.mark.parametrize("by", ["the same object", "another object", "a restarted driver"])
    def test_commit_again_changes_nothing(self, by: str) -> None:
        """Requirement.IDEMPOTENT, also after what other checkpoints have done since."""
        driver, one = self.driver(), self.prepared(self.attempt(), [1, 2])
        self.commit(driver, one)
        again = {"the same object": lambda: driver, "another object": self.driver}
        self.commit(again.get(by, self.restarted)(), one)
        self.assert_visible([1, 2], Requirement.IDEMPOTENT, f"committed again by {by}")
        self.commit(driver, self.prepared(self.attempt(2), [3]))
        self.commit(again.get(by, self.restarted)(), one)
        self.assert_visible([1, 2, 3], Requirement.IDEMPOTENT, f"and once more by {by}")

    def test_commit_of_some_that_are_committed_already(self) -> None:
        """Requirement.IDEMPOTENT: a driver died after the first of three."""
        written = [self.prepared(self.attempt(subtask=n), [n]) for n in range(3)]
        self.commit(self.driver(), written[1])
        self.commit(self.restarted(), *written)
        self.assert_visible([0, 1, 2], Requirement.IDEMPOTENT, "with one of three done before")

    @pytest.mark.parametrize("state", ["open", "prepared", "empty"])
    def test_abort_leaves_nothing(self, state: str) -> None:
        """Requirement.ABORT; a prepared one is aborted when another sink of its task fails."""
        batches: Sequence[list[int]] = [] if state == "empty" else [[1, 2]]
        task, transaction = self.begun(self.attempt(), *batches)
        if state == "prepared":
            task.pre_commit(transaction)
        task.abort(transaction)
        self.assert_visible([], Requirement.ABORT, f"after the abort of one that is {state}")
        self.assert_nothing_left(Requirement.ABORT, f"after the abort of one that is {state}")
        self.commit(self.driver(), self.prepared(self.attempt(), [3]))
        self.assert_visible([3], Requirement.ABORT, "after the next attempt")

    def test_check_prepared_passes_what_is_prepared(self) -> None:
        """Requirement.STILL_PREPARED; it adds what the target knows, and takes nothing away."""
        written = [self.prepared(self.attempt(subtask=n), [n]) for n in range(2)]
        checked = self.driver().check_prepared(written, self.deadline())
        assert [one.token for one in checked] == [one.token for one in written], (
            Requirement.STILL_PREPARED.broken(f"of {written} it returned {checked}")
        )
        self.assert_visible([], Requirement.INVISIBLE, "after check_prepared")

    def test_check_prepared_refuses_what_was_aborted(self) -> None:
        """Requirement.STILL_PREPARED: deciding it would lose records."""
        kept, lost = (self.prepared(self.attempt(subtask=n), [n]) for n in range(2))
        self.driver().recover_and_abort([lost.transactional_id], self.deadline())
        refused = False
        try:
            self.driver().check_prepared([kept, lost], self.deadline())
        except PhaseOneError:
            refused = True
        assert refused, Requirement.STILL_PREPARED.broken(
            "one of two was aborted, and check_prepared raised no PhaseOneError"
        )
