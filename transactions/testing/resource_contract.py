"""What a driver that runs for months asks of a sink: time limits, no leak, a sink that travels."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import psutil
import pytest

from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import OpenSink
from transactions.testing import engine
from transactions.testing.requirements import Requirement
from transactions.testing.sink_under_test import SinkUnderTest

_WARM_UP = 10
#: Resources of other parts of the process, which come and go; a leak is one per cycle.
_COINCIDENCE = 3


class ResourceContract(SinkUnderTest):
    """No test here is about records; each of these faults has stopped a pipeline somewhere."""

    __test__ = False

    @pytest.mark.parametrize("seconds", [0.0, 0.2], ids=["expired", "a moment"])
    @pytest.mark.parametrize("method", ["commit", "recover_and_commit"])
    def test_a_commit_ends_with_its_deadline(self, method: str, seconds: float) -> None:
        """Requirement.DEADLINE, LOST_ANSWER: every token has an outcome, and none is ABORTED; when
        the target is back, a recovery commits all of them.
        """
        written = [self.prepared(self.attempt(subtask=n), [n]) for n in range(3)]
        driver = self.restarted()
        with self.stall():
            commit = getattr(driver, method)
            outcomes = self._in_time(seconds, lambda: commit(written, Deadline(seconds)))
        tokens = {one.token for one in written}
        assert set(outcomes) == tokens, Requirement.LOST_ANSWER.broken(
            f"outcomes for {sorted(outcomes)} of {sorted(tokens)} when the time was up"
        )
        assert Outcome.ABORTED not in outcomes.values(), Requirement.LOST_ANSWER.broken(
            f"nothing was aborted, and it returned {dict(outcomes)}"
        )
        if all(outcome.is_committed for outcome in outcomes.values()):
            self.assert_visible([0, 1, 2], Requirement.COMMIT, "called committed in no time")
        recovered = self.restarted().recover_and_commit(written, self.deadline())
        self.assert_committed(recovered, written)
        self.assert_visible([0, 1, 2], Requirement.RECOVER, "after a recovery with more time")

    def _in_time(
        self, seconds: float, call: Callable[[], Mapping[str, Outcome]]
    ) -> Mapping[str, Outcome]:
        """Call from a thread, so that a call that never ends fails this test instead of all."""
        done: Future[Mapping[str, Outcome]] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return done.result(seconds + self.grace_s)
        except TimeoutError:
            late = f"{self.grace_s:g} s after its deadline of {seconds:g} s it had not returned"
        except Exception as error:
            late = f"with a deadline of {seconds:g} s it raised {error!r}"
            raise AssertionError(Requirement.LOST_ANSWER.broken(late)) from error
        raise AssertionError(Requirement.DEADLINE.broken(late))

    def test_f50_a_hundred_checkpoints_leak_nothing(self) -> None:
        """Requirement.NO_LEAK: begin, pre_commit, commit."""
        opened, written = self.opened(), 0

        def checkpoint() -> None:
            nonlocal written
            written += 1
            self.commit(opened.committer, self._prepared_by(opened, written))

        self._assert_no_leak(checkpoint, "begin, pre_commit, commit")
        everything = list(range(1, written + 1))
        self.assert_visible(everything, Requirement.COMMIT, f"after {written} checkpoints")

    def test_f50_a_hundred_aborts_leak_nothing(self) -> None:
        """Requirement.NO_LEAK: begin, abort."""
        opened = self.opened()

        def attempt() -> None:
            task = engine.travelled(opened.writer)
            task.abort(engine.begun(task, self.attempt(), [self.batch([1])]))

        self._assert_no_leak(attempt, "begin, abort")
        self.assert_visible([], Requirement.ABORT, "after a hundred aborts")

    def _prepared_by(self, opened: OpenSink, number: int) -> Committable:
        task = engine.travelled(opened.writer)
        one = engine.prepared(task, self.attempt(number), [self.batch([number])])
        assert one is not None, Requirement.COMMITTABLE.broken("pre_commit returned None")
        return one

    def _assert_no_leak(self, cycle: Callable[[], None], what: str) -> None:
        for _ in range(_WARM_UP):
            cycle()
        before = _resources()
        for _ in range(self.cycles):
            cycle()
        grown = {name: count - before[name] for name, count in _resources().items()}
        assert all(more <= _COINCIDENCE for more in grown.values()), Requirement.NO_LEAK.broken(
            f"{self.cycles} times {what} left {grown}"
        )
        self.assert_nothing_left(Requirement.NO_LEAK, f"after {self.cycles} times {what}")

    def test_the_name_is_stable(self) -> None:
        """Requirement.NAME: in a new object, in a task, and in another process."""
        name = self.new_sink().name
        assert isinstance(name, str), Requirement.NAME.broken(f"it is {name!r}")
        assert name, Requirement.NAME.broken("it is empty")
        names = {
            "a new object": self.new_sink().name,
            "a committer": self.driver().name,
            "a task": self.task().name,
            "another process": self.prepared_and_killed(self.attempt(), [1]).sink,
        }
        assert set(names.values()) == {name}, Requirement.NAME.broken(f"{name!r}, and {names}")

    def test_the_sink_travels_also_after_it_was_used(self) -> None:
        """Requirement.TRAVELS: every batch takes the run's own writer to the tasks."""
        opened = self.opened()
        driver = opened.committer
        self.commit(driver, self._prepared_by(opened, 1))
        driver.lingering(self.owner, self.deadline())
        try:
            pickle.dumps(opened.writer)
        except Exception as error:
            raise AssertionError(
                Requirement.TRAVELS.broken(f"after a commit: {error!r}")
            ) from error
        self.commit(driver, self._prepared_by(opened, 2))
        self.assert_visible([1, 2], Requirement.TRAVELS, "by a writer that was used before")

    def test_the_committable_says_whose_it_is_and_travels_as_json(self) -> None:
        """Requirement.COMMITTABLE: everything in it is data, and it names its attempt."""
        attempt, driver = self.attempt(checkpoint=3, subtask=2), self.driver()
        task, transaction = self.begun(attempt, [1, 2], [3])
        one = task.pre_commit(transaction)
        assert one is not None, Requirement.COMMITTABLE.broken("pre_commit returned None")
        read = Committable.from_json(one.to_json())
        assert read == one, Requirement.COMMITTABLE.broken(f"as JSON it is {read}, it was {one}")
        found = (one.sink, one.checkpoint_id, one.subtask, one.attempt, one.record_count)
        expected = (driver.name, 3, 2, attempt.attempt_id, 3)
        assert found == expected, Requirement.COMMITTABLE.broken(
            f"sink, checkpoint, subtask, attempt, records: {found}, and not {expected}"
        )
        assert one.token, Requirement.COMMITTABLE.broken("its token is empty")
        assert one.needs_commit, Requirement.COMMITTABLE.broken("its transactional_id is empty")
        (checked,) = driver.check_prepared([one], self.deadline())
        again = Committable.from_json(checked.to_json())
        assert again == checked, Requirement.COMMITTABLE.broken(f"checked {checked}, read {again}")


def _resources() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {"threads": process.num_threads(), "open file descriptors": process.num_fds()}
