"""Brokers that die, stop and move in the middle of both phases: X16, K3, K4, K16.

The driver's side and the tasks run in this process, on the real sink, so that the fault comes
exactly between two requests of the protocol. A `Follower` reads all the while.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.cli.main import cli
from connectors.cluster.local_cluster import LocalCluster
from tests.auditor.reader import Follower, OpenTransaction, read_committed
from tests.both_halves import KafkaBothHalves
from tests.chaos.faults import Brokers
from tests.integration.checkpoints import Job, Run, hooked
from tests.integration.wire_helpers import begin, eventually, open_producer, settled
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import BrokerUnavailableError, HiddenCommitError, PhaseOneError

PATIENCE_S = 60.0
#: Between the EndTxn of the first transaction of a checkpoint and that of the second: no point of
#: the protocol, since they are sent at once; see `commits_one_by_one`.
BETWEEN_COMMITS = "between two EndTxn"
POINTS = {
    "k3_sigkill": (
        *("records_queued", "records_flushed", "offsets_sent"),  # phase 1, by one of two tasks
        *("decision_durable", BETWEEN_COMMITS, "one_committed"),  # phase 2, by the driver
    ),
    "k4_clean_stop": ("records_flushed", "offsets_sent", BETWEEN_COMMITS),
}
PHASE_TWO = ("decision_durable", BETWEEN_COMMITS, "one_committed")


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def one() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def job_on(tmp_path: Path) -> Iterator[Callable[[LocalCluster], Job]]:
    """Make the job of a test; afterwards nothing of it is open (S11)."""
    jobs: list[Job] = []

    def make(cluster: LocalCluster) -> Job:
        name = f"app-{uuid.uuid4().hex[:10]}"
        cluster.create_topic(f"out-{name}", partitions=2)
        job = Job(cluster.bootstrap_servers, f"out-{name}", name, tmp_path)
        job.checkpoint_timeout_s = PATIENCE_S
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.close()
        assert_no_open_transaction(job.bootstrap, job.id)


def commits_one_by_one(run: Run, between: Callable[[], None]) -> None:
    """Let the driver end its transactions one after the other, once, and something between."""
    together = run.sink.commit

    def commit(committables: Sequence[Committable], deadline: Deadline) -> Mapping[str, Outcome]:
        run.sink.commit = together  # type: ignore[method-assign]
        first = together(committables[:1], deadline)
        between()
        return {**first, **together(committables[1:], deadline)}

    run.sink.commit = commit  # type: ignore[method-assign]


def once_at(point: str, fault: Callable[[], None]) -> Callable[[str, int], None]:
    """Return a hook that does the fault at the first visit of a point."""
    left = [fault]
    return lambda name, _: left.pop()() if name == point and left else None


def checkpoint_with(run: Run, point: str, fault: Callable[[], None], *values: bytes) -> None:
    """Make one checkpoint with one fault in it, trying again what failed before its decision."""
    done: list[str] = []

    def do() -> None:
        done.append(point)
        fault()

    if point == BETWEEN_COMMITS:
        commits_one_by_one(run, do)
    with hooked(once_at(point, do)):
        for _ in range(4):
            try:
                run.checkpoint(*values)
            except PhaseOneError:
                # of this fault, or of the one before: brokers may still be on their way
                assert not done or point not in PHASE_TWO, "what is decided is never given up"
            else:
                assert done
                return
    raise AssertionError(f"with a fault at {point} the checkpoint never came through")


@long  # one broker that dies in a checkpoint: `test_flink_matrix_outage.py`
@pytest.mark.parametrize("how", POINTS)
def test_x16_the_coordinators_broker_restarts_at_every_step(three, job_on, how):
    """It is away for some seconds, its coordinators and leaders move; RF 3, min ISR 2.

    Progress within 60 s after each (K3), and the reader that looks on sees every record once.
    """
    job = job_on(three)
    brokers = Brokers(three, 3)
    victims: list[int] = []

    def restart() -> None:
        found = brokers.coordinator(job.id)
        victims.append(found if found is not None else len(victims) % 3)
        brokers.down([victims[-1]], gently=how == "k4_clean_stop")
        brokers.start([victims[-1]])  # beside: it takes seconds

    with Follower(three.bootstrap_servers, job.topic) as reader:
        run = job.start(subtasks=2)
        # The first that these brokers' coordinators see: a connection may break meanwhile.
        checkpoint_with(run, "batch_started", lambda: None, b"first-0", b"first-1")
        for number, point in enumerate(POINTS[how]):
            began = time.monotonic()
            checkpoint_with(run, point, restart, b"%d-0" % number, b"%d-1" % number)
            promised = len(job.promised())
            reader.until(lambda seen, n=promised: len(seen) >= n, timeout=PATIENCE_S)
            assert time.monotonic() - began < PATIENCE_S
            brokers.heal()
        checkpoint_with(run, "batch_started", lambda: None, b"last-0", b"last-1")
        assert len(victims) == len(POINTS[how])
        assert job.visible() == job.promised()
        assert sorted(record.value for record in reader.drain()) == job.promised()


@pytest.mark.long
def test_x16_k16_a_coordinator_that_is_gone_for_good_moves(three, job_on):
    """Killed between the two EndTxn, and not started again: two of three go on, with its ids."""
    job = job_on(three)
    brokers = Brokers(three, 3)
    run = job.start(subtasks=2)
    # The brokers may be on their way back from the test before: a connection may break meanwhile.
    checkpoint_with(run, "batch_started", lambda: None, b"a", b"b")
    try:
        victim = run.transactions[-1].slot.producer.transactional_id
        gone: list[int] = []

        def kill() -> None:
            gone.append(brokers.coordinator(victim.rpartition(".")[0]) or 0)
            brokers.down(gone)

        checkpoint_with(run, BETWEEN_COMMITS, kill, b"c", b"d")
        checkpoint_with(run, "batch_started", lambda: None, b"e", b"f")
        assert job.visible() == [b"a", b"b", b"c", b"d", b"e", b"f"]
        later = job.start(subtasks=2)  # a new driver on two brokers: nothing is left to settle
        assert later.recommitted == 0
        checkpoint_with(later, "batch_started", lambda: None, b"g", b"h")
        assert job.visible() == job.promised()
    finally:
        brokers.heal()


@pytest.mark.parametrize(
    ("point", "errors"),
    [
        # Flush and offsets meet no broker.
        pytest.param("records_queued", PhaseOneError, marks=pytest.mark.long),
        # The offsets are sent beside the flush: they are there already, or meet no broker.
        pytest.param(
            "records_flushed", (PhaseOneError, BrokerUnavailableError), marks=pytest.mark.long
        ),
    ],
)
def test_k16_every_call_is_bounded_while_the_only_broker_is_down(one, job_on, point, errors):
    """Flush, offsets, check and abort fail in bounded time and the same call succeeds later; a
    decided checkpoint waits for the broker.
    """
    job = job_on(one)
    job.start().checkpoint(b"a")
    job.checkpoint_timeout_s = 4.0
    run = job.start()
    with hooked(once_at(point, lambda: one.kill_broker(0))):
        began = time.monotonic()
        with pytest.raises(errors) as failed:
            run.checkpoint(b"b")
        assert time.monotonic() - began < 5 * job.checkpoint_timeout_s  # its abort as well
        assert all(part in str(failed.value) for part in ("where:", "cause:", "look at:"))
    one.start_broker(0)
    job.checkpoint_timeout_s = PATIENCE_S
    run = job.start()
    run.checkpoint()
    starting = threading.Thread(target=one.start_broker, args=(0,))

    def down() -> None:
        one.stop_broker(0)
        starting.start()

    checkpoint_with(run, "decision_durable", down, b"c")
    starting.join()
    assert job.visible() == job.promised() == [b"a", b"b", b"c"]


@pytest.fixture
def fragile(three, job_on) -> tuple[Job, int]:
    """A job whose output has one replica, and the broker that holds it."""
    job = job_on(three)
    job.topic, job.partitions = f"fragile-{job.id}", 1
    job.identity = {"sinks": orjson.dumps({"out": {"topic": job.topic}}).decode()}
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers})
    admin.create_topics([NewTopic(job.topic, 1, replication_factor=1)])[job.topic].result()
    eventually(lambda: job.topic in admin.list_topics().topics, True)
    return job, admin.list_topics().topics[job.topic].partitions[0].leader - 1


def operator(job: Job, *arguments: str) -> str:
    """Type a command; return what it prints."""
    found = CliRunner().invoke(cli, [*arguments, "--bootstrap", job.bootstrap])
    assert found.exit_code in (0, 1), found.output
    return found.output


def run_coordinated_elsewhere(three: LocalCluster, job: Job, broker: int) -> Run:
    """Start runs, each with an id of its own, until the broker has no part in that of the last."""
    while True:
        run = job.start()
        run.checkpoint(b"before")
        (name,) = run.ids()
        if Brokers(three, 3).coordinator(name.rpartition(".")[0]) not in (None, broker):
            return run


def hide_a_commit(three: LocalCluster, job: Job, broker: int, run: Run, *values: bytes) -> None:
    """Commit while the only replica is away: no leader, so no marker, for ever (KAFKA-20734)."""
    with hooked(once_at("decision_durable", lambda: three.kill_broker(broker))):
        run.checkpoint(*values)
    settled(run.sink.wire, *run.ids())  # CompleteCommit: for the coordinator it is over
    three.start_broker(broker)


@long  # `unit/test_sweeper.py`, `simulation/test_visibility.py` have it in `make test`
def test_x16_a_commit_that_a_broker_hides_is_found_and_mended(three, fragile, caplog):
    """KAFKA-20734: a partition without a leader gets no marker, and the transaction is complete.

    The driver stops before it could abort anything under that producer id, and again at its next
    start; an operator's command writes the marker. Nothing is lost, nothing is twice.
    """
    job, broker = fragile
    run = job.start(subtasks=2)
    run.checkpoint(b"a", b"b")
    hide_a_commit(three, job, broker, run, b"c", b"d")
    with pytest.raises(HiddenCommitError, match=job.topic) as refused:
        run.checkpoint(b"e", b"f")
    assert all(part in str(refused.value) for part in ("where:", "cause:", "look at:"))
    assert "event=hidden_commit" in caplog.text
    with pytest.raises(OpenTransaction):
        read_committed(job.bootstrap, job.topic, timeout=1.0)
    with pytest.raises(HiddenCommitError):
        job.start(subtasks=2)

    place = ("--checkpoint", str(job.folder))
    assert "hidden" in operator(job, "transactions", "list", *place)
    findings = operator(job, "doctor", "--output", job.topic)
    assert "committed, and no marker" in findings
    assert "sparkonce transactions write-markers" in findings
    written = operator(job, "transactions", "write-markers", "--yes", *place)
    assert f"{job.topic}-" in written
    assert "Nothing is hidden" in operator(job, "transactions", "write-markers", *place)
    assert "no marker" not in operator(job, "doctor", "--output", job.topic)

    assert job.visible() == job.promised() == [b"a", b"b", b"c", b"d"]
    later = job.start(subtasks=2)
    later.checkpoint()  # what was refused before its first record
    assert job.visible() == job.promised() == [b"a", b"b", b"c", b"d", b"e", b"f"]


@long  # it shows that the one above can fail
def test_x16_can_fail_without_the_look_an_abort_takes_committed_records_along(
    three, fragile, monkeypatch
):
    """The same story with the look at the partitions switched off: a record is gone for good,
    and every answer of the coordinator says that it was committed.

    The producer goes on only if its coordinator answered, so that is on another broker: under a
    new producer id nothing is aborted, and readers wait for ever instead.
    """
    monkeypatch.setattr(KafkaBothHalves, "hidden", lambda *_: [])
    job, broker = fragile
    run = run_coordinated_elsewhere(three, job, broker)
    hide_a_commit(three, job, broker, run, b"hidden")

    def fails() -> None:
        raise PhaseOneError("an attempt of the next checkpoint fails")

    with (
        hooked(once_at("committables_collected", fails)),
        pytest.raises(PhaseOneError, match="an attempt of the next"),
    ):
        run.checkpoint(b"next")
    assert len(run.ids()) == 1
    job.start().checkpoint()
    assert job.visible() == [one for one in job.promised() if one != b"hidden"]
    assert b"hidden" in job.promised()


@long
def test_what_somebody_else_holds_open_is_no_hidden_commit(three, job_on):
    """Readers of the topic wait for him; the driver does not."""
    job = job_on(three)
    stranger = open_producer(three.bootstrap_servers, f"stranger-{job.id}")
    begin(stranger, job.topic, ["x"], partition=0)
    other = open_producer(three.bootstrap_servers, f"other-{job.id}")
    begin(other, job.topic, ["y"], partition=1)
    run = job.start(subtasks=2)
    for value in (b"a", b"b", b"c"):
        report = run.checkpoint(value, value)
        assert report.phase_ms["start"] < 5000
    for producer in (stranger, other):
        producer.commit_transaction()
    assert job.visible() == sorted([*job.promised(), b"x", b"y"])
