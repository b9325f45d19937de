"""A pipeline in one stage writes what the same pipeline writes in three.

`driver.pipe` reads, transforms and writes in one task. The judges are independent readers; what
three stages have decided, one stage must be able to prove, and the other way round.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver
from connectors.spark.pipeline import transformed
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import Follower, Record, assert_no_open_transaction, read_committed
from tests.integration.checkpoints import hooked
from tests.integration.job_process import running
from tests.pages import block, replaced, run_python
from tests.tiers import long
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.errors import DataLossError
from transactions.log_backend import LocalFileBackend

PARTITIONS = 2
RECORDS = 60
ONE, THREE = "one stage", "three stages"
#: The page names a function in a module; here it is one of this file.
FUNCTION = {'"my_module:clean"': "clean"}


def in_its_place(records: pa.RecordBatch) -> pa.RecordBatch:
    """Every column of a sink that the source can fill; three of four records."""
    kept = records.filter(pc.not_equal(pc.bit_wise_and(records["offset"], 3), 0))
    return kept.select(["key", "value", "headers", "partition", "timestamp"])


@dataclass(frozen=True)
class Pipeline:
    """One application on one checkpoint; each driver is a run of its own, in this process."""

    spark: SparkSession
    bootstrap: str
    app: str
    folder: Path
    source: str
    output: str

    def driver(self, stages: str, **options: Any) -> StreamingDriver:
        """Make a driver with as many Python stages."""
        driver = StreamingDriver(
            self.spark,
            app_id=self.app,
            checkpoint=self.folder / "state",
            trigger="available-now",
            restart_strategy="none",
        )
        source = KafkaSource(
            bootstrap_servers=self.bootstrap,
            subscribe=self.source,
            starting_offsets="earliest",
            include_headers=True,
            max_offsets_per_trigger=20,
            **options,
        )
        if stages == THREE:  # a frame; in one step the function itself returns the times
            sink = KafkaSink(
                bootstrap_servers=self.bootstrap, topic=self.output, write_timestamp=True
            )
            driver.write(transformed(driver.read(source), in_its_place), sink)
            return driver
        here = {"localhost:9092": self.bootstrap, "flights-clean": self.output}
        page = replaced(block("docs/running.md", "driver.pipe("), here | FUNCTION)
        names = {"driver": driver, "source": source, "KafkaSink": KafkaSink, "clean": in_its_place}
        run_python(page, names)
        return driver

    def run(self, stages: str) -> StreamingDriver:
        """Run a driver to the end of what is there."""
        driver = self.driver(stages)
        driver.run()
        return driver

    def written(self) -> list[tuple[Any, ...]]:
        """Return all that a reader can know of a record, in the order of each partition."""
        assert_no_open_transaction(self.bootstrap, self.output)
        return [contents(one) for one in read_committed(self.bootstrap, self.output)]


def contents(one: Record) -> tuple[Any, ...]:
    return one.partition, one.key, one.value, one.headers, one.timestamp


def expected(bootstrap: str, source: str) -> list[tuple[Any, ...]]:
    return [contents(one) for one in read_committed(bootstrap, source) if one.offset & 3]


def produce(bootstrap: str, topic: str) -> None:
    """Records of every shape: without a key, with an empty value, with headers twice and null."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(
            topic,
            b"" if number % 7 == 0 else b"value-%d" % number,
            key=None if number % 5 == 0 else b"key-%d" % number,
            partition=number % PARTITIONS,
            timestamp=1_700_000_000_000 + number,
            headers=[("h", b"%d" % number), ("h", None)] if number % 3 else None,
        )
    assert producer.flush(30) == 0


@pytest.fixture
def made(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
) -> Pipeline:
    source = topic(PARTITIONS, "in")
    produce(bootstrap, source)
    output = topic(PARTITIONS, "out")
    return Pipeline(spark, bootstrap, application_id, tmp_path, source, output)


def test_one_stage_writes_each_column_and_no_record_enters_the_jvm(made: Pipeline):
    driver = made.run(ONE)
    assert driver.await_termination(0.0), "it has ended, also when asked again"
    by_partition = sorted(expected(made.bootstrap, made.source), key=lambda row: row[0])
    assert sorted(made.written(), key=lambda row: row[0]) == by_partition
    assert len(by_partition) > RECORDS / 2
    assert driver.query is not None
    progress = [json.loads(one.json) for one in driver.query.recentProgress]
    batches = [one["numInputRows"] for one in progress if one["numInputRows"]]
    assert batches == [PARTITIONS] * (RECORDS // 20), "one row for each range"
    assert sum(report.records for report in driver.reports) == len(by_partition)


@long
@pytest.mark.parametrize(("before", "after"), [(THREE, ONE), (ONE, THREE)])
def test_x9_what_one_way_has_decided_the_other_way_proves_and_heals(
    made: Pipeline, before: str, after: str
):
    """A driver dies behind its decision, the broker aborts one of the transactions, and the next
    driver is of another version: it writes the lost records again, and they are the same.
    """
    with hooked(dies_at("decision_durable", 1)), pytest.raises(StreamingQueryException):
        made.run(before)
    decision = read_log(LocalFileBackend(made.folder / "state" / "decisions")).decision
    assert decision is not None
    lost = decision.committables[0]
    assert len(decision.committables) == PARTITIONS
    with CoordinatorWire({"bootstrap.servers": made.bootstrap}) as operator:
        operator.fence(lost.transactional_id, lost.timeout_ms, Deadline(30))
    with Follower(made.bootstrap, made.output) as reader:
        healed = made.run(after)
        seen = [contents(one) for one in reader.drain()]
    assert [one.checkpoint_id for one in healed.reports if one.healed] == [1]
    assert sorted(seen, key=repr) == sorted(made.written(), key=repr)
    assert sorted(seen, key=repr) == sorted(expected(made.bootstrap, made.source), key=repr)


@long
def test_records_that_are_gone_are_named_by_the_stage_that_reads(made: Pipeline):
    """The error comes from the sink's stage now: its type, and so the restart rule, stays."""
    with hooked(deletes(made)), pytest.raises(DataLossError) as told:
        made.run(ONE)
    assert "gone from the source topic" in str(told.value)
    assert "the topic holds [" in str(told.value)
    assert "failOnDataLoss=true" in str(told.value)


def deletes(made: Pipeline) -> Callable[[str, int], None]:
    """Delete the records of the source when the ranges of the second batch are planned."""

    def hook(point: str, checkpoint: int) -> None:
        if (point, checkpoint) == ("batch_started", 1):
            admin = AdminClient({"bootstrap.servers": made.bootstrap})
            everything = [TopicPartition(made.source, number, -1) for number in range(PARTITIONS)]
            for deleted in admin.delete_records(everything).values():
                deleted.result(30)

    return hook


def dies_at(wanted: str, number: int) -> Callable[[str, int], None]:
    def hook(point: str, checkpoint: int) -> None:
        if (point, checkpoint) == (wanted, number):
            raise RuntimeError(f"dies at {point}")

    return hook


JOB = """\
[app]
id = "{app}"
checkpoint = "state"
trigger = "available-now"
restart_strategy = "none"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{source}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = "20"
[[sink]]
"kafka.bootstrap.servers" = "{bootstrap}"
topic = "{output}"
"""

#: Who dies, and where; the next run recovers and goes on to the next point.
STORIES = {
    "worker": ["records_queued@0", "records_flushed@1", "offsets_sent@2"],
    "driver": ["committables_collected@0", "one_committed@1"],
    "decided_driver": ["decision_durable@0"],
}


@long
@pytest.mark.parametrize("story", STORIES)
def test_a_sigkill_at_each_step_of_a_plain_copy(made: Pipeline, story: str):
    """`sparkonce run` on a job without a transform: one stage, by default."""
    text = JOB.format(
        app=made.app, bootstrap=made.bootstrap, source=made.source, output=made.output
    )
    (made.folder / "job.toml").write_text(text)
    with Follower(made.bootstrap, made.output) as reader:
        for point in STORIES[story]:
            with running(made.folder / "job.toml", **crash(point, made.folder)) as job:
                code = job.wait()
            assert code == (1 if story == "worker" else -signal.SIGKILL), job.text
        with running(made.folder / "job.toml") as job:
            assert job.wait() == 0, job.text
        seen = reader.drain()
    found = sorted((one.value or b"", one.key or b"") for one in seen)
    source = read_committed(made.bootstrap, made.source)
    assert found == sorted((one.value or b"", one.key or b"") for one in source)
    assert_no_open_transaction(made.bootstrap, made.output)


def crash(point: str, folder: Path) -> dict[str, str]:
    once = os.fspath(folder / f"crashed-{point}")
    return {"SPARKONCE_CRASH_AT": point, "SPARKONCE_CRASH_ONCE": once}
