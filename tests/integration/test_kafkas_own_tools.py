"""What an operator sees with Kafka's own commands is what we say: `kafka-console-consumer.sh`,
`kafka-consumer-groups.sh` and `kafka-transactions.sh`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.options.modes import MODES
from connectors.spark.pipeline import arrow_pipeline
from tests.auditor.reader import read_committed
from tests.kafka_tools import kafka_command
from tests.parity.query import produce
from tests.tiers import long
from transactions import crash_points
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

pytestmark = long

EACH = 20


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
    assert consumed(bootstrap, sink) == []

    copies()
    assert set(states(bootstrap, application_id).values()) <= {
        "CompleteCommit",
        "CompleteAbort",
        "Empty",
    }
    seen = consumed(bootstrap, sink)
    assert seen == sorted(one.value or b"" for one in read_committed(bootstrap, sink))
    assert seen == sorted(b"%d" % n for n in (*range(EACH), *range(EACH)))
    hanging = transactions(
        bootstrap, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"
    )
    assert [row for row in hanging if row[0] == sink] == []
    assert lags(bootstrap, application_id, source) == {0: (EACH, 0), 1: (EACH, 0)}


def lags(bootstrap: str, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return per partition where the group stands, and how far behind."""
    lines = kafka_command(
        "tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", bootstrap, "--describe", "--group", group),
    )
    row = re.compile(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\s")
    found = filter(None, map(row.search, lines))
    return {int(one[1]): (int(one[2]), int(one[3])) for one in found}
