"""What the sweep may touch: everything open of its own log up to its own run, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from transactions.sink import Owner
from transactions.testing.requirements import Requirement
from transactions.testing.sink_under_test import SinkUnderTest


class LingeringContract(SinkUnderTest):
    """`lingering` and `recover_and_abort`: the abort asks nobody, so the list must be right."""

    __test__ = False

    def test_lingering_names_a_transaction_as_its_committable_does(self) -> None:
        """Requirement.LINGERING: a recovery spares what was decided, by its transactional id."""
        one = self.prepared(self.attempt(), [1])
        lingering = self.restarted().lingering(self.owner, self.deadline())
        assert lingering == [one.transactional_id], Requirement.LINGERING.broken(
            f"{one.transactional_id} is open, and it names {lingering}"
        )

    @pytest.mark.parametrize("end", ["-2", "_2", "2"])
    def test_lingering_never_names_another_applications(self, end: str) -> None:
        """Requirement.FOREIGN: their name begins with ours, and the other way round."""
        longer = f"{self.owner.application_id}{end}"
        self._assert_apart(dataclasses.replace(self.owner, application_id=longer))

    def test_lingering_never_names_another_logs(self) -> None:
        """Requirement.FOREIGN: one application, restarted on an empty checkpoint."""
        longer = f"{self.owner.log_id}0"
        self._assert_apart(dataclasses.replace(self.owner, log_id=longer))

    @pytest.mark.parametrize("newer", [11, 100])
    def test_lingering_never_names_a_newer_runs(self, newer: int) -> None:
        """Requirement.FOREIGN: an old driver that wakes up must not abort what its heir writes."""
        heir = dataclasses.replace(self.owner, run_epoch=newer)
        theirs = self.prepared(self.attempt(owner=heir), [1])
        lingering = self.driver().lingering(self.owner, self.deadline())
        assert lingering == [], Requirement.FOREIGN.broken(
            f"run {self.owner.run_epoch} names {lingering}; {theirs.transactional_id} is of run "
            f"{newer}"
        )

    @pytest.mark.parametrize("older", [1, 9])
    def test_lingering_names_an_older_runs(self, older: int) -> None:
        """Requirement.LINGERING: runs are numbers; as text 9 sorts after 10."""
        dead = dataclasses.replace(self.owner, run_epoch=older)
        theirs = self.prepared(self.attempt(owner=dead), [1])
        driver = self.driver()
        lingering = driver.lingering(self.owner, self.deadline())
        assert lingering == [theirs.transactional_id], Requirement.LINGERING.broken(
            f"run {self.owner.run_epoch} names {lingering}; {theirs.transactional_id} is of run "
            f"{older}"
        )
        driver.recover_and_abort(lingering, self.deadline())
        self.assert_nothing_left(Requirement.FENCE, "after the sweep")

    def test_the_sweep_leaves_the_others_alone(self) -> None:
        """Requirement.FOREIGN: theirs can still be committed."""
        stranger = dataclasses.replace(self.owner, application_id=f"{self.owner.application_id}-2")
        theirs = self.prepared(self.attempt(owner=stranger), [1])
        self.prepared(self.attempt(), [2])
        driver = self.driver()
        driver.recover_and_abort(driver.lingering(self.owner, self.deadline()), self.deadline())
        self.commit(driver, theirs)
        self.assert_visible([1], Requirement.FOREIGN, "after a sweep beside another application")

    def test_a_swept_writer_is_fenced(self) -> None:
        """Requirement.FENCE: a task that wakes up after the sweep brings nothing to a decision."""
        task, transaction = self.begun(self.attempt(), [1])
        driver = self.driver()
        swept = driver.lingering(self.owner, self.deadline())
        driver.recover_and_abort(swept, self.deadline())
        try:
            task.invoke(transaction, self.batch([2]))
            one = task.pre_commit(transaction)
            checked = driver.check_prepared([one] if one else [], self.deadline())
        except Exception:  # noqa: BLE001 - however it learns of it
            with contextlib.suppress(Exception):  # as a task does; the sweep ends what it leaves
                task.abort(transaction)
        else:
            # The sweep saw no transaction, so there was none: it began after the sweep.
            assert not swept, Requirement.FENCE.broken(
                f"{swept} were swept; their task went on, and {checked} passed check_prepared"
            )
        self.assert_visible([], Requirement.FENCE, "after a swept task went on")
        driver.recover_and_abort(driver.lingering(self.owner, self.deadline()), self.deadline())
        self.assert_nothing_left(Requirement.FENCE, "after a swept task went on")

    def _assert_apart(self, longer: Owner) -> None:
        """Assert that each owner sees its own transactions and not the other's."""
        owners = {"ours": self.owner, "theirs": longer}
        open_ones = {
            whose: self.prepared(self.attempt(owner=owner), [number]).transactional_id
            for number, (whose, owner) in enumerate(owners.items())
        }
        for whose, owner in owners.items():
            lingering = self.driver().lingering(owner, self.deadline())
            assert lingering == [open_ones[whose]], Requirement.FOREIGN.broken(
                f"{owner} has {open_ones[whose]} open, and it names {lingering}"
            )
