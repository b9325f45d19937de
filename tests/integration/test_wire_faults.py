"""Lost, late and repeated requests between our classes and a real broker: X5, X6, X7, X16.

Every client of these tests goes through `tests/chaos/kafka_proxy.py`; readers do not. The tasks
of a checkpoint run in this process, with the sink's own producers; the driver's side is the
coordinator with a decision log on disk.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message

from connectors.clients.client_log import LIBRDKAFKA
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native.native_producer import NativeTransactionalProducer
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import read_committed
from tests.both_halves import KafkaBothHalves
from tests.chaos.kafka_proxy import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    Action,
    Rule,
)
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.integration.wire_helpers import settled, values
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import sampled
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator, CheckpointReport
from transactions.decision_log import DecisionLog
from transactions.errors import PhaseOneError, SparkOnceError
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt

REQUEST_TIMEOUT_S = 1.0
CHECKPOINT_TIMEOUT_S = 60.0
DRIVER, WORKER = "kafka-python", "rdkafka"  # how their client ids begin
TRANSACTION_TIMEOUT_MS = 60_000
#: A refused or lost request of a producer is tried again within a second and not in a minute.
IMPATIENT = {"socket.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    expiry = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with ProxiedCluster(properties=expiry) as one:
        yield one


@dataclass
class Driver:
    """One run of a pipeline: the driver's side, and tasks in this process."""

    cluster: ProxiedCluster
    folder: Path
    application_id: str
    topics: tuple[str, ...]
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    request_timeout_s: float = REQUEST_TIMEOUT_S
    committables: list[Committable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sinks = {topic: self._sink(topic) for topic in self.topics}
        self.log = DecisionLog.open(
            LocalFileBackend(self.folder / "decisions"),
            application_id=self.application_id,
            identity={},
        )
        self.settlement = recover(self.log, self.sinks, Deadline(CHECKPOINT_TIMEOUT_S))
        self.coordinator = CheckpointCoordinator(
            self.log, self.sinks, timeout_s=CHECKPOINT_TIMEOUT_S, stopping=lambda: False
        )
        self._attempts = itertools.count()

    def _sink(self, topic: str) -> KafkaBothHalves:
        options = KafkaSink(
            bootstrap_servers=self.cluster.proxied_servers, topic=topic, kafka=IMPATIENT
        )
        sink = KafkaBothHalves(
            options, timeout_ms=self.timeout_ms, checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S
        )
        sink._wire = CoordinatorWire(options.settings, request_timeout_s=self.request_timeout_s)
        return sink

    def checkpoint(
        self, number: int, *values: bytes, halfway: Callable[[], None] | None = None
    ) -> CheckpointReport:
        """Make a checkpoint: one task per topic writes `values`, `halfway` after the first."""

        def task(sink: KafkaBothHalves, subtask: int) -> Committable:
            one = sink.begin_transaction(self._attempt(number, subtask))
            try:
                for place, value in enumerate(values):
                    if place == 1 and halfway is not None:
                        sink._slot(one).producer.flush(one.deadline)
                        halfway()
                    sink.invoke(one, pa.record_batch({"value": pa.array([value], pa.binary())}))
                prepared = sink.pre_commit(one)
            except BaseException:
                sink.abort(one)
                raise
            assert prepared is not None
            return prepared

        def phase_one() -> list[Committable]:
            self.committables = [task(s, n) for n, s in enumerate(self.sinks.values())]
            return self.committables

        made = Checkpoint(
            checkpoint_id=number, query_id="q", start_offsets=("",), end_offsets=(f"{number}",)
        )
        return self.coordinator.commit_batch(made, phase_one)

    def ids(self) -> set[str]:
        return {one.transactional_id for one in self.committables}

    def close(self) -> None:
        self.coordinator.close()
        for sink in self.sinks.values():
            sink.close()

    def _attempt(self, number: int, subtask: int) -> Attempt:
        return Attempt(
            owner=self.coordinator.owner,
            checkpoint_id=number,
            subtask=subtask,
            attempt_id=f"{self.coordinator.owner.run_epoch}.{next(self._attempts)}",
            source_offsets={f"{self.topics[0]}-0": number} if subtask == 0 else {},
            last_decided=self.coordinator.last_decided(),
            retired=self.coordinator.retired(),
        )


@pytest.fixture
def driver(cluster: ProxiedCluster, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Start runs of one pipeline; afterwards no rule is left and no transaction is open (S11)."""
    application_id = f"app-{uuid.uuid4().hex[:10]}"
    runs: list[Driver] = []
    topics: list[str] = []

    def start(outputs: int = 2, **options: int) -> Driver:
        for number in range(len(topics), outputs):
            topics.append(f"out{number}-{application_id}")
            cluster.create_topic(topics[-1])
        runs.append(Driver(cluster, tmp_path, application_id, tuple(topics), **options))
        return runs[-1]

    yield start
    crash_points.install(None)
    cluster.proxy.clear()
    for run in runs:
        run.close()
    assert_no_open_transaction(cluster.bootstrap_servers, application_id)


def visible(run: Driver) -> list[list[bytes | None]]:
    """Return what an independent read_committed reader finds in each topic."""
    servers = run.cluster.bootstrap_servers
    return [[record.value for record in read_committed(servers, one)] for one in run.topics]


@pytest.mark.parametrize(
    "how", sampled([Action.DROP_RESPONSE, Action.CLOSE_AFTER], Action.CLOSE_AFTER)
)
def test_x6_the_answer_to_end_txn_is_lost(driver, cluster, how):
    """The broker has committed; we learn it by describing, and never use the producer again."""
    run = driver()
    lost = cluster.proxy.add(Rule(END_TXN, how, client=DRIVER))
    run.checkpoint(0, b"a", b"b")
    assert lost.answers == 1
    doubtful = run.coordinator.retired()
    assert doubtful
    assert doubtful <= run.ids()
    run.checkpoint(1, b"c")
    assert run.ids() & doubtful == set()  # rule 3: the id that met a doubt is gone
    assert visible(run) == [[b"a", b"b", b"c"]] * 2


def test_x6_the_request_itself_is_lost(driver, cluster):
    """Nothing reached the broker: settling finds the transaction open and ends it."""
    run = driver()
    cluster.proxy.add(Rule(END_TXN, Action.DROP_REQUEST, client=DRIVER))
    report = run.checkpoint(0, b"a", b"b")
    assert report.recommitted >= 1
    run.checkpoint(1, b"c")
    assert visible(run) == [[b"a", b"b", b"c"]] * 2


def test_x6_end_txn_arrives_twice(driver, cluster):
    """A repeated commit on an unbumped epoch is answered like the first, and changes nothing."""
    run = driver(request_timeout_s=20)  # a late answer would be a doubt
    cluster.proxy.add(Rule(END_TXN, Action.REPEAT_REQUEST, times=2, client=DRIVER))
    run.checkpoint(0, b"a", b"b")
    assert run.coordinator.retired() == frozenset()
    run.checkpoint(1, b"c")
    assert visible(run) == [[b"a", b"b", b"c"]] * 2


def delayed_end_txn(run: Driver, cluster: ProxiedCluster, seen: list[list[str]]) -> None:
    """Checkpoint 0 with its EndTxn held back until the transaction of checkpoint 1 is half full.

    What a reader could see in the moment when the late EndTxn had been done is appended to `seen`.
    """
    late = cluster.proxy.add(Rule(END_TXN, Action.DELAY_REQUEST, client=DRIVER))
    run.checkpoint(0, b"a", b"b")  # gives up on the held one, describes, commits again
    assert late.hits == 1
    assert late.answers == 0
    (delayed,) = run.ids()

    def arrives() -> None:
        late.release()
        late.wait_for_answers()
        settled(run.sinks[run.topics[0]].wire, delayed)
        seen.append(values(cluster.bootstrap_servers, *run.topics))

    run.checkpoint(1, b"c", b"d", halfway=arrives)


def test_x7_delayed_end_txn_never_touches_the_next_transaction(driver, cluster):
    """The torn transaction of Jepsen: here the next one has another id, since doubt retires."""
    run = driver(outputs=1)
    seen: list[list[str]] = []
    delayed_end_txn(run, cluster, seen)
    assert seen == [["a", "b"]]  # nothing of the open one
    assert visible(run) == [[b"a", b"b", b"c", b"d"]]


def test_x7_can_fail_without_retiring_the_next_transaction_is_torn(driver, cluster, monkeypatch):
    """The same story with rule 3 switched off: the test above is able to see the tear."""
    run = driver(outputs=1)
    monkeypatch.setattr(KafkaBothHalves, "retired", lambda _self: frozenset())
    monkeypatch.setattr(TransactionalProducer, "_note_break", lambda _self, _line: None)
    seen: list[list[str]] = []
    with pytest.raises(SparkOnceError):
        delayed_end_txn(run, cluster, seen)
    assert seen == [["a", "b", "c"]]  # half of the open transaction is visible


def held_back_end_txn(run: Driver, cluster: ProxiedCluster, seen: list[list[str]]) -> None:
    """The worker's EndTxn for checkpoint 0 is held back behind a connection that was closed;
    librdkafka repeats it, and the first copy comes when checkpoint 1 is half written.
    """
    run.checkpoint(0, b"a", b"b")
    held = cluster.proxy.add(Rule(END_TXN, Action.HOLD_BACK, client=WORKER))
    (id_of_0,) = run.ids()

    def arrives() -> None:
        assert held.hits == 1
        held.release()
        held.wait_for_answers()
        settled(run.sinks[run.topics[0]].wire, id_of_0)
        seen.append(values(cluster.bootstrap_servers, *run.topics))

    run.checkpoint(1, b"c", b"d", halfway=arrives)


def test_x7_an_end_txn_behind_a_closed_connection_never_touches_the_next_transaction(
    driver, cluster
):
    """Only librdkafka's log tells that a copy is under way: the producer is not used again."""
    run = driver(outputs=1)
    seen: list[list[str]] = []
    held_back_end_txn(run, cluster, seen)
    assert seen == [["a", "b"]]  # nothing of the open one
    assert visible(run) == [[b"a", b"b", b"c", b"d"]]


def test_x7_can_fail_without_the_log_the_next_transaction_is_torn(driver, cluster, monkeypatch):
    """As it was: the error callback alone is listened to, and the same story shows the tear."""
    run = driver(outputs=1)
    monkeypatch.setattr(TransactionalProducer, "_note_break", lambda _self, _line: None)
    seen: list[list[str]] = []
    with pytest.raises(SparkOnceError):
        held_back_end_txn(run, cluster, seen)
    assert seen == [["a", "b", "c"]]  # half of the open transaction is visible


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
@pytest.mark.parametrize("request_key", [END_TXN, TXN_OFFSET_COMMIT], ids=["end", "offsets"])
def test_x7_a_task_of_the_continuous_mode_ends_when_a_request_may_come_late(
    driver, cluster, kind, request_key
):
    """It would begin again on that producer as soon as its other one is full."""
    run = driver(outputs=1)
    writer = KafkaStageWriter(run._sink(run.topics[0]), carries_offsets=True, producer_kind=kind)
    writer.open(run.coordinator.owner, Deadline(30.0))
    transaction = writer.begin_transaction(run._attempt(0, 0))
    held = cluster.proxy.add(Rule(request_key, Action.HOLD_BACK, client=WORKER))
    writer.invoke(transaction, pa.record_batch({"value": pa.array([b"a"], pa.binary())}))
    writer.flush(transaction, {f"{run.topics[0]}-0": 0})
    writer.pre_commit(transaction)
    with pytest.raises(PhaseOneError, match="A connection broke"):
        writer.end(transaction)
    assert len(writer._free) == 1
    held.release()
    held.wait_for_answers()
    assert visible(run) == [[b"a"]]


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
def test_x6_every_repetition_inside_librdkafka_is_told(cluster, kind):
    """The broker has done it and closes the connection: librdkafka connects again and repeats the
    request, without an error, and tells its error callback nothing. Four times in a row, since it
    keeps quiet about the same again.
    """
    topic = f"out-{uuid.uuid4().hex}"
    cluster.create_topic(topic)
    settings = {"bootstrap.servers": cluster.proxied_servers, "socket.timeout.ms": 2000}
    producer = kind(settings, f"id-{uuid.uuid4().hex}", timeout_ms=TRANSACTION_TIMEOUT_MS)
    producer.init(Deadline(30.0))
    value = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
    told = []
    for number in range(5):
        closes = number > 0
        producer.begin()
        producer.produce(value, topic, Deadline(10.0))
        producer.flush(Deadline(10.0))
        producer.spent = False
        rule = Rule(TXN_OFFSET_COMMIT, Action.CLOSE_AFTER, times=int(closes), client=WORKER)
        cluster.proxy.add(rule)
        producer.send_offsets("group", {f"{topic}-0": number}, "token", Deadline(10.0))
        producer.await_offsets()
        assert rule.answers == int(closes)
        assert producer.spent == closes
        rule = Rule(END_TXN, Action.CLOSE_AFTER, times=int(closes), client=WORKER)
        cluster.proxy.add(rule)
        try:
            producer.resync(Deadline(10.0))
        except PhaseOneError as error:
            told.append((number, error.what.partition(" during ")[0]))
        assert rule.answers == int(closes)
    assert told == [(number, "A connection broke") for number in (1, 2, 3, 4)]


#: What a worker sends on its way to a prepared transaction, and what may become of each.
STEPS = {
    "init": INIT_PRODUCER_ID,
    "partitions": ADD_PARTITIONS_TO_TXN,
    "offsets_group": ADD_OFFSETS_TO_TXN,
    "offsets": TXN_OFFSET_COMMIT,
}


@pytest.mark.parametrize(
    "how",
    sampled([Action.CLOSE_AFTER, Action.CLOSE_BEFORE, Action.REPEAT_REQUEST], Action.CLOSE_AFTER),
)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_x16_phase_one_with_a_lost_or_repeated_request(driver, cluster, step, how):
    """The attempt fails or succeeds; whatever it does, no record is lost, doubled or torn."""
    run = driver(outputs=1)
    run.checkpoint(0, b"a")
    fault = cluster.proxy.add(Rule(step, how, client=WORKER))
    if step == INIT_PRODUCER_ID:
        run.sinks[run.topics[0]]._retired.add(run.ids())  # so that new producers are made
    again_until_done(run, 1, b"b", b"c")
    assert fault.hits == 1
    run.checkpoint(2, b"d")
    assert visible(run) == [[b"a", b"b", b"c", b"d"]]


def test_an_id_in_doubt_is_replaced_within_its_task(driver, cluster):
    """A coordinator that starts or moves breaks connections: that fails no checkpoint."""
    run = driver(outputs=1)
    faults = [
        cluster.proxy.add(Rule(INIT_PRODUCER_ID, Action.CLOSE_AFTER, client=WORKER))
        for _ in range(2)
    ]
    run.checkpoint(0, b"a", b"b")
    assert sum(fault.hits for fault in faults) == 2
    run.checkpoint(1, b"c")
    assert visible(run) == [[b"a", b"b", b"c"]]


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
@pytest.mark.parametrize("with_marker", [True, False])
def test_x16_librdkafka_aborts_while_the_first_partition_is_added(
    cluster, monkeypatch, kind, with_marker
):
    """The answer to AddPartitionsToTxn comes when librdkafka has begun to abort: it counts the
    request as never made. If that was the only one, it sends no EndTxn and says "aborted", and the
    transaction stays open on the broker. The marker, a transaction's first operation, is another.
    """
    answer = Rule(ADD_PARTITIONS_TO_TXN, Action.DELAY_RESPONSE, client=WORKER)
    lines: list[str] = []

    def report(producer: TransactionalProducer, _error: KafkaError, _message: Message) -> None:
        """Take the report of the purged record: librdkafka aborts when this has returned."""
        answer.release()
        patience = Deadline(30.0)
        while not any("outdated AddPartitionsToTxn" in line for line in lines):
            assert not patience.expired(), lines
            producer._producer.poll(0.01)

    monkeypatch.setattr(kind, "_note_failure", report)
    monkeypatch.setattr(LIBRDKAFKA, "log", lambda *line: lines.append(str(line)))
    topic, name = f"out-{uuid.uuid4().hex}", f"id-{uuid.uuid4().hex}"
    cluster.create_topic(topic)
    settings = {"bootstrap.servers": cluster.proxied_servers, "debug": "eos"}
    producer = kind(settings, f"{name}.p", timeout_ms=TRANSACTION_TIMEOUT_MS)
    producer.init(Deadline(30.0))
    producer.begin()
    if with_marker:
        producer.send_offsets(name, {f"{topic}-0": 0}, "token", Deadline(10.0))
        producer.await_offsets()
    cluster.proxy.add(answer)
    value = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
    producer.produce(value, topic, Deadline(10.0))
    answer.wait_for_answers()
    with monkeypatch.context() as during:
        during.setattr(kind, "serve", lambda _: None)  # the abort itself serves the report
        producer.abort(Deadline(30.0))
    with CoordinatorWire({"bootstrap.servers": cluster.bootstrap_servers}) as wire:
        # A coordinator answers EndTxn in PrepareAbort, before it has written the abort markers.
        listed = wire.list_open(name, None, Deadline(30.0))
        left_open = [one for one in listed if one.state == "Ongoing"]
        assert bool(left_open) != with_marker, listed
        for one in left_open:
            wire.fence(one.transactional_id, TRANSACTION_TIMEOUT_MS, Deadline(30.0))
    assert_no_open_transaction(cluster.bootstrap_servers, name)


def test_x16_the_answer_to_add_offsets_is_lost_for_good(driver, cluster):
    """The connection stays open and says nothing: the client gives up on it, or the attempt."""
    run = driver()
    cluster.proxy.add(Rule(ADD_OFFSETS_TO_TXN, Action.DROP_RESPONSE, client=WORKER))
    again_until_done(run, 0, b"a", b"b")
    run.checkpoint(1, b"c")
    assert visible(run) == [[b"a", b"b", b"c"]] * 2


def test_x16_the_offsets_of_a_lost_attempt_come_late(driver, cluster):
    """An attempt dies while its TxnOffsetCommit is under way; the next one is done before it."""
    run = driver(outputs=1)
    run.checkpoint(0, b"a")
    late = cluster.proxy.add(Rule(TXN_OFFSET_COMMIT, Action.DELAY_REQUEST, client=WORKER))
    with ThreadPoolExecutor(1) as beside:
        stuck = beside.submit(run.checkpoint, 1, b"b")
        late.wait_for_hits()
        newer = driver(outputs=1)  # another run takes over: the first one is a zombie now
        newer.checkpoint(1, b"b")
        late.release()
        with pytest.raises(SparkOnceError):
            stuck.result(CHECKPOINT_TIMEOUT_S)
    newer.checkpoint(2, b"c")
    assert visible(newer) == [[b"a", b"b", b"c"]]


def test_x5_x6_the_driver_dies_with_every_answer_lost_and_the_next_run_settles(driver, cluster):
    """Decided, EndTxn sent for one topic and lost for the other; recovery by another run."""
    run = driver()
    cluster.proxy.add(Rule(END_TXN, Action.DROP_REQUEST, client=DRIVER, times=None))

    class Dies(BaseException):
        """The process ends here."""

    def dies(name: str, _checkpoint: int) -> None:
        if name == "one_committed":
            raise Dies

    crash_points.install(dies)
    with pytest.raises(Dies):
        run.checkpoint(0, b"a", b"b")
    crash_points.install(None)
    cluster.proxy.clear()
    newer = driver()
    assert newer.settlement.recommitted == 2
    newer.checkpoint(1, b"c")
    assert visible(newer) == [[b"a", b"b", b"c"]] * 2


def again_until_done(run: Driver, number: int, *values: bytes) -> None:
    """Make a checkpoint, trying a failed attempt again as Spark's restart would."""
    for _ in range(3):
        try:
            run.checkpoint(number, *values)
        except PhaseOneError:
            continue
        return
    raise AssertionError(f"checkpoint {number} never came through")
