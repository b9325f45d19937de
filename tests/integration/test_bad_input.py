"""Bad input: a four-part error before any data moves and before any log entry is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from tests.auditor.reader import read_committed, read_uncommitted
from tests.locked_broker import JAAS, locked_broker, wants_password
from tests.tiers import long, sampled
from transactions import errors
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import SparkOnceError

NOBODY = "127.0.0.1:1"


@dataclass(frozen=True)
class Pipeline:
    """A copy of a topic, as a test changes it."""

    spark: SparkSession
    source: KafkaSource
    sink: KafkaSink
    app_id: str
    checkpoint: Path
    columns: tuple[str, ...] = ("key", "value")

    def run(self) -> None:
        driver = StreamingDriver(
            self.spark, app_id=self.app_id, checkpoint=self.checkpoint, trigger="available-now"
        )
        driver.write(driver.read(self.source).selectExpr(*self.columns), self.sink)
        driver.run()

    @property
    def entries(self) -> list[Path]:
        return sorted((self.checkpoint / "decisions").glob("[0-9]*"))

    def refused(self, kind: type[SparkOnceError], *, within_s: float = 60.0) -> SparkOnceError:
        """Assert that it stops with this error, all four parts of it, and leaves no entry."""
        before = {path: path.read_bytes() for path in self.entries}
        began = SYSTEM_CLOCK.monotonic()
        with pytest.raises(kind) as caught:
            self.run()
        error = caught.value
        assert type(error) is kind
        assert SYSTEM_CLOCK.monotonic() - began < within_s
        for part in (error.what, error.where, error.cause, error.option):
            assert part, f"a part is missing in: {error}"
        assert {path: path.read_bytes() for path in self.entries} == before
        return error


@pytest.fixture
def pipeline(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    checkpoint: str,
) -> Iterator[Pipeline]:
    """A pipeline with a record waiting; the output is as empty afterwards as it was before."""
    source, sink = topic(name="in"), topic(name="out")
    produce(bootstrap, source, "waiting")
    yield Pipeline(
        spark,
        KafkaSource(bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"),
        KafkaSink(bootstrap_servers=bootstrap, topic=sink),
        application_id,
        Path(checkpoint),
    )
    assert read_uncommitted(bootstrap, sink) == []


@pytest.fixture
def finished(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    checkpoint: str,
) -> Iterator[Pipeline]:
    """A pipeline that copied one record and has another one waiting."""
    source, sink = topic(name="in"), topic(name="out")
    produce(bootstrap, source, "first")
    made = Pipeline(
        spark,
        KafkaSource(bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"),
        KafkaSink(bootstrap_servers=bootstrap, topic=sink, name="out"),
        application_id,
        Path(checkpoint),
    )
    made.run()
    produce(bootstrap, source, "second")
    yield made
    assert [record.value for record in read_uncommitted(bootstrap, sink)] == [b"first"]
    assert [record.value for record in read_committed(bootstrap, sink)] == [b"first"]


def produce(bootstrap: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value.encode())
    assert producer.flush(30) == 0


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [KafkaSource.from_options, KafkaSink.from_options])
def test_an_unknown_option(parse: Callable[[dict[str, str]], object]):
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "topic": "t", "topik": "t"}
    options.pop("topic" if parse == KafkaSource.from_options else "subscribe")
    with pytest.raises(errors.ConfigurationError) as caught:
        parse(options)
    assert "topik" in caught.value.what
    assert caught.value.option == "topik=t"


def test_an_unknown_kafka_setting_of_the_source(pipeline: Pipeline):
    source = replace(pipeline.source, kafka={"fetch.no.such": "1"})
    error = replace(pipeline, source=source).refused(errors.ConfigurationError)
    assert error.option == "kafka.fetch.no.such=1"


def test_an_unknown_kafka_setting_of_the_sink(pipeline: Pipeline):
    sink = replace(pipeline.sink, kafka={"linger.no.such": "1"})
    error = replace(pipeline, sink=sink).refused(errors.ConfigurationError)
    assert error.option == "kafka.linger.no.such=1"


def test_a_value_column_of_the_wrong_type(pipeline: Pipeline):
    wrong = replace(pipeline, columns=("key", "length(value) AS value"))
    error = wrong.refused(errors.ConfigurationError)
    assert "'value' has the type int" in error.what


def test_a_sink_without_a_value_column(pipeline: Pipeline):
    replace(pipeline, columns=("key",)).refused(errors.ConfigurationError)


def test_a_transaction_timeout_that_the_broker_refuses(pipeline: Pipeline):
    sink = replace(pipeline.sink, transaction_timeout_ms=2_000_000_000)
    error = replace(pipeline, sink=sink).refused(errors.ConfigurationError)
    assert "transactionTimeoutMs=2000000000" in error.option


@pytest.mark.parametrize(
    "kafka",
    [
        {"request.timeout.ms": "300001"},  # finding B4
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},  # finding B14
    ],
)
def test_b4_b14_a_client_setting_that_cannot_work(pipeline: Pipeline, kafka: dict[str, str]):
    error = replace(pipeline, sink=replace(pipeline.sink, kafka=kafka)).refused(
        errors.ConfigurationError
    )
    name, value = list(kafka.items())[-1]
    assert f"kafka.{name}={value}" in error.option


# -- the cluster -----------------------------------------------------------------------------


def test_a_missing_source_topic(pipeline: Pipeline):
    source = replace(pipeline.source, subscribe=(*pipeline.source.topics, "no-such-topic"))
    error = replace(pipeline, source=source).refused(errors.MissingTopicError)
    assert "no-such-topic" in str(error)


def test_a_missing_sink_topic(pipeline: Pipeline):
    sink = replace(pipeline.sink, topic="no-such-topic", name="")
    error = replace(pipeline, sink=sink).refused(errors.MissingTopicError)
    assert error.option == "topic=no-such-topic"


@long
def test_an_unreachable_source(pipeline: Pipeline):
    source = replace(pipeline.source, bootstrap_servers=NOBODY)
    replace(pipeline, source=source).refused(errors.BrokerUnavailableError)


def test_an_unreachable_sink(pipeline: Pipeline):
    sink = replace(pipeline.sink, bootstrap_servers=NOBODY)
    replace(pipeline, sink=sink).refused(errors.BrokerUnavailableError)


@pytest.fixture(scope="module")
def secured() -> Iterator[tuple[str, str]]:
    """A broker with a plain listener and one that wants a password."""
    made, (plain, login) = locked_broker(
        {"LOGIN": "SASL_PLAINTEXT"}, wants_password("login", alice="right")
    )
    with made as cluster:
        cluster.create_topic("in")
        cluster.create_topic("out")
        produce(plain, "in", "waiting")
        yield plain, login


def login(password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(user="alice", password=password),
    }


@pytest.mark.parametrize("wrong", sampled(["source", "sink"], "sink"))
def test_wrong_credentials(
    spark: SparkSession, secured: tuple[str, str], checkpoint: str, wrong: str
):
    plain, address = secured
    passwords = {"source": "right", "sink": "right", wrong: "wrong"}
    pipeline = Pipeline(
        spark,
        KafkaSource(
            bootstrap_servers=address,
            subscribe="in",
            starting_offsets="earliest",
            kafka=login(passwords["source"]),
        ),
        KafkaSink(bootstrap_servers=address, topic="out", kafka=login(passwords["sink"])),
        "secured",
        Path(checkpoint),
    )
    error = pipeline.refused(errors.AuthenticationError)
    assert passwords[wrong] not in error.option
    assert read_uncommitted(plain, "out") == []


# -- the checkpoint --------------------------------------------------------------------------


def test_a_checkpoint_of_another_application(finished: Pipeline):
    error = replace(finished, app_id="another").refused(errors.IdentityMismatchError)
    assert finished.app_id in error.what
    assert error.option == "app_id=another"


@long
def test_a_sink_of_the_same_name_in_another_place(finished: Pipeline, topic: Callable[..., str]):
    sink = replace(finished.sink, topic=topic(name="other"), name=finished.sink.name)
    error = replace(finished, sink=sink).refused(errors.IdentityMismatchError)
    assert "has written somewhere else" in error.what


@long  # `unit/test_decision_log.py` has these four in `make test`
def test_an_altered_log_entry(finished: Pipeline):
    last = finished.entries[-1]
    last.write_bytes(last.read_bytes().replace(b'"checkpoint_id":0', b'"checkpoint_id":7'))
    error = finished.refused(errors.LogCorruptedError)
    assert "checksum" in error.cause


@long
def test_a_torn_log_entry(finished: Pipeline):
    last = finished.entries[-1]
    last.write_bytes(last.read_bytes()[:-20])
    finished.refused(errors.LogCorruptedError)


@long
def test_a_log_with_a_gap(finished: Pipeline):
    first = finished.entries[0]
    assert len(finished.entries) >= 2
    first.unlink()
    finished.refused(errors.LogCorruptedError)


@long
def test_a_log_entry_of_a_newer_version(finished: Pipeline):
    last = finished.entries[-1]
    last.write_bytes(orjson.dumps({**orjson.loads(last.read_bytes()), "format": 99}))
    error = finished.refused(errors.LogVersionError)
    assert "upgrade" in error.option


def test_a_lost_spark_part_of_the_checkpoint(finished: Pipeline):
    """Spark would begin at checkpoint 0 again; the log says that 0 is decided, with its offsets."""
    shutil.rmtree(finished.checkpoint / "spark")
    with pytest.raises(errors.ReplayMismatchError):
        finished.run()
