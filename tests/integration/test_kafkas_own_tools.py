"""What an operator sees with Kafka's own commands is what we say: `kafka-console-consumer.sh`,
`kafka-consumer-groups.sh` and `kafka-transactions.sh`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.protocol.producer import ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.cli.main import cli
from connectors.options.modes import MODES
from connectors.spark.pipeline import arrow_pipeline
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import WireClient
from tests.auditor.reader import read_committed
from tests.integration.brokers import Broker, running_broker
from tests.integration.wire_helpers import PATIENCE_S, begin, open_producer, settled, soon
from tests.kafka_tools import kafka_command
from tests.parity.query import at, produce
from tests.tiers import long
from transactions import crash_points
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

pytestmark = long

EACH = 20


@pytest.fixture(scope="module")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of these tests alone: they change what all of its clients see."""
    with running_broker(request.param) as broker:
        yield broker


@pytest.fixture
def topics(bootstrap: str, topic: Callable[..., str]) -> tuple[str, str]:
    """A full topic and an empty one, of two partitions each."""
    source, sink = topic(2, name="in"), topic(2, name="out")
    produce(bootstrap, source, range(EACH), range(EACH))
    return source, sink


@pytest.fixture(params=MODES)
def copies(
    request, spark: SparkSession, bootstrap: str, topics, application_id, checkpoint
) -> Callable[[], None]:
    """Copy the full topic to the other one, as one start of a pipeline does."""
    source, sink = topics

    def run() -> None:
        arrow_pipeline(
            spark,
            app_id=application_id,
            checkpoint=checkpoint,
            source=KafkaSource(
                bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
            ),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=sink),
            mode=request.param,
            trigger="available-now",
            restart_strategy="none",
        ).run()

    return run


def consumed(bootstrap: str, topic: str) -> list[bytes]:
    """Read a topic with the console consumer, only what is committed."""
    lines = kafka_command(
        "tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"),
        *("--timeout-ms", "5000", "--command-property", "isolation.level=read_committed"),
    )
    return sorted(line.encode() for line in lines if line.isdecimal())


def transactions(bootstrap: str, *command: str) -> list[list[str]]:
    """Return the rows of a table of `kafka-transactions.sh`, without its heading."""
    lines = kafka_command("tools.TransactionsCommand", "--bootstrap-server", bootstrap, *command)
    return [line.split() for line in lines[1:] if line.strip()]


def states(bootstrap: str, app: str) -> dict[str, str]:
    """Return the state of each transactional id of an application that has written."""
    rows = transactions(bootstrap, "list")
    return {
        row[0]: row[3] for row in rows if row[0].startswith(f"{app}.") and row[0].count(".") > 1
    }


def test_they_agree_with_us_before_and_after_a_recovery(
    copies, topics, bootstrap, application_id, tmp_path
):
    def fail(point: str, _: int) -> None:
        if point == "decision_durable":
            raise ValueError("between decision and commit")

    source, sink = topics
    crash_points.install(fail)
    try:
        with pytest.raises(Exception, match="between decision and commit"):
            copies()
    finally:
        crash_points.install(None)
    decision = read_log(LocalFileBackend(tmp_path / "checkpoint/decisions")).decision
    assert decision is not None
    decided = {one.transactional_id for one in decision.committables}
    assert decided
    open_now = {
        name for name, state in states(bootstrap, application_id).items() if state == "Ongoing"
    }
    assert open_now == decided, "what we have decided is what Kafka calls ongoing"
    assert listed(bootstrap, tmp_path) == dict.fromkeys(decided, ("pending", "Ongoing"))
    assert consumed(bootstrap, sink) == []

    copies()
    assert set(states(bootstrap, application_id).values()) <= {
        "CompleteCommit",
        "CompleteAbort",
        "Empty",
    }
    assert listed(bootstrap, tmp_path) == {}, "the end of the run has settled its decision"
    seen = consumed(bootstrap, sink)
    assert seen == sorted(one.value or b"" for one in read_committed(bootstrap, sink))
    assert seen == sorted(b"%d" % n for n in (*range(EACH), *range(EACH)))
    assert found_hanging(bootstrap, sink) == []
    assert lags(bootstrap, application_id, source) == {0: (EACH, 0), 1: (EACH, 0)}


def listed(bootstrap: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Return what `sparkonce transactions list` says of each id: our verdict and Kafka's state."""
    place = ["--checkpoint", str(folder / "checkpoint"), "--bootstrap", bootstrap]
    done = CliRunner().invoke(cli, ["transactions", "list", "--json", *place])
    assert done.exit_code == 0, done.output
    rows = orjson.loads(done.stdout)["transactions"]
    return {row["transactional_id"]: (row["verdict"], row["state"]) for row in rows}


def found_hanging(bootstrap: str, topic: str) -> list[list[str]]:
    """Return the rows of a topic that `find-hanging` prints; its broker is asked for all ages."""
    rows = transactions(
        bootstrap, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"
    )
    return [row for row in rows if row[0] == topic]


def write_behind_the_end(bootstrap: str, topic: str) -> None:
    """Send a record into a transaction that is over. Without a look at the coordinator, which
    brokers have since Kafka 3.6, the partition opens one that nobody will end.
    """
    name = f"hanging-{topic}"
    producer = open_producer(bootstrap, name)
    begin(producer, topic, ["0"])
    producer.commit_transaction(PATIENCE_S)
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        settled(wire, name)
        found = wire.describe([name], soon())[name]
    batch = DefaultRecordBatchBuilder(
        2, 0, True, found.producer_id, found.producer_epoch, 1, batch_size=1000
    )
    batch.append(0, timestamp=at(1), key=None, value=b"1", headers=[])
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(
        index=0, records=bytes(batch.build())
    )
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name=topic, partition_data=[partition]),
        ],
        max_version=11,  # a later one makes the transaction known
    )
    client = WireClient({"bootstrap.servers": bootstrap}, PATIENCE_S)
    try:
        answer = client.run(client.send, 1, request, soon(), deadline=soon())
        assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        client.close()


def test_a_transaction_that_hangs_is_found(bootstrap, topic):
    """It shows that the test above can fail: the same question, where there is one."""
    name = topic()
    with unverified(bootstrap):
        write_behind_the_end(bootstrap, name)
    (row,) = found_hanging(bootstrap, name)
    assert row[:2] == [name, "0"]
    place = ["--topic", name, "--partition", "0", "--start-offset", row[5]]
    kafka_command("tools.TransactionsCommand", "--bootstrap-server", bootstrap, "abort", *place)
    assert found_hanging(bootstrap, name) == []
    assert consumed(bootstrap, name) == [b"0"]


@contextlib.contextmanager
def unverified(bootstrap: str) -> Iterator[None]:
    """Let the broker take records of a transaction that its coordinator does not know."""
    name = "transaction.partition.verification.enable"
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alter(value: str | None, how: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=how)
        place = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for answer in admin.incremental_alter_configs([place]).values():
            answer.result(30)

    alter("false", AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(None, AlterConfigOpType.DELETE)


def lags(bootstrap: str, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return per partition where the group stands, and how far behind."""
    lines = kafka_command(
        "tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--group", group),
    )
    row = re.compile(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\s")
    found = filter(None, map(row.search, lines))
    return {int(one[1]): (int(one[2]), int(one[3])) for one in found}
