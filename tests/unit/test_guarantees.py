"""Delivery guarantees beside exactly-once: what is refused, what is decided, what may change."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pyarrow as pa
import pytest

from connectors.cli.doctor import _cases
from connectors.clients.client_settings import librdkafka_settings
from connectors.continuous.kafka_task import KafkaTask
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_stage_writer import KafkaStageWriter
from connectors.kafka.sink.plain_stage_writer import PlainStageWriter
from connectors.options import java_settings
from connectors.options.client_options import servers_of
from connectors.options.guarantee import AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEES, NO_GUARANTEE
from connectors.options.job_definition import SinkDefinition
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.run_options import RunOptions
from connectors.records.arrow_transform import copy_records
from connectors.spark.micro_batch import MicroBatches
from tests.both_halves import KafkaBothHalves, plain_writer
from tests.simulation.fake_broker import FakeBroker, FakeSink
from tests.unit.samples import committable
from tests.unit.test_job import parse, refused, text
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError, DeliveryError, IdentityMismatchError
from transactions.events import Event, subscribe
from transactions.log_backend import MemoryBackend
from transactions.nothing_to_commit import NothingToCommit
from transactions.replay import Checkpoint
from transactions.sink import Attempt, Cluster, OpenSink, Owner, offsets_carrier

OWNER = Owner(application_id="app", log_id="log", run_epoch=3)
BATCH = pa.record_batch({"value": pa.array([b"v", b"w"], pa.binary())})
WITHOUT = (AT_LEAST_ONCE, NO_GUARANTEE)


def options(guarantee: str, name: str = "out", **more: Any) -> KafkaSink:
    return KafkaSink(bootstrap_servers="b:9092", topic=name, name=name, guarantee=guarantee, **more)


# --- what a user may say ----------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", WITHOUT)
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"transaction_timeout_ms": 60_000}, "transactionTimeoutMs=60000"),
        ({"kafka": {"transaction.timeout.ms": "60000"}}, "kafka.transaction.timeout.ms=60000"),
    ],
)
def test_an_option_of_transactions_is_refused_where_there_are_none(guarantee, more, named):
    with pytest.raises(ConfigurationError) as caught:
        options(guarantee, **more)
    error = caught.value
    assert all((error.what, error.where, error.cause, error.option))
    assert error.option == f"{named}, guarantee={guarantee}"
    assert "no transaction that could time out" in error.cause


@pytest.mark.parametrize("name", ["socket.max.fails", "log.connection.close"])
def test_what_a_transactional_producer_would_override_is_refused(name):
    """Before Spark starts, in Python and in a job file; what cannot be had is not taken."""
    with pytest.raises(ConfigurationError) as caught:
        options(EXACTLY_ONCE, kafka={name: "60000"})
    error = caught.value
    assert f"kafka.{name}" in error.what
    assert error.where == "sink 'out'"
    assert error.cause
    assert error.option == f"kafka.{name}=60000; instead: leave it out"
    assert refused(text(sink=f'kafka.{name} = "60000"')).option == error.option


#: Settings of a Java producer, or of a dictionary that source and sink share.
PASTED = {
    "acks": "all",
    "enable.idempotence": "true",
    "delivery.timeout.ms": "120000",
    "group.id": "reports",
    "isolation.level": "read_committed",
    "max.block.ms": "60000",
    "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
}


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_settings, "_told", set())


@pytest.mark.usefixtures("nothing_told")
def test_settings_that_mean_nothing_to_a_sink_are_named_and_given_to_no_client(caplog):
    given = {**PASTED, "linger.ms": "20"}
    sink = options(EXACTLY_ONCE, kafka=given)
    kept = librdkafka_settings(sink.settings)
    assert kept.keys() == {"bootstrap.servers", "security.protocol", "linger.ms"}
    (line,) = caplog.messages
    silent = {"acks", "enable.idempotence", "linger.ms"}
    named = {name for name in given if f"kafka.{name} (" in line}
    assert named == given.keys() - silent


@pytest.mark.usefixtures("nothing_told")
def test_they_are_read_from_a_dictionary_that_source_and_sink_share(caplog):
    shared = {f"kafka.{name}": value for name, value in PASTED.items()}
    shared |= {"kafka.bootstrap.servers": "b:9092", "groupIdPrefix": "reports"}
    shared["kafka.transaction.timeout.ms"] = "700000"
    sink = KafkaSink.from_options({**shared, "topic": "out"})
    assert sink.transaction_timeout_ms == 700_000
    source = KafkaSource.from_options({**shared, "subscribe": "in"})
    assert source.isolation_level == "read_committed"
    kept = librdkafka_settings(source.client_settings).keys()
    assert not kept & {"transaction.timeout.ms", "enable.idempotence", "group.id"}
    assert sum("of the Kafka sink" in line for line in caplog.messages) == 1
    assert "kafka.transaction.timeout.ms (the source writes nothing)" in caplog.text


@pytest.mark.parametrize(
    ("more", "what", "option"),
    [
        (
            {"transaction.timeout.ms": "10 minutes"},
            "The transaction timeout is a number of ms.",
            "kafka.transaction.timeout.ms=10 minutes",
        ),
        (
            {"transaction.timeout.ms": "60000"},
            "The transaction timeout is given twice.",
            "kafka.transaction.timeout.ms=60000, transactionTimeoutMs=70000",
        ),
        (
            {"partitioner.class": "com.example.ByCustomer"},
            "A partitioner of Java's client cannot run here.",
            "kafka.partitioner.class=com.example.ByCustomer: leave it out, and give each row its "
            "partition in a column `partition`",
        ),
    ],
)
def test_settings_that_mean_something_else_here_are_refused(more, what, option):
    with pytest.raises(ConfigurationError) as caught:
        options(EXACTLY_ONCE, transaction_timeout_ms=70_000, kafka=more)
    error = caught.value
    assert (error.what, error.option) == (what, option)
    assert error.where
    assert error.cause


def test_idempotence_can_be_asked_for_and_not_be_taken_away():
    for guarantee in GUARANTEES:
        sink = options(guarantee, kafka={"enable.idempotence": "TRUE"})
        assert "enable.idempotence" not in librdkafka_settings(sink.settings)
    with pytest.raises(ConfigurationError, match=r"enable\.idempotence"):
        librdkafka_settings(options(EXACTLY_ONCE, kafka={"enable.idempotence": "false"}).settings)


@pytest.mark.parametrize("guarantee", WITHOUT)
def test_without_transactions_a_record_has_a_timeout_of_its_own(guarantee):
    assert options(guarantee, kafka={"delivery.timeout.ms": "60000"}).kafka


def guarantee_of(target: SinkDefinition) -> str:
    assert isinstance(target.sink, KafkaSink)
    return target.sink.guarantee


def test_a_job_has_one_for_all_sinks_or_one_each():
    (only,) = parse(text(app='guarantee = "at-least-once"')).sinks
    assert guarantee_of(only) == AT_LEAST_ONCE
    sink = '[[sink]]\nkafka.bootstrap.servers = "b:9092"\ntopic = "other"\nguarantee = "none"\n'
    two = parse(text(more=sink)).sinks
    assert [guarantee_of(one) for one in two] == [EXACTLY_ONCE, NO_GUARANTEE]
    error = refused(text(app='guarantee = "none"', sink="transactionTimeoutMs = 60000"))
    assert "transactionTimeoutMs=60000" in error.option


def test_the_doctor_asks_a_job_without_transactions_for_none():
    (wanted,) = (case.wanted for case in _cases(parse(text(app='guarantee = "none"'))))
    assert (wanted.application_id, wanted.transactions) == ("", False)
    assert (wanted.inputs, wanted.outputs) == (("in",), ("out",))
    (wanted,) = (case.wanted for case in _cases(parse(text())))
    assert (wanted.application_id, wanted.transactions) == ("flights", True)


# --- a checkpoint's identity ------------------------------------------------------------------


def run_options(*guarantees: str) -> RunOptions:
    sinks = [options(guarantee, f"out-{n}") for n, guarantee in enumerate(guarantees)]
    source = KafkaSource(bootstrap_servers="b:9092", subscribe="in")
    return RunOptions(
        app_id="app",
        checkpoint=CheckpointLocation("/data/app"),
        sources=[source],
        sinks=sinks,
        checkpoint_timeout_s=60.0,
        restart_budget_s=60.0,
    )


def opened(backend: MemoryBackend, now: RunOptions) -> DecisionLog:
    identity = now.all_identity()
    return DecisionLog.open(
        backend, application_id="app", identity=identity, may_change=now.may_change
    )


@pytest.mark.parametrize(("before", "now"), list(itertools.product(GUARANTEES, GUARANTEES)))
def test_f48_a_guarantee_may_rise_across_a_restart_and_not_fall_from_exactly_once(before, now):
    """The other sink of the driver stays as it is."""
    backend = MemoryBackend()
    opened(backend, run_options(before, AT_LEAST_ONCE))
    entries = backend.list()
    if before == EXACTLY_ONCE != now:
        with pytest.raises(IdentityMismatchError) as caught:
            opened(backend, run_options(now, AT_LEAST_ONCE))
        error = caught.value
        assert "'out-0' has written this checkpoint exactly-once" in error.what
        assert all((error.where, error.cause))
        assert f"guarantee={now}" in error.option
        assert backend.list() == entries, "nobody was fenced, nothing was written"
        opened(backend, run_options(before, AT_LEAST_ONCE))
    else:
        opened(backend, run_options(now, AT_LEAST_ONCE))
        opened(backend, run_options(now, AT_LEAST_ONCE))


def test_a_checkpoint_of_an_older_version_is_exactly_once():
    backend = MemoryBackend()
    assert set(run_options(EXACTLY_ONCE).all_identity()) == {"sinks", "sources"}
    opened(backend, run_options(EXACTLY_ONCE))
    with pytest.raises(IdentityMismatchError, match="cannot continue"):
        opened(backend, run_options(NO_GUARANTEE))


def test_another_set_of_sinks_is_told_as_such():
    backend = MemoryBackend()
    opened(backend, run_options(EXACTLY_ONCE))
    with pytest.raises(IdentityMismatchError, match="written with sinks="):
        opened(backend, run_options(EXACTLY_ONCE, AT_LEAST_ONCE))


def test_a_new_sink_has_never_written_exactly_once():
    before = run_options(EXACTLY_ONCE).all_identity()
    more = run_options(EXACTLY_ONCE, AT_LEAST_ONCE)
    assert more.may_change("sinks_guarantee", before, more.all_identity())
    fallen = run_options(AT_LEAST_ONCE, AT_LEAST_ONCE)
    with pytest.raises(IdentityMismatchError, match="'out-0' has written"):
        fallen.may_change("sinks_guarantee", before, fallen.all_identity())


# --- what is decided --------------------------------------------------------------------------


@pytest.fixture
def heard():
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    yield found
    unsubscribe()


def test_sinks_of_both_kinds_share_a_decision_and_only_transactions_are_in_it(heard):
    broker = FakeBroker()
    exactly = FakeSink("exactly", broker)
    plain = NothingToCommit("plain")
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={})
    coordinator = CheckpointCoordinator(
        log, {"exactly": exactly, "plain": plain}, timeout_s=5.0, stopping=lambda: False
    )
    attempt = Attempt(owner=log.owner, checkpoint_id=0, subtask=0, attempt_id="1.0")
    transaction = exactly.begin_transaction(attempt)
    exactly.invoke(transaction, ["a"])
    prepared = exactly.pre_commit(transaction)
    assert prepared is not None
    visible = committable(
        sink="plain", transactional_id="", checkpoint_id=0, token="0.0.p", record_count=7, refused=2
    )
    checkpoint = Checkpoint(checkpoint_id=0, query_id="q", start_offsets=("",), end_offsets=("e",))
    try:
        report = coordinator.commit_batch(checkpoint, lambda: [visible, prepared])
    finally:
        coordinator.close()
    assert broker.visible == ["a"]
    decision = log.state.decision
    assert decision is not None
    assert [one.sink for one in decision.committables] == ["exactly"]
    assert (report.records, report.transactions) == (7 + prepared.record_count, 1)
    (lost,) = [event for event in heard if event.kind == "refused"]
    assert lost.fields == {"app": "app", "checkpoint": 0, "sink": "plain", "records": 2}


def test_source_offsets_travel_in_the_sink_that_has_transactions():
    none: Any = None
    plain = plain_writer(options(AT_LEAST_ONCE, "plain"), checkpoint_timeout_s=5.0)
    exactly = KafkaBothHalves(
        options(EXACTLY_ONCE, "exactly"), timeout_ms=60_000, checkpoint_timeout_s=5.0
    )
    sinks = {"plain": OpenSink(plain, none), "exactly": OpenSink(exactly, none)}
    clusters = [Cluster(servers_of("b:9092"))]
    assert offsets_carrier(sinks, clusters) == "exactly"
    assert offsets_carrier(sinks, [*clusters, Cluster(servers_of("other:9092"))]) is None
    batches = MicroBatches(none, none, [*sinks], offsets_sink="exactly", files=none)
    assert batches._offsets_sink == 1
    batches = MicroBatches(none, none, [*sinks], offsets_sink=None, files=none)
    assert batches._offsets_sink == -1
    del sinks["exactly"]
    assert offsets_carrier(sinks, clusters) is None


@pytest.mark.parametrize("carries", [True, False])
def test_a_task_does_not_compare_clusters_itself(carries: bool):
    """The driver has compared them by their ids; a task has the texts only."""
    sink = KafkaBothHalves(
        KafkaSink(bootstrap_servers="a:1", topic="out"), timeout_ms=60_000, checkpoint_timeout_s=5.0
    )
    task = KafkaTask(
        address=("here", 1),
        key=b"",
        stage="stage",
        source=KafkaSource(bootstrap_servers="b:1", subscribe="in"),
        transform=copy_records,
        writer=sink,
        carries_offsets=carries,
        schema=None,
        native=False,
        timeout_s=5.0,
        parallelism=1,
    )
    writer = task.stage_writer()
    assert isinstance(writer, KafkaStageWriter)
    assert writer._carries_offsets is carries


# --- phase 1 ----------------------------------------------------------------------------------


class FakeProducer:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lost = 0
        self.refuses = False

    def produce(self, batch: Any, topic: Any, deadline: Deadline) -> None:
        self.calls.append("produce")

    def flush(self, deadline: Deadline) -> None:
        assert deadline.remaining() > 0
        self.calls.append("flush")
        if self.refuses:
            raise DeliveryError("The broker refused 1 record(s).")

    def refused(self) -> tuple[int, str]:
        self.calls.append("refused")
        return self.lost, "too large"

    def discard(self) -> None:
        self.calls.append("discard")


def writer(guarantee: str) -> PlainStageWriter:
    made = PlainStageWriter(plain_writer(options(guarantee), checkpoint_timeout_s=60.0))
    made._producer = FakeProducer()  # type: ignore[assignment]
    return made


def written(one: PlainStageWriter, number: int, *, prepare: bool = True) -> Committable | None:
    transaction = one.begin_transaction(
        Attempt(owner=OWNER, checkpoint_id=number, subtask=0, attempt_id="3.0")
    )
    transaction.deadline = Deadline(0.0)  # it was begun at the barrier before, an hour ago
    one.invoke(transaction, BATCH)
    transaction.deadline = Deadline(0.0)
    if not prepare:
        return None
    one.flush(transaction, {"in-0": 1})
    return one.pre_commit(transaction)


def test_at_least_once_flushes_a_checkpoint_and_drops_what_was_not_flushed():
    one = writer(AT_LEAST_ONCE)
    producer: Any = one._producer
    done = written(one, 5)
    written(one, 6, prepare=False)
    assert producer.calls == ["produce", "flush", "produce"]
    assert done is not None
    assert not done.needs_commit
    assert (done.record_count, dict(done.source_offsets)) == (2, {})
    one.close()
    assert producer.calls[-1] == "discard", "what follows is read again"


def test_at_least_once_fails_the_checkpoint_when_a_record_was_refused():
    one = writer(AT_LEAST_ONCE)
    producer: Any = one._producer
    producer.refuses = True
    with pytest.raises(DeliveryError):
        written(one, 5)


def test_without_a_guarantee_nothing_is_waited_for_and_refusals_are_counted():
    one = writer(NO_GUARANTEE)
    producer: Any = one._producer
    producer.lost = 3
    done = written(one, 5)
    assert producer.calls == ["produce", "refused"]
    assert done is not None
    assert (done.record_count, done.refused) == (2, 3)
    one.close()
    assert producer.calls[-1] == "flush", "at an orderly end what is queued gets a moment"


def test_nothing_written_is_nothing_to_tell():
    one = writer(AT_LEAST_ONCE)
    attempt = Attempt(owner=OWNER, checkpoint_id=5, subtask=0, attempt_id="3.0")
    transaction = one.begin_transaction(attempt)
    one.invoke(transaction, BATCH.slice(0, 0))
    one.flush(transaction, {"in-0": 4})
    assert one.pre_commit(transaction) is None


def test_the_identity_names_the_partitions_that_are_read():
    """Another choice of partitions would read some from 0, and leave others where they are."""
    options = run_options(EXACTLY_ONCE)
    assert options.all_identity()["sources"] == "in"
    some = KafkaSource(bootstrap_servers="b:1", assign={"t": [2, 0], "a": [1]})
    both = dataclasses.replace(options, sources=[*options.sources, some])
    assert both.all_identity()["sources"] == "a[1],in,t[0 2]"
