"""One source into Kafka, Parquet files and PostgreSQL under one decision: all or none.

The job is examples/three_sinks.toml under `sparkonce run`, with names of this test, killed with
SIGKILL at every step of the protocol, and judged by three readers that share nothing with it: a
read_committed consumer, pyarrow, SQL.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from connectors.files import committed_files
from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import ROOT, running
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.tiers import long
from tests.unit.s3_server import S3Server
from transactions.object_store_backend import ObjectStoreBackend

PARTITIONS = 2
RECORDS = 120
PER_CHECKPOINT = 40
LOG = "s3://bucket/three-sinks"
EXAMPLE = ROOT / "examples/three_sinks.toml"
#: What a test runs otherwise: once, in small checkpoints, and without a second try.
ONCE = 'trigger = "available-now"\nrestart_strategy = "none"\nmaster = "local[2]"'
HERE = {
    'trigger = "1 second"': ONCE,
    "maxOffsetsPerTrigger = 50000": f"maxOffsetsPerTrigger = {PER_CHECKPOINT}",
}


@dataclasses.dataclass
class Story:
    """The example, its input, and a reader of each output."""

    folder: Path
    bootstrap: str
    source: str
    output: str
    database: PostgresDatabase

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(RECORDS):
            producer.produce(self.source, self.word(number), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    @staticmethod
    def word(number: int) -> bytes:
        return b"word-%04d" % number

    def keep_log_in(self, store: S3Server) -> None:
        """Let the job keep its decision log in an object store."""
        lines = [f'{name} = "{value}"' for name, value in store.options().items()]
        text = "\n".join(["[decision_log]", f'address = "{LOG}"', *lines, ""])
        with (self.folder / "job.toml").open("a") as file:
            file.write(text)

    def run(self, crash_at: str = "") -> tuple[int, str]:
        """Run the job until it has read everything, or dies; return its exit code and text."""
        crash = {"SPARKONCE_CRASH_AT": crash_at} if crash_at else {}
        places = {"BROKERS": self.bootstrap, "DATABASE": self.database.conninfo}
        with running(self.folder / "job.toml", **places, **crash) as process:
            return process.wait(), process.text

    def in_kafka(self) -> Counter[str]:
        records = read_committed(self.bootstrap, self.output)
        return Counter(record.value.decode() for record in records)

    def in_files(self) -> Counter[str]:
        """Every file that a plain reader finds, whatever a manifest says."""
        folder = self.folder / "output/words"
        if not list(folder.glob("[!_]*")):
            return Counter()
        return Counter(ds.dataset(folder, format="parquet").to_table()["word"].to_pylist())

    def in_database(self) -> Counter[str]:
        return Counter(word for (word,) in self.database.execute("SELECT word FROM words"))


@pytest.fixture
def story(
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    postgres: PostgresDatabase,
) -> Story:
    source, output = topic(PARTITIONS, "source"), topic(PARTITIONS, "output")
    names = {
        'id = "three-sinks"': f'id = "{application_id}"',
        'subscribe = "words"': f'subscribe = "{source}"',
        'topic = "words-copied"': f'topic = "{output}"',
    }
    text = EXAMPLE.read_text("utf-8")
    for written, real in (names | HERE).items():
        assert text.count(written) == 1, written
        text = text.replace(written, real)
    (tmp_path / "job.toml").write_text(text)
    (table,) = re.findall(r"CREATE TABLE .*(?=')", text)
    postgres.execute(table)
    made = Story(tmp_path, bootstrap, source, output, postgres)
    made.produce()
    return made


BEFORE_THE_DECISION = ["records_flushed@0", "offsets_sent@0", "prepared_checked@0"]
AFTER_THE_DECISION = ["decision_durable@0", "one_committed@1", "all_committed@2"]


@long
def test_nothing_is_anywhere_before_the_decision_and_everything_after_it(story: Story):
    # What a dead run left open in Kafka is ended by the next: so this reader does not wait for it.
    with Follower(story.bootstrap, story.output) as follower:
        for crash_at in BEFORE_THE_DECISION:
            code, text = story.run(crash_at)
            assert code != 0, text
            assert follower.records == [], crash_at
            assert story.in_files() == story.in_database() == Counter(), crash_at
    code, text = story.run()
    assert code == 0, text
    judge(story)


@pytest.mark.long
def test_a_sigkill_at_each_step_after_the_decision(story: Story):
    """With the decision log in an object store: all that the next run knows comes from there."""
    with S3Server() as store:
        story.keep_log_in(store)
        for crash_at in AFTER_THE_DECISION:
            code, text = story.run(crash_at)
            assert code == -9, text
        code, text = story.run()
        assert code == 0, text
        assert ObjectStoreBackend(LOG, **store.options()).list()
    assert not (story.folder / "state/three-sinks/decisions").exists()
    judge(story)


def judge(story: Story) -> None:
    """Every word once in each of the three, and nothing left open in any."""
    everything = Counter(story.word(number).decode() for number in range(RECORDS))
    assert story.in_kafka() == everything
    assert story.in_files() == everything
    assert story.in_database() == everything
    whole = committed_files(story.folder / "output/words")
    assert sum(file.records for file in whole) == RECORDS
    assert story.database.prepared() == []
