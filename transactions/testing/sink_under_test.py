"""The sink under test: what its author defines, and the steps that the contracts are made of.

The steps are apart as in production: a task has a pickled copy of the writer, a committable comes
back as JSON, and every other writer or committer belongs to another process.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import AnyWriter, Attempt, Committer, OpenSink, Owner, Sink, SinkContext
from transactions.testing import engine
from transactions.testing.killed_process import killed_after
from transactions.testing.requirements import Requirement

_TASK_ATTEMPT = itertools.count(1)


class SinkUnderTest:
    """What a subclass defines; each test has an instance, a folder and an application of its own.

    Attributes:
        ordered: `visible` keeps the order in which readers meet the records. False where the
            target has none.
        deadline_s: how long any one call may take.
        grace_s: how much longer than its deadline a commit may take: a busy machine's share.
        cycles: checkpoints after which a leak must show.
        source_offsets: ``topic-partition`` and next offset for the test of an attempt that carries
            nothing else; the partition must exist if the target requires that.
        folder: an empty folder of this test alone; the same path as its `tmp_path`.
        owner: the owner of this test's transactions; no other test has it.
    """

    __test__ = False
    ordered: ClassVar[bool] = True
    deadline_s: ClassVar[float] = 30.0
    grace_s: ClassVar[float] = 3.0
    cycles: ClassVar[int] = 100
    source_offsets: ClassVar[Mapping[str, int]] = {"contract-0": 7}
    folder: Path
    owner: Owner
    _committers: list[Committer]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let pytest collect a user's class, whatever its bases say."""
        super().__init_subclass__(**kwargs)
        cls.__test__ = cls.__dict__.get("__test__", True)

    # --- what the author of a sink says -----------------------------------------------------------

    def new_sink(self) -> Sink:
        """Return the description of a sink on this test's target, as another process would make it.
        It is opened many times; no two of these share anything live. It is pickled for a process
        that is killed, so its class must be in a module.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what new_sink() is")

    def visible(self) -> list[int]:
        """Return the numbers that a reader of the target sees, in the reader's order. It reads by
        its own means, not through the sink, and waits if the target shows a commit late.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what visible() is")

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return a record batch of the sink's schema that holds these numbers."""
        return pa.record_batch({"value": [str(number).encode() for number in numbers]})

    def drop_process(self) -> None:
        """Forget everything that lives in this process, as after a SIGKILL: a module's producers or
        connections. If they belong to the sink object, there is nothing to do.
        """

    def stall(self) -> AbstractContextManager[object]:
        """Return a context in which the target takes no commit, or does not answer. The default
        only gives the target no time.
        """
        return nullcontext()

    def leftovers(self) -> Sequence[str]:
        """Return what the target still holds of transactions and no reader sees: staged files, rows
        of a staging table. Nothing, if only the sink could know it.
        """
        return ()

    # --- the driver -------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _under_test(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.owner = Owner(
            application_id=f"contract-{secrets.token_hex(4)}",
            log_id=secrets.token_hex(4),
            run_epoch=10,
        )
        self._committers = []
        yield
        for committer in self._committers:
            committer.close()

    def opened(self) -> OpenSink:
        """Return the sink as a driver opens it."""
        opened = self.new_sink().open(SinkContext(checkpoint_timeout_s=self.deadline_s))
        self._committers.append(opened.committer)
        return opened

    def driver(self) -> Committer:
        """Return the committer of a driver."""
        return self.opened().committer

    def restarted(self) -> Committer:
        """Return the committer of a driver that starts after the one before was killed."""
        self.drop_process()
        return self.driver()

    def deadline(self) -> Deadline:
        """Return when a step that begins now must be done."""
        return Deadline(self.deadline_s)

    # --- the tasks --------------------------------------------------------------------------------

    def attempt(
        self,
        checkpoint: int = 1,
        subtask: int = 0,
        owner: Owner | None = None,
        source_offsets: Mapping[str, int] | None = None,
    ) -> Attempt:
        """Return another try of a subtask."""
        owner = owner or self.owner
        return Attempt(
            owner=owner,
            checkpoint_id=checkpoint,
            subtask=subtask,
            attempt_id=f"{owner.run_epoch}.{next(_TASK_ATTEMPT)}",
            source_offsets=source_offsets or {},
        )

    def task(self) -> AnyWriter:
        """Return the writer of a task."""
        return engine.travelled(self.opened().writer)

    def begun(self, attempt: Attempt, *batches: Sequence[int]) -> tuple[AnyWriter, Any]:
        """Return the writer of a task, and its open transaction with these numbers."""
        task = self.task()
        return task, engine.begun(task, attempt, [self.batch(numbers) for numbers in batches])

    def prepared(self, attempt: Attempt, *batches: Sequence[int]) -> Committable:
        """Return what the driver gets from a task that wrote these numbers."""
        one = engine.prepared(self.task(), attempt, [self.batch(numbers) for numbers in batches])
        assert one is not None, Requirement.COMMITTABLE.broken(
            f"pre_commit returned None for {batches}"
        )
        return one

    def prepared_and_killed(self, attempt: Attempt, *batches: Sequence[int]) -> Committable:
        """Return what the driver gets from a task whose process is gone by now, by SIGKILL."""
        work = functools.partial(
            engine.prepare_and_answer,
            self.opened().writer,
            attempt,
            [self.batch(numbers) for numbers in batches],
        )
        data = killed_after(work, self.deadline_s)
        assert data, Requirement.COMMITTABLE.broken(f"pre_commit returned None for {batches}")
        return Committable.from_json(data)

    def begun_and_killed(self, attempt: Attempt, *batches: Sequence[int]) -> None:
        """Write in a process that is killed with its transaction open."""
        work = functools.partial(
            engine.begin_and_answer,
            self.opened().writer,
            attempt,
            [self.batch(numbers) for numbers in batches],
        )
        killed_after(work, self.deadline_s)

    # --- what must be so --------------------------------------------------------------------------

    def commit(self, driver: Committer, *committables: Committable) -> None:
        """Commit, with nothing in the way: every token must come back committed."""
        outcomes = driver.commit(committables, self.deadline())
        self.assert_committed(outcomes, committables)

    def assert_committed(
        self, outcomes: Mapping[str, Outcome], committables: Sequence[Committable]
    ) -> None:
        """Assert that every committable, and nothing else, has come to its end."""
        tokens = {one.token for one in committables}
        assert set(outcomes) == tokens, Requirement.COMMIT.broken(
            f"outcomes for {sorted(outcomes)}, and {sorted(tokens)} were to be committed"
        )
        assert all(outcome.is_committed for outcome in outcomes.values()), (
            Requirement.COMMIT.broken(f"nothing was in the way, and it returned {dict(outcomes)}")
        )

    def assert_visible(self, numbers: Sequence[int], requirement: Requirement, when: str) -> None:
        """Assert what readers see, in any order."""
        seen = self.visible()
        assert sorted(seen) == sorted(numbers), requirement.broken(
            f"{when}: readers see {sorted(seen)} instead of {sorted(numbers)}"
        )

    def assert_nothing_left(self, requirement: Requirement, when: str) -> None:
        """Assert that nothing is open, and nothing hidden is left in the target."""
        lingering = self.driver().lingering(self.owner, self.deadline())
        assert not lingering, requirement.broken(f"{when}: {lingering} are still open")
        left = list(self.leftovers())
        assert not left, requirement.broken(f"{when}: the target still holds {left}")
