"""One cluster under two names: the source says `localhost`, the sink says `127.0.0.1`.

The judge is a lag tool of its own: an admin client that reads the offsets of the group and the text
beside each. Only a transaction writes its token there; the driver's own commits have no text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.cluster.local_cluster import LocalCluster
from connectors.operations.job_topics import JobTopics
from connectors.options.job_file import parse_job
from connectors.pipeline import run
from connectors.spark import arrow_pipeline
from connectors.testing.topics import TopicFactory
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import read_committed
from tests.integration.checkpoints import hooked
from tests.integration.in_process import Copying, copy, send, values
from tests.tiers import long
from transactions.clock import Deadline

PARTITIONS = 2
RECORDS = 40
PATIENCE_S = 60.0
TOKEN = re.compile(r"[0-9]+\.[0-9]+\.[0-9a-f]{16}")


def committed(bootstrap: str, group: str, topic: str) -> list[tuple[int, str]]:
    """Return offset and text of each partition of a group, as an independent client sees them.

    confluent-kafka writes a zero byte behind each text and reads up to the next zero byte (2.16.1,
    seen). So it cannot read a text that another client wrote.
    """
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        found = admin.list_group_offsets({group: places})[group]
    return [(found[one].offset, found[one].metadata.rstrip("\0")) for one in places]


@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_transactions_carry_the_offsets_however_the_cluster_is_named(
    mode: str,
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
):
    read, written = names(bootstrap)
    source, output = topic(PARTITIONS, "source"), topic(PARTITIONS, "output")
    copied(spark, application_id, tmp_path, mode, (read, source), (written, output))
    seen = committed(bootstrap, application_id, source)
    assert [offset for offset, _ in seen] == [RECORDS] * PARTITIONS
    assert all(TOKEN.fullmatch(text) for _, text in seen), f"no transaction wrote this: {seen}"
    assert len(read_committed(bootstrap, output)) == PARTITIONS * RECORDS


@pytest.mark.long  # a second broker
@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_two_clusters_are_two(
    mode: str,
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
):
    """Here the driver writes the offsets; a transaction on one cluster cannot."""
    source = topic(PARTITIONS, "source")
    with LocalCluster() as other:
        there = TopicFactory(other)("output", PARTITIONS)
        places = (bootstrap, source), (other.bootstrap_servers, there)
        copied(spark, application_id, tmp_path, mode, *places)
        assert len(read_committed(other.bootstrap_servers, there)) == PARTITIONS * RECORDS
    assert committed(bootstrap, application_id, source) == [(RECORDS, "")] * PARTITIONS


def test_the_proof_of_a_job_reads_both_sides_of_one_cluster(bootstrap: str):
    read, written = names(bootstrap)
    text = f"""
        [app]
        id = "flights"
        checkpoint = "state"
        [source]
        "kafka.bootstrap.servers" = "{read}"
        subscribe = "flights"
        [[sink]]
        "kafka.bootstrap.servers" = "{written}"
        topic = "clean"
    """
    job = parse_job(text, Path("/jobs/flights.toml"), {})
    assert JobTopics.of(job).kafka == {"bootstrap.servers": read}


def names(bootstrap: str) -> tuple[str, str]:
    """Return two names of one broker."""
    port = bootstrap.rpartition(":")[2]
    return f"localhost:{port}", f"127.0.0.1:{port}"


def copied(
    spark: SparkSession,
    app: str,
    folder: Path,
    mode: str,
    source: tuple[str, str],
    sink: tuple[str, str],
) -> None:
    """Copy records from one topic to another, each with its brokers; all options are defaults."""
    for partition in range(PARTITIONS):
        send(source[0], source[1], range(RECORDS), partition=partition)
    pipeline = arrow_pipeline(
        spark,
        app_id=app,
        checkpoint=folder / "state",
        source=KafkaSource(
            bootstrap_servers=source[0], subscribe=source[1], starting_offsets="earliest"
        ),
        sink=KafkaSink(bootstrap_servers=sink[0], topic=sink[1]),
        mode=mode,
    )
    pipeline.start()
    deadline = Deadline(PATIENCE_S)
    while sum(report.records for report in pipeline.reports) < PARTITIONS * RECORDS:
        assert not deadline.expired()
        assert not pipeline.await_termination(0.1)
    pipeline.stop()
    assert pipeline.await_termination(PATIENCE_S)


@long
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
