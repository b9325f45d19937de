"""One cluster under two names, which an older version took for two clusters.

The judge is a lag tool of its own: an admin client that reads the offsets of the group and the text
beside each. Only a transaction writes its token there; the driver's own commits have no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from connectors.pipeline import run
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import read_committed
from tests.integration.checkpoints import hooked
from tests.integration.in_process import Copying, copy, send, values
from transactions.clock import Deadline

PARTITIONS = 2
RECORDS = 40
TOKEN = re.compile(r"[0-9]+\.[0-9]+\.[0-9a-f]{16}")


def committed(bootstrap: str, group: str, topic: str) -> list[tuple[int, str]]:
    """Return offset and text of each partition of a group, as an independent client sees them."""
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    asked = [ConsumerGroupTopicPartitions(group, places)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_group_offsets(asked)[group].result(30)
    return [(one.offset, one.metadata or "") for one in found.topic_partitions]


def test_what_an_older_version_decided_without_offsets_is_healed(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The older version took the two names for two clusters, so its decision has no offsets. The
    broker then aborted what was decided; the new version must write it again as it was decided.
    """
    source, output = topic(PARTITIONS, "source"), topic(1, "output")
    job = Copying(spark, bootstrap, application_id, tmp_path, source, {output: copy})
    send(bootstrap, source, range(RECORDS))

    def dies(point: str, _checkpoint: int) -> None:
        if point == "decision_durable":
            raise RuntimeError("dies")

    with monkeypatch.context() as older:
        older.setattr(run, "offsets_carrier", lambda *_: None)
        with hooked(dies), pytest.raises(StreamingQueryException):
            job.run()
    decision = job.log().decision
    assert decision is not None
    assert decision.committables
    assert not any(one.source_offsets for one in decision.committables)
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as operator:
        for one in decision.committables:
            operator.fence(one.transactional_id, one.timeout_ms, Deadline(30))

    job.run()
    assert sorted(values(read_committed(bootstrap, output))) == list(range(RECORDS))
    send(bootstrap, source, range(RECORDS, 2 * RECORDS))
    job.run()
    assert sorted(values(read_committed(bootstrap, output))) == list(range(2 * RECORDS))
    seen = committed(bootstrap, application_id, source)
    assert sum(offset for offset, _ in seen) == 2 * RECORDS
    assert all(TOKEN.fullmatch(text) for _, text in seen), f"no transaction wrote this: {seen}"
