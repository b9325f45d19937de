"""Continuous mode into files and into a database: a real broker, a real stage, real SIGKILLs.

The judges share nothing with the pipeline: pyarrow on every file of the folder, SQL, a lag tool.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors import KafkaSource
from connectors.files import FileSink, committed_files
from connectors.postgres import PostgresSink
from connectors.spark import arrow_pipeline
from connectors.wal import FileCheckpointCommitter, WriteAheadSink
from tests.integration.job_process import PATIENCE_S, running
from tests.integration.metrics_view import group_offset
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.waiting import until
from transactions.decision_log import read_log
from transactions.errors import ConfigurationError
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

PARTITIONS = 2
RECORDS = 40
JOB = """
[app]
id = "{app}"
checkpoint = "state"
mode = "continuous"
barrier_interval = "200 milliseconds"
master = "local[2]"
restart_strategy = "none"
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "{source}"
startingOffsets = "earliest"
[transform]
arrow = "tests.integration.continuous_main:copy"
"""
INTO_FILES = """
[[sink]]
kind = "files"
path = "words"
format = "parquet"
"""
INTO_A_DATABASE = """
columns = "key, value, partition"
[[sink]]
kind = "postgres"
conninfo = "{conninfo}"
table = "words"
"""


@dataclasses.dataclass
class Words:
    """Input, folder and names of one test."""

    bootstrap: str
    source: str
    app: str
    folder: Path
    produced: int = 0

    def produce(self, records: int = RECORDS) -> None:
        """Append records with unique values, spread over the partitions."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.produced, self.produced + records):
            headers = [("number", b"%d" % number)]
            partition = number % PARTITIONS
            producer.produce(self.source, b"%08d" % number, partition=partition, headers=headers)
        assert producer.flush(30) == 0
        self.produced += records

    def expected(self) -> Counter[bytes]:
        return Counter(b"%08d" % number for number in range(self.produced))

    def log(self) -> LogState:
        return read_log(LocalFileBackend(self.folder / "state" / "decisions"))

    def until_visible(self, read: Callable[[], Counter[bytes]]) -> None:
        until(lambda: read().total() >= self.produced, PATIENCE_S, read, pause_s=0.1)


@pytest.fixture
def words(bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path) -> Words:
    return Words(bootstrap, topic(PARTITIONS, "source"), application_id, tmp_path)


class Job:
    """A file that `sparkonce run` is given."""

    def __init__(self, words: Words, sink: str) -> None:
        self.words = words
        self.path = words.folder / "job.toml"
        begin = JOB.format(app=words.app, bootstrap=words.bootstrap, source=words.source)
        self.path.write_text(begin.rstrip() + sink)

    def run_until_killed(self, crash_at: str) -> tuple[int, str]:
        self.words.produce()
        with running(self.path, SPARKONCE_CRASH_AT=crash_at) as process:
            return process.wait(), process.text

    def run_to_the_end(self, read: Callable[[], Counter[bytes]]) -> str:
        self.words.produce()
        with running(self.path) as process:
            self.words.until_visible(read)
            assert process.terminate() == 0, process.text
            return process.text


# --- files ------------------------------------------------------------------------------------


class Files:
    """What a job writes into a folder, as others see it."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.folder = words.folder / "words"
        self.job = Job(words, INTO_FILES)

    def run_until_killed(self, crash_at: str) -> tuple[int, str]:
        return self.job.run_until_killed(crash_at)

    def run_to_the_end(self) -> str:
        return self.job.run_to_the_end(self.read)

    def read(self) -> Counter[bytes]:
        """Every file that a plain reader finds, whatever a manifest says."""
        if not list(self.folder.glob("[!_.]*")):
            return Counter()
        return Counter(ds.dataset(self.folder, format="parquet").to_table()["value"].to_pylist())

    def audit(self) -> None:
        """Assert that every record is there once, in order, and nothing else is."""
        assert self.read() == self.words.expected()
        assert list((self.folder / "_transactions").iterdir()) == []
        files = committed_files(self.folder)
        assert len(files) == len(list(self.folder.glob("[!_.]*")))
        last = dict.fromkeys(range(PARTITIONS), b"")
        for file in files:
            table = pq.read_table(file.path)
            pairs = zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True)
            for partition, value in pairs:
                assert value > last[partition], f"{file.path}: {value} after {last[partition]}"
                last[partition] = value


@pytest.mark.long
def test_a_sigkill_at_each_step_on_the_way_into_files(words: Words):
    """Two workers, then drivers: one whose decision the next must finish, one in the middle."""
    files = Files(words)
    for crash_at, code in (
        ("records_flushed", None),
        ("acknowledged", None),
        ("decision_durable", -signal.SIGKILL),
        ("renamed", -signal.SIGKILL),
    ):
        ended, text = files.run_until_killed(crash_at)
        assert ended == code or (code is None and ended > 0), text
        found = files.read()
        assert found <= words.expected(), f"killed at {crash_at}"
    files.run_to_the_end()
    files.audit()
    decision = words.log().decision
    assert decision is not None
    # No transaction carries the offsets here, and a lag tool sees them all the same.
    assert group_offset(words.bootstrap, words.app, words.source, PARTITIONS) == words.produced


@pytest.mark.long
def test_a_decided_file_that_somebody_removed_is_written_again(words: Words):
    files = Files(words)
    ended, text = files.run_until_killed("decision_durable")
    assert ended == -signal.SIGKILL, text
    decision = words.log().decision
    assert decision is not None
    assert decision.committables
    for one in decision.committables:
        (files.folder / "_transactions" / one.transactional_id).unlink()
    text = files.run_to_the_end()
    assert "event=healed" in text
    files.audit()


# --- the same pipeline in both modes ----------------------------------------------------------


def test_a_sink_gets_the_same_columns_and_rows_in_both_modes(words: Words, spark: SparkSession):
    """Types, their order and the names inside of lists; the function returns two of them only."""
    words.produce()
    schemas: dict[str, pa.Schema] = {}
    rows: dict[str, list[dict[str, object]]] = {}
    for mode, options in (
        ("micro-batch", {"trigger": "available-now"}),
        ("continuous", {"parallelism": 2}),
    ):
        folder = words.folder / mode
        pipeline = arrow_pipeline(
            spark,
            app_id=f"{words.app}-{mode}",
            checkpoint=words.folder / f"state-{mode}",
            source=KafkaSource(
                bootstrap_servers=words.bootstrap,
                subscribe=words.source,
                starting_offsets="earliest",
                include_headers=True,
            ),
            transform="tests.integration.test_continuous_sinks:value_and_headers",
            sink=FileSink(path=str(folder), name="words"),
            mode=mode,
            **options,
        )
        pipeline.start()
        words.until_visible(
            lambda folder=folder: Counter(
                value
                for file in committed_files(folder)
                for value in pq.read_table(file.path)["value"].to_pylist()
            )
        )
        pipeline.stop()
        assert pipeline.await_termination(60)
        tables = [pq.read_table(file.path) for file in committed_files(folder)]
        assert len({str(table.schema) for table in tables}) == 1
        schemas[mode] = tables[0].schema
        rows[mode] = sorted(
            (row for table in tables for row in table.to_pylist()), key=lambda row: row["value"]
        )
    assert schemas["continuous"].equals(schemas["micro-batch"], check_metadata=True)
    assert rows["continuous"] == rows["micro-batch"]
    assert [row["value"] for row in rows["continuous"]] == sorted(words.expected())
    assert rows["continuous"][7]["headers"] == [{"key": "number", "value": b"7"}]


def value_and_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["value", "headers"])


def test_what_a_sink_cannot_carry_it_refuses_in_both_modes(spark: SparkSession, tmp_path: Path):
    said = []
    for mode in ("micro-batch", "continuous"):
        with pytest.raises(ConfigurationError) as caught:
            arrow_pipeline(
                spark,
                app_id="app",
                checkpoint=tmp_path / mode,
                source=KafkaSource(bootstrap_servers="b:1", subscribe="in"),
                sink=PostgresSink(conninfo="host=nowhere dbname=words", table="words"),
                mode=mode,
            )
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "'headers'" in said[0]


# --- a write-ahead sink -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Appended(WriteAheadSink):
    """A user's own: it appends to a file, on the driver."""

    target: Path

    def send_values(self, records, *, checkpoint_id, subtask, timestamp_ms):
        with self.target.open("a") as file:
            for batch in records:
                file.writelines(f"{value.decode()}\n" for value in batch["value"].to_pylist())
        return True


def test_a_write_ahead_sink_sends_each_checkpoint_when_it_is_decided(
    words: Words, spark: SparkSession
):
    """Two starts, the second one in the middle of what a first stop has left to read."""
    target, buffer = words.folder / "sent", words.folder / "buffer"
    target.touch()

    def read() -> Counter[bytes]:
        return Counter(target.read_bytes().split())

    for _ in range(2):
        words.produce()
        pipeline = arrow_pipeline(
            spark,
            app_id=words.app,
            checkpoint=words.folder / "state",
            source=KafkaSource(
                bootstrap_servers=words.bootstrap,
                subscribe=words.source,
                starting_offsets="earliest",
            ),
            sink=Appended(
                name="sent",
                buffer=buffer,
                committer=FileCheckpointCommitter(words.folder / "marks"),
                target=target,
            ),
            mode="continuous",
            parallelism=2,
        )
        pipeline.start()
        words.until_visible(read)
        pipeline.stop()
        assert pipeline.await_termination(60)
    assert read() == words.expected()
    assert list((buffer / "sent").iterdir()) == []


# --- a database -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sigkill_at_each_step_on_the_way_into_a_database(
    words: Words, postgres: PostgresDatabase
):
    """A worker dies with a transaction prepared, then a driver with one decided."""
    postgres.execute("CREATE TABLE words (key bytea, value bytea UNIQUE, partition int)")

    def read() -> Counter[bytes]:
        return Counter(bytes(value) for (value,) in postgres.execute("SELECT value FROM words"))

    job = Job(words, INTO_A_DATABASE.format(conninfo=postgres.conninfo))
    for crash_at, code in (("offsets_sent", None), ("decision_durable", -signal.SIGKILL)):
        ended, text = job.run_until_killed(crash_at)
        assert ended == code or (code is None and ended > 0), text
        assert read() <= words.expected()
        # After a worker's death its sibling may prepare behind the driver's last sweep, which is
        # best effort: the recovery of the next start ends it, as the last lines prove.
        assert postgres.prepared() or crash_at == "offsets_sent", text
    job.run_to_the_end(read)
    assert read() == words.expected()
    assert postgres.prepared() == []
    assert group_offset(words.bootstrap, words.app, words.source, PARTITIONS) == words.produced
