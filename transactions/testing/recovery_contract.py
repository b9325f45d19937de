"""What is left when a process is gone: a task after its pre-commit, a driver between two steps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transactions.committable import Outcome
from transactions.testing import engine
from transactions.testing.killed_process import killed_at
from transactions.testing.requirements import Requirement
from transactions.testing.sink_under_test import SinkUnderTest

#: The points where drivers die, one driver after another; the last driver ends normally.
_DEATHS = (
    ("committables_collected",),
    ("decision_durable",),
    ("one_committed",),
    ("decision_durable", "recovery_fenced", "recovery_settled"),
)


class RecoveryContract(SinkUnderTest):
    """Processes that are killed by SIGKILL, and drivers that take over."""

    __test__ = False

    @pytest.mark.parametrize("by", ["commit", "recover_and_commit"])
    def test_a_prepared_transaction_outlives_its_killed_writer(self, by: str) -> None:
        """Requirement.OUTLIVES_ITS_WRITER."""
        one = self.prepared_and_killed(self.attempt(), [1, 2], [3])
        self.assert_visible([], Requirement.INVISIBLE, "after the writer was killed")
        driver = self.restarted()
        (checked,) = driver.check_prepared([one], self.deadline())
        if by == "commit":
            self.commit(driver, checked)
        else:
            self.assert_committed(driver.recover_and_commit([checked], self.deadline()), [checked])
        self.assert_visible(
            [1, 2, 3], Requirement.OUTLIVES_ITS_WRITER, f"{by}, after the writer was killed"
        )

    def test_an_open_transaction_of_a_killed_writer_is_swept(self) -> None:
        """Requirement.LINGERING; a target that knows nothing of it has nothing to sweep."""
        self.begun_and_killed(self.attempt(), [1, 2])
        self.assert_visible([], Requirement.INVISIBLE, "after the writer was killed")
        driver = self.restarted()
        driver.recover_and_abort(driver.lingering(self.owner, self.deadline()), self.deadline())
        self.assert_visible([], Requirement.FENCE, "after the sweep")
        self.assert_nothing_left(Requirement.FENCE, "after the sweep")

    def test_recover_and_commit_asks_the_target_first(self) -> None:
        """Requirement.RECOVER: it commits what it finds open, and leaves what it finds done."""
        written = [self.prepared(self.attempt(subtask=n), [n]) for n in range(2)]
        self.commit(self.driver(), written[0])
        outcomes = self.restarted().recover_and_commit(written, self.deadline())
        expected = {
            written[0].token: Outcome.ALREADY_COMMITTED,
            written[1].token: Outcome.COMMITTED,
        }
        assert dict(outcomes) == expected, Requirement.RECOVER.broken(
            f"the first was committed and the second prepared: {dict(outcomes)}"
        )
        again = self.restarted().recover_and_commit(written, self.deadline())
        assert set(again.values()) == {Outcome.ALREADY_COMMITTED}, Requirement.RECOVER.broken(
            f"both were committed: {dict(again)}"
        )
        self.assert_visible([0, 1], Requirement.IDEMPOTENT, "after two recoveries")

    def test_two_drivers_finish_one_decision(self) -> None:
        """Requirement.IDEMPOTENT: an old driver is in its phase 2 while its heir recovers."""
        written = [self.prepared(self.attempt(subtask=n), [n]) for n in range(8)]
        old, heir, start = self.driver(), self.driver(), threading.Barrier(2)

        def run(commit: Callable[..., Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
            start.wait(self.deadline_s)
            return commit(written, self.deadline())

        with ThreadPoolExecutor(2) as both:
            answers = [both.submit(run, one) for one in (old.commit, heir.recover_and_commit)]
        for answer in answers:
            error = answer.exception()
            assert error is None, Requirement.LOST_ANSWER.broken(f"beside another one: {error!r}")
            assert Outcome.ABORTED not in answer.result().values(), Requirement.RECOVERED.broken(
                f"none was aborted: {dict(answer.result())}"
            )
        self.assert_committed(heir.recover_and_commit(written, self.deadline()), written)
        self.assert_visible(range(8), Requirement.IDEMPOTENT, "committed by two at the same time")

    def test_an_aborted_transaction_is_never_called_committed(self) -> None:
        """Requirement.RECOVERED: neither by commit nor by a recovery, and it stays invisible."""
        one = self.prepared(self.attempt(), [1])
        self.driver().recover_and_abort([one.transactional_id], self.deadline())
        for name in ("commit", "recover_and_commit"):
            driver = self.restarted()
            outcomes = getattr(driver, name)([one], self.deadline())
            assert outcomes.get(one.token) in {Outcome.ABORTED, Outcome.UNKNOWN}, (
                Requirement.RECOVERED.broken(f"{name} of an aborted transaction: {dict(outcomes)}")
            )
            self.assert_visible([], Requirement.RECOVERED, f"after {name} of an aborted one")

    def test_of_two_attempts_only_the_committed_one_is_visible(self) -> None:
        """Requirement.FENCE: speculation, or a task whose answer was lost; the records are equal,
        so only the transaction distinguishes them.
        """
        lost = self.prepared_and_killed(self.attempt(), [1, 2])
        won = self.prepared(self.attempt(), [1, 2])
        assert lost.token != won.token, Requirement.COMMITTABLE.broken(
            "a token is unique; two attempts of one subtask have the same one"
        )
        assert (lost.record_count, lost.fingerprint) == (won.record_count, won.fingerprint), (
            Requirement.COMMITTABLE.broken("equal records have an equal count and fingerprint")
        )
        driver = self.driver()
        self.commit(driver, *driver.check_prepared([won], self.deadline()))
        lingering = driver.lingering(self.owner, self.deadline())
        assert lost.transactional_id in lingering, Requirement.LINGERING.broken(
            f"the lost attempt {lost.transactional_id} is open, and it names {lingering}"
        )
        assert won.transactional_id not in lingering, Requirement.LINGERING.broken(
            f"{won.transactional_id} is committed, and it names {lingering}"
        )
        driver.recover_and_abort(lingering, self.deadline())
        self.assert_visible([1, 2], Requirement.FENCE, "after the sweep of the lost attempt")
        self.assert_nothing_left(Requirement.FENCE, "after the sweep of the lost attempt")

    @pytest.mark.parametrize("deaths", _DEATHS, ids="+".join)
    def test_the_engine_is_exactly_once_when_its_driver_dies_at(
        self, deaths: Sequence[str], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Every requirement, with the real coordinator and the real recovery."""
        folder = tmp_path_factory.mktemp("decision-log")
        for death in deaths:
            killed_at(death, self._checkpoint(folder, 1), self.deadline_s)
        for number in (1, 2):
            self.drop_process()
            self._checkpoint(folder, number)()
        self.assert_visible(
            [10, 11, 12, 20, 21, 22], Requirement.COMMIT, f"after deaths at {deaths}"
        )
        left = list(self.leftovers())
        assert not left, Requirement.FENCE.broken(f"after all, the target still holds {left}")

    def _checkpoint(self, folder: Path, number: int) -> functools.partial[None]:
        """Two subtasks; the second one has two batches."""
        ten = number * 10
        subtasks = [[self.batch([ten])], [self.batch([ten + 1]), self.batch([ten + 2])]]
        return functools.partial(
            engine.run_checkpoint,
            self.new_sink(),
            number,
            subtasks,
            folder=folder,
            application_id=self.owner.application_id,
            seconds=self.deadline_s,
        )
