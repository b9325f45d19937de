"""Flink's sink scenarios (acceptance F) on a real broker: crash, rescale, restore, fence, leak.

Without Spark: the sink, the decision log, the coordinator and recovery are driven by
`tests/integration/checkpoints.py`. What Flink does by a *changed* prefix of transactional ids per
run is the run epoch in our ids; everything else has the same story and the same end.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.kafka.sink.kafka_writer import KafkaTransaction
from tests.both_halves import KafkaBothHalves
from tests.integration.checkpoints import Job, Run, hooked, row
from tests.integration.wire_helpers import write_over_marker
from tests.tiers import sampled
from transactions.clock import Deadline
from transactions.errors import (
    FencedError,
    IdentityMismatchError,
    OutcomeUnknownError,
    PhaseOneError,
)
from transactions.log_entries import ACCEPT_LOSS, Resolved

#: Flink's rescale matrix, parallelism before and after, and a walk that takes each of them once.
RESCALES = {(1, 2), (2, 3), (2, 5), (3, 5), (5, 6), (6, 5), (5, 2), (5, 3), (3, 2), (2, 1)}
WALK = (1, 2, 3, 5, 6, 5, 3, 2, 5, 2, 1)
#: Where a checkpoint dies between its first record and its last acknowledgement.
STEPS = (
    "records_flushed",
    "offsets_sent",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "all_committed",
    "batch_finished",
)
_numbers = itertools.count()


@pytest.fixture
def job(
    bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path
) -> Iterator[Job]:
    one = Job(bootstrap, topic(2), application_id, tmp_path)
    yield one
    one.close()


def some(count: int) -> tuple[bytes, ...]:
    return tuple(b"%06d" % next(_numbers) for _ in range(count))


def audited(job: Job, records: int) -> None:
    """Assert that what is visible is what the engine believes, each record once (S11 first)."""
    assert job.visible() == job.promised()
    assert len(job.promised()) == records


# -- crash and rescale -----------------------------------------------------------------------------


def test_f7_f46_a_crash_before_the_first_checkpoint_then_one_subtask(job: Job):
    """Five subtasks are prepared, nothing is decided; a smaller run neither waits nor repeats."""
    first = job.start(subtasks=5)
    first.dies_at("prepared_checked", *some(20))
    assert len(first.open_ids()) == 5
    second = job.start(subtasks=1)
    assert second.open_ids() == []
    second.checkpoint()
    second.checkpoint(*some(3))
    audited(job, 23)


def test_f8_f17_every_rescale_with_a_death_in_each_run(job: Job):
    """One walk over Flink's ten rescales: each run finishes what was left, and dies in turn."""
    assert set(itertools.pairwise(WALK)) == RESCALES
    used: set[str] = set()
    for number, subtasks in enumerate(WALK):
        run = job.start(subtasks)
        assert number == 0 or run.open_ids() == []
        run.checkpoint(*some(12))  # from the second run on: what the one before left
        step = STEPS[number % len(STEPS)]
        in_a_task = step in {"records_flushed", "offsets_sent"}
        run.dies_at(step, *some(12), nth=subtasks if in_a_task else 1)
        assert run.ids().isdisjoint(used)  # F17: an id is never taken over
        used |= run.ids()
    job.start(1).checkpoint()
    audited(job, 12 * (len(WALK) + 1))


def test_f12_f46_scaling_down_and_up_beside_lingering_transactions(job: Job):
    """4 > 2 > 3, with what others left open: of our log it is ended, of others it is spared."""
    first = job.start(subtasks=4)
    first.checkpoint(*some(8))
    first.dies_at("decision_durable", *some(8))
    owner = first.log.owner
    ours = [lingering(first, owner) for _ in range(2)]
    foreign = [
        lingering(first, dataclasses.replace(owner, log_id="another")),
        lingering(first, dataclasses.replace(owner, application_id=f"{job.id}-2")),
        lingering(first, dataclasses.replace(owner, run_epoch=owner.run_epoch + 100)),
    ]
    second = job.start(subtasks=2)
    assert second.recommitted == 4
    assert states(second, ours) == ["Empty"] * 2
    second.checkpoint()
    second.dies_at("offsets_sent", *some(8))
    third = job.start(subtasks=3)
    third.checkpoint()
    third.checkpoint(*some(8))
    assert states(third, foreign) == ["Ongoing"] * 3
    third.sink.recover_and_abort(foreign, Deadline(10))  # an operator ends them: they hide ours
    audited(job, 32)


@pytest.mark.parametrize("decided", sampled([1, 2, 3], 2))
def test_f13_what_was_decided_is_spared_until_it_is_committed(
    job: Job, decided: int, monkeypatch: pytest.MonkeyPatch
):
    """When recovery begins to commit, exactly the decided transactions are still open."""
    first = job.start(subtasks=decided)
    first.dies_at("decision_durable", *some(6))
    for _ in range(2):
        lingering(first, first.log.owner)
    assert len(first.open_ids()) == decided + 2
    prepared = {one.slot.producer.transactional_id for one in first.transactions if one.slot}
    open_then: list[set[str]] = []
    settle = KafkaBothHalves.recover_and_commit

    def watched(self, committables, deadline):
        open_then.append(set(self.lingering(second_owner(), deadline)))
        return settle(self, committables, deadline)

    def second_owner():
        return job.runs[-1].log.owner

    monkeypatch.setattr(KafkaBothHalves, "recover_and_commit", watched)
    second = job.start(subtasks=1)
    assert open_then == [prepared]
    assert second.recommitted == decided
    assert second.open_ids() == []
    second.checkpoint()
    audited(job, 6)


def lingering(run: Run, owner) -> str:
    """Leave a transaction open, with a record at the broker, and return its id."""
    attempt = dataclasses.replace(run.transactions[-1].attempt, owner=owner, source_offsets={})
    transaction = run.sink.begin_transaction(attempt)
    run.sink.invoke(transaction, row(b"lingering"))
    return flushed(transaction)


def flushed(transaction: KafkaTransaction) -> str:
    assert transaction.slot is not None
    transaction.slot.producer.flush(Deadline(10))
    return transaction.slot.producer.transactional_id


def states(run: Run, ids: list[str]) -> list[str]:
    found = run.sink.wire.describe(ids, Deadline(10))
    return [found[one].state for one in ids]


# -- restore ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", sampled(["offsets_sent", "decision_durable", "one_committed"], "decision_durable")
)
def test_f42_x15_the_old_instance_wakes_up_after_its_successor(job: Job, step: str):
    """It was not closed: its checkpoint goes on later, changes nothing, and says once why."""
    old = job.start(subtasks=2)
    old.checkpoint(*some(4))
    with asleep_at(step) as zombie, ThreadPoolExecutor(1) as beside:
        stopped = beside.submit(old.checkpoint, *some(4))
        zombie.wait_until_asleep()
        written = old.transactions[2:]
        new = job.start(subtasks=3)
        new.checkpoint()
        new.checkpoint(*some(4))
        zombie.wake_up()
        with pytest.raises((FencedError, PhaseOneError)) as raised:
            stopped.result(30)
    decided = step != "offsets_sent"
    assert isinstance(raised.value, FencedError) is decided
    for one in written:  # closing what it wrote meets a fence, no more
        assert one.slot is not None
        with pytest.raises(PhaseOneError):
            one.slot.producer.abort(Deadline(10))
    new.checkpoint(*some(4))
    audited(job, 16)


def test_f43_x10_the_same_checkpoint_is_restored_twice(job: Job, tmp_path: Path):
    """A backup of the folder, with aborted work between its two restores."""
    first = job.start()
    first.checkpoint(b"42")
    first.dies_at("decision_durable", b"43")
    backup = kept(job, tmp_path / "backup")
    second = job.start(subtasks=2)
    second.checkpoint()
    second.dies_at("prepared_checked", b"44", b"45")
    restored = restore(job, backup)
    third = restored.start(subtasks=2)
    assert third.recommitted == 0  # the first restore has committed it: that is proven, not done
    third.checkpoint()
    audited(restored, 2)
    third.checkpoint(b"46")
    assert restored.visible() == [b"42", b"43", b"46"]
    restored.close()


def test_f44_a_restored_transaction_was_committed_and_its_id_used_again(job: Job, tmp_path: Path):
    """Only the marker in it can prove the commit: describing shows the next one of the id."""
    first = job.start()
    with hooked(lambda point, _: kept(job, tmp_path / "b") if point == "all_committed" else None):
        first.checkpoint(b"42")
    backup = dataclasses.replace(job, folder=tmp_path / "b", offsets={0: (b"42",)}, commits=set())
    first.dies_at("prepared_checked", b"43")
    assert len(first.ids()) == 1  # the same producer, under the same id
    restored = restore(job, backup)
    second = restored.start()
    assert second.recommitted == 0
    assert second.open_ids() == []
    report = second.checkpoint()
    assert report.replayed
    audited(restored, 1)
    restored.close()


def test_f6_f47_another_prefix_is_another_application_and_refused(job: Job):
    """Flink aborts what the old prefix left; we would not know it, so the log says whose it is."""
    first = job.start()
    first.dies_at("decision_durable", b"42")
    with pytest.raises(IdentityMismatchError, match=job.id):
        dataclasses.replace(job, application_id=f"{job.id}-2", runs=[]).start()
    assert len(first.open_ids()) == 1
    job.start().checkpoint()
    audited(job, 1)


def kept(job: Job, folder: Path) -> Job:
    """Return a backup: the log's folder, and what the engine has written down by now."""
    shutil.copytree(job.folder / "decisions", folder / "decisions")
    return dataclasses.replace(
        job, folder=folder, offsets=dict(job.offsets), commits=set(job.commits), runs=[]
    )


def restore(job: Job, backup: Job) -> Job:
    """Give the backup to a new driver on a machine that has no folder of the present."""
    shutil.rmtree(job.folder / "decisions")
    return backup


class Asleep:
    """A thread that is stopped at a point of the protocol, as SIGSTOP stops a process."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._asleep, self._awake = threading.Event(), threading.Event()

    def __call__(self, point: str, _checkpoint: int) -> None:
        if point == self._point and not self._asleep.is_set():
            self._asleep.set()
            assert self._awake.wait(60)

    def wait_until_asleep(self) -> None:
        assert self._asleep.wait(60)

    def wake_up(self) -> None:
        self._awake.set()


@contextmanager
def asleep_at(point: str) -> Iterator[Asleep]:
    one = Asleep(point)
    with hooked(one):
        try:
            yield one
        finally:
            one.wake_up()


def test_f51_a_commit_that_cannot_be_proven_fails_each_start_until_a_person_decides(job: Job):
    """Flink logs it and goes on once the timeout has passed; here nothing is passed over."""
    first = job.start()
    first.checkpoint(b"42")
    first.dies_at("decision_durable", b"43")
    forget(first)
    job.checkpoint_timeout_s, enough_s = 2.5, job.checkpoint_timeout_s
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="resolve") as unknown:
            job.start()
        assert "checkpoint 1" in unknown.value.where
    decide(job, ACCEPT_LOSS)
    job.checkpoint_timeout_s = enough_s
    last = job.start()
    last.checkpoint()
    last.checkpoint(b"44")
    assert job.visible() == [b"42", b"44"]


def forget(run: Run) -> None:
    """Abort what is decided and hide the proof: somebody else writes where its marker would be."""
    for one in run.log.state.decision.committables:
        run.sink.wire.fence(one.transactional_id, one.timeout_ms, Deadline(10))
        write_over_marker(run.job.bootstrap, one)


def decide(job: Job, verdict: str) -> None:
    """Do what `sparkonce transactions resolve` does."""
    log = job.runs[-1].log
    decision = log.state.decision
    assert decision is not None
    tokens = tuple(one.token for one in decision.committables)
    number = decision.checkpoint_id
    log.resolve(Resolved(checkpoint_id=number, verdict=verdict, tokens=tokens, note="a test"))


# -- fence, failure, reuse -------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write", "flush", "offsets", "commit", "close"])
def test_f11_f22_a_writer_fenced_from_outside_says_so_once(job: Job, step: str):
    """Each later call fails by one typed error that a restart may heal; the next id is fine."""
    run = job.start()
    job.offsets[0] = some(1)
    sink, transaction = run.sink, run.sink.begin_transaction(run.attempt(0, 0))
    sink.invoke(transaction, row(b"lost"))
    fenced = flushed(transaction)
    producer = transaction.slot.producer
    sink.wire.fence(fenced, job.timeout_ms, Deadline(10))
    failures: list[Exception] = []
    match step:
        case "write":
            sink.invoke(transaction, row(b"lost too"))
            failures.append(raised(lambda: producer.flush(Deadline(10))))
            failures.append(raised(lambda: sink.invoke(transaction, row(b"and this"))))
        case "flush":
            sink.invoke(transaction, row(b"lost too"))
            failures.append(raised(lambda: sink.pre_commit(transaction)))
        case "offsets":
            failures.append(raised(lambda: sink.pre_commit(transaction)))
        case "commit":
            failures.append(raised(lambda: producer.resync(Deadline(10))))
    sink.abort(transaction)  # closing says nothing more: what was to be said was said
    for failure in failures:
        assert isinstance(failure, PhaseOneError)
        assert not failure.permanent
        assert fenced in str(failure)
    run.checkpoint()
    assert fenced not in {one.slot.producer.transactional_id for one in run.transactions}
    audited(job, 1)


def raised(step: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at its type
        step()
    return caught.value


def test_f14_a_producer_is_used_again_after_a_commit_and_never_after_a_failure(job: Job):
    run = job.start()
    run.checkpoint(*some(2))
    run.checkpoint(*some(2))
    first, second = (one.slot for one in run.transactions)
    assert first is second

    def fails(point: str, _checkpoint: int) -> None:
        if point == "records_flushed":
            raise PhaseOneError("a task fails")

    with hooked(fails), pytest.raises(PhaseOneError, match="a task fails"):
        run.checkpoint(*some(2))
    run.checkpoint()  # the same one again: a producer belongs to one attempt of it anyway
    run.checkpoint(*some(2))  # a later one would take whatever is still in the pool
    assert all(one.slot is not first for one in run.transactions[-2:])
    assert len(run.ids()) == 2
    audited(job, 8)


# -- leaks -----------------------------------------------------------------------------------------

_CYCLES = 100
_FIRST = 10  # until imports, caches and pools of threads are warm
_NOISE = 10  # of what else lives in this process; one per cycle would be 90


@pytest.mark.long
def test_f50_a_hundred_runs_leave_no_thread_and_no_file_behind(job: Job):
    """Each is opened, recovers, makes a checkpoint and is closed, as a restart strategy does."""
    threads, files = 0, 0
    for cycle in range(_CYCLES):
        run = job.start()
        run.checkpoint(*some(1))
        run.close()
        job.runs.clear()
        if cycle == _FIRST:
            threads, files = threads_and_files()
    threads_now, files_now = threads_and_files()
    assert threads_now - threads < _NOISE
    assert files_now - files < _NOISE
    audited(job, _CYCLES)


def threads_and_files() -> tuple[int, int]:
    """Count what this process has; librdkafka's threads are not Python's."""
    gc.collect()
    task, fd = Path("/proc/self/task"), Path("/proc/self/fd")
    return len(list(task.iterdir())), len(list(fd.iterdir()))
