"""An example with a query of the user's own, as a process: its input, its kills, its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer

from connectors.machine.java import ensure_java_home
from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import PATIENCE_S
from tests.integration.test_examples import rewritten, started
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

FILES, PER_FILE = 4, 15

#: A task reaches them; its worker dies.
WORKER_POINTS = ["records_queued", "records_flushed", "offsets_sent"]
POINTS = [
    "batch_started",
    *WORKER_POINTS,
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "one_committed",
    "all_committed",
    "batch_finished",
]

#: Words of the examples, and what a test has in their place.
FILE_SOURCE = (
    """spark.readStream.format("text").option("maxFilesPerTrigger", 1).load("examples/*.py")"""
)
KAFKA_SOURCE = """spark.readStream.format("kafka-exactly-once").option(
    "kafka.bootstrap.servers", "{}").option("subscribe", "{}").option(
    "startingOffsets", "earliest").option("maxOffsetsPerTrigger", 20).load()"""
SPARKS_KAFKA_SOURCE = KAFKA_SOURCE.replace("kafka-exactly-once", "kafka")
#: A source that counts, 20 rows a batch. It has no end, so the query is stopped.
RATE_SOURCE = """spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
lines = lines.selectExpr("CAST(value AS STRING)")"""
#: The same by the clock.
RATE_ITSELF = RATE_SOURCE.replace("rate-micro-batch", "rate").replace("PerBatch", "PerSecond")
TO_THE_END = "query.trigger(availableNow=True).start().awaitTermination()"
THREE_BATCHES = """query = query.start()
while len(query.recentProgress) < 3:
    query.awaitTermination(0.1)
query.stop()"""
ENDLESS = "query.start().awaitTermination()"
PLAIN = 'SparkSession.builder.master("local[2]").getOrCreate()'
KEEPS_STATE = """SparkSession.builder.master("local[2]").getOrCreate()
store = "spark.sql.streaming.stateStore."
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.conf.set(f"{store}checkpointFormatVersion", "2")
spark.conf.set(f"{store}rocksdb.changelogCheckpointing.enabled", "true")
spark.conf.set(f"{store}providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")"""
COUNTED = """
lines = lines.selectExpr("CAST(value AS INT) % 15 AS word").groupBy("word").count()
lines = lines.selectExpr("CAST(100 * word + count AS STRING) AS value")"""

#: Minutes in windows of ten. In each batch the watermark closes what the batch before has filled.
#: In the end a batch without data does it. The newest window stays open.
WINDOWED = """
from pyspark.sql.functions import window
lines = lines.selectExpr("timestamp_seconds(60 * CAST(value AS INT)) AS at")
lines = lines.withWatermark("at", "0 seconds").groupBy(window("at", "10 minutes")).count()
lines = lines.selectExpr("CAST(CAST(window.start AS LONG) DIV 6 + count AS STRING) AS value")"""
WINDOWS = [100 * number + 10 for number in range(FILES * PER_FILE // 10 - 1)]

#: A batch job of 60 lines; to be filled in: broker, topic, checkpoint, name of the job.
JOB = """import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
numbers = spark.range(60, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
writer = numbers.write.format("kafka-exactly-once").mode("append")
writer = writer.option("kafka.bootstrap.servers", "{}").option("topic", "{}")
writer.option("checkpointLocation", "{}").option("job.id", "{}").save()
"""


def text_files(folder: Path, files: int = FILES) -> Path:
    """Make the input: one file is one batch, and each line is there once."""
    folder.mkdir()
    for number in range(files):
        lines = (str(number * PER_FILE + line) for line in range(PER_FILE))
        path = folder / f"{number}.txt"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads the oldest file first
    return folder


def assert_seen(reader: Follower, batches: int) -> None:
    """Assert that a reader sees all of these batches in their order, and nothing more."""
    expected = list(range(batches * PER_FILE))
    reader.until(lambda records: len(records) >= len(expected))  # a broker's markers take a moment
    assert [int(one.value or b"") for one in reader.drain_stable()] == expected


def plain_spark() -> dict[str, str]:
    """Return what a script with a plain session needs here: Java, the workers' Python, and a JVM
    that starts soon; it lives a minute, and the second compiler costs more than it gains.
    """
    return {
        "JAVA_HOME": ensure_java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false",
    }


class Script:
    """An example that writes lines of text, with names of a test.

    Args:
        example: its file.
        bootstrap: the broker.
        topic: the target.
        folder: of the test.
        changes: words of the example and what the test has in their place.
    """

    def __init__(
        self, example: str, bootstrap: str, topic: str, folder: Path, changes: dict[str, str]
    ) -> None:
        self.bootstrap, self.topic, self.folder = bootstrap, topic, folder
        names = {"localhost:9092": bootstrap, "checkpoints/lines": str(folder / "checkpoint")}
        self.path = rewritten(example, folder, names | changes)

    @property
    def ours(self) -> Path:
        """The folder of the one application in the query's checkpoint."""
        (found,) = (self.folder / "checkpoint/sparkonce").iterdir()
        return found

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a process of it needs."""
        return plain_spark() | more

    def run(self, crash_at: str = "", **more: str) -> tuple[int, str]:
        """Run it until it ends or dies; return its exit code and what it has printed."""
        if crash_at:
            more["SPARKONCE_CRASH_AT"] = crash_at
        environment = self.environment(**more)
        with started([sys.executable, self.path.name], self.folder, **environment) as process:
            code = process.wait(PATIENCE_S)
        return code, self.said()

    def die_at_each(self, points: Sequence[str], died: Callable[[str, int, str], None]) -> None:
        """Run it once per point: batch 1 ends the first run at the first point, batch 2 the second
        one at the second, and so on. A last run goes to the end, and a reader sees all batches. So
        does one that reads all the time: the batches one after the other, each as a whole (X23).

        Args:
            points: of the protocol.
            died: called with the point, the exit code and what this run has printed.
        """
        with Follower(self.bootstrap, self.topic) as reader:
            for batch, point in enumerate(points, 1):
                code, said = self.run(f"{point}@{batch}")
                died(point, code, said)
                (self.folder / "out").unlink()
                (self.folder / "log").unlink()
                committed = POINTS.index(point) >= POINTS.index("one_committed")
                assert_seen(reader, batch + committed)
            code, said = self.run()
            assert code == 0, said
            reader.drain()
            assert_seen(reader, len(points) + 1)
        assert self.values() == list(range((len(points) + 1) * PER_FILE))

    def ends_at(self, batch: int) -> str:
        """Return where a batch of the query ends, as Spark has written it."""
        offsets = self.folder / f"checkpoint/offsets/{batch}"
        return offsets.read_text().split("\n", 2)[2]

    def said(self) -> str:
        """Return what its processes have printed so far."""
        return (self.folder / "out").read_text() + (self.folder / "log").read_text()

    def abort_decided(self) -> None:
        """Abort what is decided and not committed: as an operator does, or Kafka when the
        transactions are too old.
        """
        decision = read_log(LocalFileBackend(self.ours / "decisions")).decision
        assert decision is not None
        lost = [one.transactional_id for one in decision.committables]
        assert lost
        for one in lost:
            settings = {"bootstrap.servers": self.bootstrap, "transactional.id": one}
            Producer(settings).init_transactions(30)

    def values(self) -> list[int]:
        """Return what a reader sees."""
        found = read_committed(self.bootstrap, self.topic)
        return sorted(int(one.value or b"") for one in found)
