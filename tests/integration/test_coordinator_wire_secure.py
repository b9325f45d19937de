"""Raw requests over SASL and TLS, with rights that are missing, and with three brokers."""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import dataclasses
import time
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic, ResourcePatternType, ResourceType

from connectors import KafkaSink, KafkaSource
from connectors.clients.client_settings import librdkafka_settings
from connectors.doctor.facts import Wanted
from connectors.doctor.probe import gather
from connectors.doctor.verdict import Level
from connectors.doctor.verdicts import judge
from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.kafka.source.range_reader import read_range
from connectors.kafka.source.starting_group import committed_offsets
from connectors.native.native_reader import NativePartitionReader
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.both_halves import KafkaBothHalves
from tests.certificates import self_signed
from tests.integration.secure_broker import grant, secure  # noqa: F401 - one is a fixture
from tests.integration.wire_helpers import (
    begin,
    committable,
    eventually,
    open_producer,
    soon,
    values,
)
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import AuthenticationError, SparkOnceError
from transactions.sink import Attempt, Owner


def commit_through(kafka: dict[str, str], name: str) -> None:
    """Write with librdkafka and commit with raw requests, both from the same settings."""
    producer = Producer(librdkafka_settings(kafka) | {"transactional.id": name})
    producer.init_transactions(20)
    begin(producer, "secure", [name])
    with CoordinatorWire(kafka) as wire:
        assert wire.commit([committable(wire, name)], soon()) == {name: Outcome.COMMITTED}
        eventually(lambda: wire.list_open("app", None, soon()), [])


def test_commit_over_sasl(secure):
    commit_through(secure.login("root", "right"), "app.sasl.1.a.0")
    eventually(lambda: "app.sasl.1.a.0" in values(secure.plain, "secure"), True)


def test_commit_over_tls(secure):
    commit_through(secure.trusting(secure.certificate), "app.tls.1.a.0")
    eventually(lambda: "app.tls.1.a.0" in values(secure.plain, "secure"), True)


def test_wrong_credentials_are_said_at_once(secure):
    deadline = Deadline(15.0)
    with (
        CoordinatorWire(secure.login("root", "wrong-password")) as wire,
        pytest.raises(AuthenticationError) as caught,
    ):
        wire.describe(["a"], deadline)
    assert deadline.remaining() > 5.0
    assert caught.value.where == secure.sasl
    assert "wrong-password" not in str(caught.value)


def test_a_certificate_that_is_not_trusted(secure, tmp_path):
    stranger = self_signed(tmp_path, "stranger").path
    with (
        CoordinatorWire(secure.trusting(str(stranger))) as wire,
        pytest.raises(AuthenticationError, match="not trusted"),
    ):
        wire.describe(["a"], Deadline(5.0))


def test_missing_rights_are_permanent(secure):
    name = "app.acl.1.a.0"
    producer = open_producer(secure.plain, name)
    begin(producer, "secure", ["acl"])
    with CoordinatorWire({"bootstrap.servers": secure.plain}) as allowed:
        token = committable(allowed, name)
        with CoordinatorWire(secure.login("alice", "right")) as wire:
            for verb in (
                lambda: wire.describe([name], soon()),
                lambda: wire.commit([token], soon()),
                lambda: wire.fence(name, 60_000, soon()),
                lambda: wire.read_markers("group", ["secure-0"], soon()),
                lambda: wire.broker_setting("transaction.max.timeout.ms", soon()),
            ):
                with pytest.raises(AuthenticationError, match="lacks a right"):
                    verb()
        assert allowed.commit([token], soon()) == {name: Outcome.COMMITTED}
    eventually(lambda: "acl" in values(secure.plain, "secure"), True)


def test_a_starting_group_that_may_not_be_described_is_named(secure):
    kafka = secure.login("alice", "right")
    servers = kafka.pop("bootstrap.servers")
    source = KafkaSource(bootstrap_servers=servers, kafka=kafka, subscribe="secure")
    with pytest.raises(AuthenticationError) as caught:
        committed_offsets(source, "analysts", ["secure-0"], soon())
    assert "'analysts'" in caught.value.where
    assert "DESCRIBE to read its offsets" in caught.value.option


def test_a_task_without_source_offsets_needs_the_right_to_read_its_output(secure):
    """Its marker is an offset of the output topic, and a broker takes offsets of a topic only from
    who may READ it (KafkaApis, TxnOffsetCommit). Then that is no right to be without.
    """
    admin = AdminClient({"bootstrap.servers": secure.plain})
    topic, app = f"written-{uuid.uuid4().hex}", "ward"
    admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=20)
    prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
    for resource, name, pattern, rights in (
        (ResourceType.BROKER, "kafka-cluster", literal, ("DESCRIBE_CONFIGS",)),
        (ResourceType.TRANSACTIONAL_ID, f"{app}.", prefixed, ("WRITE", "DESCRIBE")),
        (ResourceType.GROUP, app, literal, ("READ", "DESCRIBE")),
        (ResourceType.GROUP, f"{app}.", prefixed, ("READ", "DESCRIBE")),
        (ResourceType.TOPIC, "__consumer_offsets", literal, ("DESCRIBE",)),
        (ResourceType.TOPIC, topic, literal, ("WRITE", "DESCRIBE")),
    ):
        grant(admin, resource, name, pattern, *rights, user="dave")
    login = secure.login("dave", "right")
    wanted = Wanted(application_id=app, outputs=(topic,))
    eventually(lambda: refused(login, wanted), {f"output {topic}"})
    plain = dataclasses.replace(wanted, plain_outputs=frozenset({topic}))
    assert refused(login, plain) == set()

    with pytest.raises(AuthenticationError, match="Topic authorization failed"):
        write_one(login, topic, app)

    grant(admin, ResourceType.TOPIC, topic, literal, "READ", user="dave")
    eventually(lambda: refused(login, wanted), set())
    write_one(login, topic, app)
    eventually(lambda: values(secure.plain, topic), ["one"])  # a commit's marker comes later


def refused(login: dict[str, str], wanted: Wanted) -> set[str]:
    """Return what the doctor refuses."""
    verdicts = judge(gather(login, wanted, soon()), wanted)
    return {one.check for one in verdicts if one.level is Level.REFUSE}


def write_one(login: dict[str, str], topic: str, app: str) -> None:
    """Do what a task does that has no partition of the source, and commit it."""
    kafka = dict(login)
    options = KafkaSink(
        bootstrap_servers=kafka.pop("bootstrap.servers"), topic=topic, name="out", kafka=kafka
    )
    sink = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=20.0)
    owner = Owner(application_id=app, log_id=uuid.uuid4().hex[:8], run_epoch=1)
    attempt = Attempt(owner=owner, checkpoint_id=0, subtask=0, attempt_id="1.0")
    transaction = sink.begin_transaction(attempt)
    try:
        sink.invoke(transaction, pa.record_batch({"value": pa.array([b"one"], pa.binary())}))
        committable = sink.pre_commit(transaction)
        assert committable is not None
        checked = sink.check_prepared([committable], soon())
        assert set(sink.commit(checked, soon()).values()) == {Outcome.COMMITTED}
    except SparkOnceError:
        sink.abort(transaction)
        raise
    finally:
        sink.close()


@pytest.mark.parametrize("kind", ["ranges", PartitionReader, NativePartitionReader])
def test_a_right_to_read_the_topic_is_enough_to_read_it(secure, kind):
    """Librdkafka asks for the coordinator of the group's name it was given: that is refused."""
    admin = AdminClient({"bootstrap.servers": secure.plain})
    topic = f"readable-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=20)
    grant(admin, ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "READ", "DESCRIBE")
    writer = Producer({"bootstrap.servers": secure.plain})
    login = secure.login("carol", "right")
    source = KafkaSource(
        bootstrap_servers=login.pop("bootstrap.servers"), subscribe=topic, kafka=login
    )
    reader = None if kind == "ranges" else kind(source, {f"{topic}-0": 0})
    for number in range(20):  # the refusal comes within the first second
        writer.produce(topic, b"%d" % number)
        assert writer.flush(20) == 0
        time.sleep(0.1)
        if reader is None:
            wanted = OffsetRange(topic, 0, number, number + 1)
            found = [one for batch in read_range(source, wanted) for one in batch["value"]]
        else:
            found = []
            deadline = Deadline(20)
            while not found and not deadline.expired():
                batch = reader.read(0.1).batch
                found = [] if batch is None else list(batch["value"])
        assert [one.as_py() for one in found] == [b"%d" % number]


def test_the_doctor_names_missing_rights_and_then_the_acls_that_give_them(secure):
    """The same rights are what docs/operations.md asks an administrator for."""
    admin = AdminClient({"bootstrap.servers": secure.plain})
    login = secure.login("carol", "right")
    wanted = Wanted(application_id="clinic", inputs=("secure",), outputs=("secure",))

    ids, group = "transactional ids clinic.*", "group clinic"
    topic = {"input secure", "output secure"}
    assert refused(login, wanted) == {"transaction timeout", ids, group} | topic
    assert judge(gather(login, wanted, soon()), wanted)[0].level is Level.OK

    def allow(resource: ResourceType, name: str, pattern: ResourcePatternType, *rights: str):
        grant(admin, resource, name, pattern, *rights)

    prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
    allow(ResourceType.BROKER, "kafka-cluster", literal, "DESCRIBE_CONFIGS")
    eventually(lambda: refused(login, wanted), {ids, group} | topic)
    allow(ResourceType.TRANSACTIONAL_ID, "clinic.", prefixed, "WRITE", "DESCRIBE")
    eventually(lambda: refused(login, wanted), {group} | topic)
    allow(ResourceType.GROUP, "clinic", literal, "READ", "DESCRIBE")
    hidden = {"__consumer_offsets"}
    eventually(
        lambda: refused(login, wanted), {group} | hidden | topic
    )  # the markers' groups are still out of reach
    allow(ResourceType.GROUP, "clinic.", prefixed, "READ", "DESCRIBE")
    eventually(lambda: refused(login, wanted), hidden | topic)  # left out of what is described
    allow(ResourceType.TOPIC, "__consumer_offsets", literal, "DESCRIBE")
    eventually(lambda: refused(login, wanted), topic)
    allow(ResourceType.TOPIC, "secure", literal, "READ", "DESCRIBE")
    eventually(lambda: refused(login, wanted), {"output secure"})
    allow(ResourceType.TOPIC, "secure", literal, "WRITE")
    eventually(lambda: refused(login, wanted), set())
