"""Flink's sink scenarios (acceptance F) in which the broker itself goes away, or forgets.

Brokers of this module's own: they are stopped, killed, and set up to forget transactional ids.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.sink import kafka_writer
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaTransaction
from connectors.testing.topics import TopicFactory
from tests.auditor.reader import Follower
from tests.both_halves import KafkaBothHalves
from tests.integration.checkpoints import Job, Run, hooked, row
from tests.integration.job_process import PATIENCE_S as PROCESS_S
from tests.integration.test_continuous import PARTITIONS, Copy
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long, sampled
from tests.waiting import until
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.decision_log import DecisionLog
from transactions.errors import (
    BrokerUnavailableError,
    DeliveryError,
    OutcomeUnknownError,
    PhaseOneError,
    SparkOnceError,
)
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover, settle_last_decision

PATIENCE_S = 1.0
#: A step may end so much later than its deadline: an attempt to connect, a thread's turn.
GRACE_S = 4.0
#: The broker may forget a slow driver's own id before its first checkpoint: a new run claims it.
AGAIN = "fixed-delay(attempts=1000, delay=100ms)"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def only_broker() -> Iterator[LocalCluster]:
    with LocalCluster() as one:
        yield one


@pytest.fixture
def cluster(only_broker: LocalCluster) -> LocalCluster:
    """One broker, running: a test that failed may have left it dead."""
    only_broker.start_broker(0)
    return only_broker


@pytest.fixture(scope="module")
def forgetful() -> Iterator[LocalCluster]:
    """A broker that forgets an idle transactional id within seconds, and times out as fast."""
    properties = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with LocalCluster(properties=properties) as one:
        yield one


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(cluster: LocalCluster, **options: object) -> Job:
        name = f"app-{uuid.uuid4().hex[:10]}"
        cluster.create_topic(f"{name}-out", 2)
        servers, topic = cluster.bootstrap_servers, f"{name}-out"
        jobs.append(Job(servers, topic, name, tmp_path / name, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
        assert_no_open_transaction(job.bootstrap, job.id)


def some(count: int) -> tuple[bytes, ...]:
    return tuple(b"%06d" % next(_numbers) for _ in range(count))


def audited(job: Job, records: int) -> None:
    """Assert that what is visible is what the engine believes, each record once (S11 first)."""
    assert job.visible() == job.promised()
    assert len(job.promised()) == records


# -- the broker is stopped -------------------------------------------------------------------------


class Stopwatch:
    """Runs steps against a broker that is not there: each ends in time, with one typed error."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def fails(self, name: str, kind: type[SparkOnceError], step: Callable[[], object]) -> None:
        with pytest.raises(kind) as failure:
            self.ends(name, step)
        assert not failure.value.permanent, name  # a restart strategy tries it again
        assert str(failure.value).startswith(failure.value.what)

    def ends(self, name: str, step: Callable[[], object]) -> None:
        began = time.monotonic()
        try:
            step()
        finally:
            self.seconds[name] = time.monotonic() - began


def begun(run: Run, number: int) -> KafkaTransaction:
    """Open a transaction of its own, with a record that has reached the broker."""
    transaction = run.sink.begin_transaction(run.attempt(number, 0))
    run.sink.invoke(transaction, row(b"never visible"))
    assert transaction.slot is not None
    transaction.slot.producer.flush(Deadline(20))
    return transaction


def impatient(transaction: KafkaTransaction) -> KafkaTransaction:
    transaction.deadline = Deadline(PATIENCE_S)
    return transaction


@long
def test_f33_each_step_fails_in_bounded_time_without_a_broker(
    cluster: LocalCluster, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    """Write, flush, offsets, close, check, commit, sweep, recover: typed, in time, nothing lost."""
    monkeypatch.setattr(kafka_writer, "_ABORT_SECONDS", PATIENCE_S)
    job = make_job(cluster, kafka={"queue.buffering.max.messages": "10"})
    run = job.start(subtasks=2)
    run.checkpoint(*some(4))
    run.dies_at("decision_durable", *some(4))
    sink, sinks, decision = run.sink, {"out": run.sink}, run.log.state.decision
    assert decision is not None
    write, flush, offsets, close = (begun(run, 1) for _ in range(4))
    audited_before = job.promised()
    cluster.stop_broker(0)
    sink.invoke(flush, row(b"never visible"))  # queued: nothing has to fail yet

    watch = Stopwatch()
    full = row(*some(100))
    watch.fails("write", DeliveryError, lambda: sink.invoke(impatient(write), full))
    watch.fails("flush", DeliveryError, lambda: sink.pre_commit(impatient(flush)))
    watch.fails("offsets", PhaseOneError, lambda: sink.pre_commit(impatient(offsets)))
    watch.ends("close", lambda: sink.abort(close))  # it can do no more than say so
    first = impatient(sink.begin_transaction(run.attempt(1, 0)))
    watch.fails("begin", PhaseOneError, lambda: sink.invoke(first, row(b"never visible")))
    late = decision.committables
    watch.fails(
        "check", BrokerUnavailableError, lambda: sink.check_prepared(late, Deadline(PATIENCE_S))
    )
    outcomes: dict[str, Outcome] = {}
    watch.ends("commit", lambda: outcomes.update(sink.commit(late, Deadline(PATIENCE_S))))
    assert set(outcomes.values()) == {Outcome.UNKNOWN}
    unknown = (BrokerUnavailableError, OutcomeUnknownError)
    watch.fails(
        "settle", unknown, lambda: settle_last_decision(run.log, sinks, Deadline(PATIENCE_S))
    )
    watch.fails(
        "sweep",
        BrokerUnavailableError,
        lambda: sink.lingering(run.log.owner, Deadline(PATIENCE_S)),
    )
    job.checkpoint_timeout_s = PATIENCE_S
    watch.fails("recover", BrokerUnavailableError, job.start)
    watch.ends("end", run.close)
    late_ones = {name: took for name, took in watch.seconds.items() if took > PATIENCE_S + GRACE_S}
    assert not late_ones

    cluster.start_broker(0)
    job.checkpoint_timeout_s = 30.0
    again = job.start(subtasks=3)
    assert again.recommitted == 2
    again.checkpoint()
    again.checkpoint(*some(2))
    assert set(audited_before) < set(job.promised())
    audited(job, 10)


# -- the broker is killed in the middle ------------------------------------------------------------


@pytest.mark.parametrize(
    "step", sampled(["records_queued", "offsets_sent", "decision_durable"], "decision_durable")
)
def test_f49_x16_the_broker_is_killed_in_a_checkpoint_and_comes_back(
    cluster: LocalCluster, make_job: Callable[..., Job], step: str
):
    """The only leader there is. The run goes on, or fails and the next one does; all of it once."""
    job = make_job(cluster)
    run = job.start(subtasks=2)
    run.checkpoint(*some(4))
    # One broker killed between PREPARE_COMMIT and the markers never writes them (Kafka 4.4, seen).
    audited(job, 4)
    killed: list[str] = []

    def kills(point: str, _checkpoint: int) -> None:
        if point == step and not killed:
            killed.append(point)
            cluster.kill_broker(0)
            cluster.start_broker(0)

    with hooked(kills):
        run = until_done(job, run, *some(4))
    assert killed
    run.checkpoint(*some(4))
    audited(job, 12)


def until_done(job: Job, run: Run, *values: bytes) -> Run:
    """Make a checkpoint; a run that fails is followed by another, as a restart strategy does it."""
    before = len(job.commits)
    for _ in range(5):
        try:
            run.checkpoint(*values)
        except SparkOnceError as error:
            if error.permanent:
                raise
            run = job.start(subtasks=2)
        if len(job.commits) > before:
            return run
    raise AssertionError("it never came to its end")


# -- the broker forgets ----------------------------------------------------------------------------


def forgotten(run: Run) -> None:
    """Wait until the broker knows none of the ids that this run has written under."""
    wire, ids = run.sink.wire, sorted(run.ids())
    until(lambda: all(one.error for one in wire.describe(ids, Deadline(30)).values()), pause_s=0.1)


@pytest.mark.parametrize("step", sampled(["all_committed", "decision_durable"]))
def test_x19_recovery_after_the_ids_have_expired(
    forgetful: LocalCluster, make_job: Callable[..., Job], step: str
):
    """Committed: the markers prove it. Timed out before: their absence does, and it is healed."""
    job = make_job(forgetful, timeout_ms=2000)
    run = job.start(subtasks=2)
    run.checkpoint(*some(4))
    run.dies_at(step, *some(4))
    forgotten(run)
    again = job.start(subtasks=2)
    assert again.recommitted == 0
    report = again.checkpoint()
    assert (report.replayed, report.healed) == (True, 0 if step == "all_committed" else 2)
    again.checkpoint(*some(4))
    audited(job, 12)


def test_f14_an_idle_producer_whose_id_has_expired_is_replaced(
    forgetful: LocalCluster, make_job: Callable[..., Job]
):
    """A stream without data for a week, in seconds: the attempt fails at most, the next is fine."""
    job = make_job(forgetful)
    run = job.start(subtasks=2)
    run.checkpoint(*some(4))
    idle = run.ids()
    forgotten(run)
    run = until_done(job, run, *some(4))
    assert run.ids() - idle
    audited(job, 8)


def rested(copy: Copy) -> None:
    """Wait until the pipeline has written down that nothing is pending; it prints nothing then."""
    until(lambda: (last := copy.log().decision) and not last.committables, PROCESS_S, pause_s=0.1)


def all_forgotten(copy: Copy) -> None:
    """Wait until the broker knows none of a pipeline's ids, and expire its offsets."""
    admin = KafkaAdminClient(bootstrap_servers=copy.bootstrap)

    def is_forgotten() -> bool:
        listed = itertools.chain.from_iterable(admin.list_transactions().values())
        return not any(one.transactional_id.startswith(f"{copy.app}.") for one in listed)

    try:
        until(is_forgotten, PROCESS_S, pause_s=0.1)
    finally:
        admin.close()
    groups = AdminClient({"bootstrap.servers": copy.bootstrap})
    found = [one.group_id for one in groups.list_consumer_groups().result().valid]
    ours = [one for one in found if one.partition(".")[0] == copy.app]
    assert copy.app in ours
    for group in groups.delete_consumer_groups(ours).values():
        group.result()


@long
def test_a_continuous_pipeline_that_rests_longer_than_the_broker_remembers_goes_on(
    forgetful: LocalCluster, tmp_path: Path
):
    """Killed while it was idle, then stopped in order: its log says that all of it is committed."""
    topics = TopicFactory(forgetful)
    copy = Copy(
        bootstrap=forgetful.bootstrap_servers,
        app=f"app-{uuid.uuid4().hex[:10]}",
        source=str(topics("source", PARTITIONS)),
        output=str(topics("output", PARTITIONS)),
        folder=tmp_path,
    )
    with Follower(copy.bootstrap, copy.output) as follower:
        copy.produce()
        with copy.running(restart_strategy=AGAIN) as run:
            follower.until(lambda seen: len(seen) >= copy.produced, timeout=PROCESS_S)
            rested(copy)
            run.kill()
        all_forgotten(copy)
        copy.run_to_the_end(follower, restart_strategy=AGAIN)
        all_forgotten(copy)
        copy.audit(follower)
    # What a third start would do before it has a session.
    backend = LocalFileBackend(tmp_path / "checkpoint" / "decisions")
    log = DecisionLog.open(backend, application_id=copy.app, identity=copy.log().identity)
    options = KafkaSink(bootstrap_servers=copy.bootstrap, topic=copy.output, name=copy.output)
    sink = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=PATIENCE_S)
    settled = recover(log, {sink.name: sink}, Deadline(PATIENCE_S))
    sink.close()
    assert (settled.recommitted, settled.lost) == (0, [])
