"""What Kafka Streams and Connect promise (acceptance S and C), on our driver.

An independent read_committed reader judges; one Spark session serves all stories, and only the
instance that is stalled is a process of its own.
"""

from __future__ import annotations

import contextlib
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from connectors.testing.jobs import describe
from connectors.testing.pipeline import Pipeline
from connectors.testing.run import Run
from tests.auditor.reader import (
    Follower,
    Record,
    assert_no_open_transaction,
    read_committed,
    read_uncommitted,
)
from tests.integration import driver_function
from tests.integration.in_process import (
    CONTINUOUS,
    Branch,
    Copying,
    copy,
    copy_in_place,
    per_key,
    send,
    stop,
    values,
)
from tests.integration.job_process import PATIENCE_S
from tests.shared_broker import assert_no_open_transaction as assert_nothing_lingers
from tests.tiers import long
from tests.waiting import until
from transactions.clock import Deadline

#: Regression of the time a driver needs to stop (P16); Spark alone takes one.
STOP_SECONDS = 20.0


Make = Callable[..., Copying]


@pytest.fixture
def make(spark: SparkSession, bootstrap: str, application_id: str, tmp_path: Path) -> Make:
    """Make the pipeline of a test: ``make(source, {output: copy}, min_partitions=2)``."""

    def pipeline(source: str, branches: dict[str, Branch], **options: Any) -> Copying:
        checkpoint = tmp_path / "checkpoint"
        return Copying(spark, bootstrap, application_id, checkpoint, source, branches, options)

    return pipeline


#: Where an instance is stalled, and what it says when it wakes up after another has taken over.
STALLED = {"committables_collected@1": "the newest wins", "decision_durable@1": "FencedError"}


class CrashError(Exception):
    """What a test injects."""


@long
def test_s1_p16_a_copy_through_a_topic_in_two_drivers_restarted_twice(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
):
    """1 -> 3 partitions in the first driver, 3 -> 1 in the second, which reads its output."""
    source, through, output = topic(1, "in"), topic(3, "through"), topic(1, "out")
    pipelines = [
        Copying(
            spark,
            bootstrap,
            f"{application_id}-{number}",
            tmp_path / str(number),
            read,
            {written: copy},
            {"max_offsets_per_trigger": 25},
        )
        for number, (read, written) in enumerate([(source, through), (through, output)])
    ]
    produced = 0
    with Follower(bootstrap, output) as reader:
        for _ in range(3):
            drivers = [each.driver(trigger=CONTINUOUS) for each in pipelines]
            for driver in drivers:
                driver.start()
            send(bootstrap, source, range(produced, produced + 60))
            produced += 60
            reader.until(lambda seen, enough=produced: len(seen) >= enough, timeout=PATIENCE_S)
            stopping = Deadline(STOP_SECONDS)
            stop(*drivers)
            assert not stopping.expired()
        seen = reader.drain()
    sent = per_key(read_committed(bootstrap, source))
    assert sum(map(len, sent.values())) == produced
    assert per_key(read_committed(bootstrap, through)) == sent
    assert per_key(read_committed(bootstrap, output)) == sent
    assert per_key(seen) == sent
    for each in pipelines:
        assert_nothing_lingers(bootstrap, each.app)


@long
def test_s3_s7_two_bursts_are_two_transactions_and_a_restart_reads_nothing_twice(
    make: Make, bootstrap: str, topic: Callable[..., str], application_id: str
):
    source, output = topic(1, "in"), topic(1, "out")
    copying = make(source, {output: copy})
    send(bootstrap, source, range(40))
    assert [one.records for one in copying.run().reports] == [40]
    assert values(read_committed(bootstrap, output)) == list(range(40))
    assert assert_no_open_transaction(bootstrap, output) == {0: 41}  # and one marker

    assert list(copying.run().reports) == []
    assert assert_no_open_transaction(bootstrap, output) == {0: 41}
    assert group_offset(bootstrap, application_id, source) == 40

    send(bootstrap, source, range(40, 60))
    assert [one.records for one in copying.run().reports] == [20]
    assert values(read_committed(bootstrap, output)) == list(range(60))
    assert assert_no_open_transaction(bootstrap, output) == {0: 62}
    assert group_offset(bootstrap, application_id, source) == 60


class FailsOnceBeside:
    """A function of a user that fails when the other task's records stand in the output already."""

    def __init__(self, bootstrap: str, output: str, flag: Path, *, poison: int, written: int):
        self._bootstrap, self._output, self._flag = bootstrap, output, flag
        self._poison, self._written = b"%06d" % poison, written

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            poisoned = self._poison in batch.column("value").to_pylist()
            if poisoned and not self._flag.exists():
                deadline = Deadline(PATIENCE_S)
                while len(read_uncommitted(self._bootstrap, self._output)) < self._written:
                    assert not deadline.expired()
                    deadline.pause(0.05)
                self._flag.touch()
                raise CrashError("injected")
            yield batch


def statistics(rows: DataFrame) -> DataFrame:
    """Count, largest and sum of each key's numbers."""
    number = f.col("value").cast("string").cast("long")
    found = rows.groupBy("key").agg(f.count("*"), f.max(number), f.sum(number))
    return found.toDF("key", "n", "most", "total").selectExpr(
        "key", "concat_ws(' ', n, most, total) AS value"
    )


def statistics_of(numbers: Iterable[int], keys: int = 5) -> dict[bytes, bytes]:
    """Say what `statistics` ends with, from what was committed only."""
    by_key = defaultdict(list)
    for number in numbers:
        by_key[b"key-%d" % (number % keys)].append(number)
    return {key: b"%d %d %d" % (len(n), max(n), sum(n)) for key, n in by_key.items()}


def assert_statistics(records: list[Record], numbers: Iterable[int]) -> None:
    """Every key's count only grows, and its last line is that of the committed numbers."""
    by_key = per_key(records)
    assert {key: lines[-1] for key, lines in by_key.items()} == statistics_of(numbers)
    for lines in by_key.values():
        counts = [int((line or b"").split()[0]) for line in lines]
        assert counts == sorted(set(counts))


def test_s4_s5_one_task_fails_uncommitted_records_are_written_and_never_counted(
    make: Make, spark: SparkSession, bootstrap: str, topic: Callable[..., str], tmp_path: Path
):
    """50 records stand in the log, 40 are committed, and the state knows of 40."""
    source, output, state = topic(2, "in"), topic(2, "out"), topic(1, "state")
    fails = FailsOnceBeside(bootstrap, output, tmp_path / "failed", poison=39, written=30)

    def copies(rows: DataFrame) -> DataFrame:
        return copy_in_place(rows).mapInArrow(fails, "key binary, value binary, partition int")

    copying = make(source, {output: copies, state: statistics})
    for number in (0, 1):
        send(bootstrap, source, range(number, 20, 2), partition=number)
    copying.run()
    before = read_committed(bootstrap, output)
    assert sorted(values(before)) == list(range(20))

    for number in (20, 21):
        send(bootstrap, source, range(number, 40, 2), partition=number % 2)
    driver = copying.run(restart_strategy="fixed-delay(attempts=1, delay=0)")
    assert (tmp_path / "failed").exists()
    assert driver.restarts == 1
    committed = read_committed(bootstrap, output)
    assert sorted(values(committed)) == list(range(40))
    assert [record for record in committed if record in before] == before
    assert len(read_uncommitted(bootstrap, output)) == 50
    assert_statistics(read_committed(bootstrap, state), range(40))
    stored = spark.read.format("statestore").load(str(copying.checkpoint / "spark"))
    found = {row.key.key: row.value.asDict() for row in stored.collect()}
    assert {bytes(key): b"%d %d %d" % tuple(row.values()) for key, row in found.items()} == (
        statistics_of(range(40))
    )


@long
@pytest.mark.parametrize(
    ("stalled_at", "words"),
    STALLED.items(),
    ids=STALLED.keys(),
)
def test_s6_a_stalled_instance_is_overtaken_and_then_goes_on(
    stalled_at: str,
    words: str,
    make: Make,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """SIGSTOP of driver, JVM and workers with a checkpoint in hand, before and after its decision.

    40 records are visible when the second one has taken over, 60 while the first is still frozen;
    SIGCONT adds none, and the first ends by itself.
    """
    source, output = topic(1, "in"), topic(1, "out")
    stalled = Pipeline(
        describe(driver_function.copy),
        bootstrap_servers=bootstrap,
        folder=tmp_path,
        app_id=application_id,
        arguments={"source": source, "output": output, "most": 20},
        trigger=CONTINUOUS,
    )
    copying = make(source, {output: copy}, max_offsets_per_trigger=20)
    assert copying.checkpoint == stalled.checkpoint
    send(bootstrap, source, range(40))
    monkeypatch.setenv("SPARKONCE_CRASH_SIGNAL", "STOP")
    with Follower(bootstrap, output) as reader, stalled.running(crash_at=stalled_at) as older:
        with frozen(older):
            reader.until(lambda seen: len(seen) == 20)
            newer = copying.driver(trigger=CONTINUOUS)
            newer.start()
            reader.until(lambda seen: len(seen) >= 40, timeout=PATIENCE_S)
            send(bootstrap, source, range(40, 60))
            reader.until(lambda seen: len(seen) >= 60, timeout=PATIENCE_S)
        assert older.wait() == 3, older.text()
        assert words in older.text()
        send(bootstrap, source, range(60, 80))
        reader.until(lambda seen: len(seen) >= 80, timeout=PATIENCE_S)
        stop(newer)
        assert values(reader.drain()) == list(range(80))
    assert values(read_committed(bootstrap, output)) == list(range(80))


@contextlib.contextmanager
def frozen(run: Run) -> Iterator[None]:
    """Wait until the driver has stopped itself, and stop what it has started as well."""
    driver = psutil.Process(run.process.pid)
    until(lambda: driver.status() == psutil.STATUS_STOPPED, PATIENCE_S, run.text)
    tree = [*driver.children(recursive=True), driver]
    for process in tree:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
        assert driver.status() == psutil.STATUS_STOPPED
    finally:  # a worker is in a group of its own: nobody else would wake it up
        for process in tree:
            process.send_signal(signal.SIGCONT)


@long
def test_s7_s9_c1_state_and_source_over_aborted_records_and_a_stop_while_restoring(
    make: Make, bootstrap: str, topic: Callable[..., str], application_id: str
):
    """Fibonacci transactions, every other one aborted; batches begin and end in the gaps.

    Checkpoint 2 is committed and Spark does not learn it; the next driver is stopped while it
    starts; the third one replays the checkpoint for its state and goes on.
    """
    source, output, state = topic(1, "in"), topic(1, "out"), topic(1, "state")
    feed = Fibonacci(bootstrap, source)
    copying = make(source, {output: copy, state: statistics}, max_offsets_per_trigger=7)
    feed.send(1, 1, 2, 3, 5, 8)

    def crash(report: object) -> None:
        if getattr(report, "checkpoint_id", 0) == 2:
            raise CrashError("after the commit, before Spark knows")

    with pytest.raises(Exception, match="before Spark knows"):
        copying.run(on_checkpoint=crash)
    stopped = copying.driver()
    stopped.request_stop()
    stopped.run()
    feed.send(13, 21, 34)
    driver = copying.run()
    assert [one.checkpoint_id for one in driver.reports if one.replayed] in ([2], [])
    assert values(read_committed(bootstrap, output)) == feed.committed
    assert_statistics(read_committed(bootstrap, state), feed.committed)
    ends = assert_no_open_transaction(bootstrap, source)
    assert group_offset(bootstrap, application_id, source) == ends[0]
    assert list(copying.run().reports) == []


class Fibonacci:
    """A producer of numbered records in transactions, of which every other one is aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 3}
        )
        self._producer.init_transactions(30)
        self._sent = self._transactions = 0
        self.committed: list[int] = []

    def send(self, *sizes: int) -> None:
        for size in sizes:
            self._producer.begin_transaction()
            numbers = range(self._sent, self._sent + size)
            for number in numbers:
                key = b"key-%d" % (number % 5)
                self._producer.produce(self._topic, b"%06d" % number, key, partition=0)
            self._sent += size
            self._transactions += 1
            if self._transactions % 2:
                self._producer.commit_transaction(30)
                self.committed += numbers
            else:
                assert self._producer.flush(30) == 0  # aborted, and written all the same
                self._producer.abort_transaction(30)


@long
def test_c4_f35_reconfigured_each_generation_is_fenced_and_its_numbers_are_contiguous(
    make: Make, bootstrap: str, topic: Callable[..., str], application_id: str
):
    """Tasks 2 > 2 > 4 > 2 (F35) > 3 > 5 > 1 > 5 > 3 (C4), records come while nothing runs.

    A task of each generation outlives it: it writes into an open transaction, under an id as
    that generation's workers have it. The next generation fences it before it reads.
    """
    source, output = topic(1, "in"), topic(1, "out")
    copying = make(source, {output: copy})
    zombies: list[Producer] = []
    for generation, tasks in enumerate([2, 2, 4, 2, 3, 5, 1, 5, 3]):
        send(bootstrap, source, range(20 * generation, 20 * (generation + 1)))
        driver = copying.reading(min_partitions=tasks).run()
        assert [one.records for one in driver.reports] == [20]  # F35: what it says it sent
        log = copying.log()
        assert log.decision is not None
        assert len(log.written) == tasks  # a clean end has settled them
        assert_fenced(*zombies)
        written = values(read_committed(bootstrap, output))
        assert sorted(written) == list(range(20 * (generation + 1)))
        writer = f"{application_id}.{log.log_id}.{log.run_epoch}.zombie.0"
        zombies = [open_transaction(bootstrap, writer, output, b"zombie-%d" % generation)]
    copying.run()
    assert_fenced(*zombies)
    assert len(read_committed(bootstrap, output)) == 180
    assert len(read_uncommitted(bootstrap, output)) == 189


def open_transaction(bootstrap: str, writer: str, topic: str, value: bytes) -> Producer:
    """Return a producer that has written one record and neither committed nor aborted it."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": writer, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    return producer


def assert_fenced(*producers: Producer) -> None:
    """None of them can commit what it wrote."""
    for producer in producers:
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(30)
        assert raised.value.args[0].code() in {
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        }


def group_offset(bootstrap: str, group: str, topic: str) -> int:
    """Return what the group has committed for partition 0."""
    with contextlib.closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as one:
        return int(one.committed([TopicPartition(topic, 0)], timeout=30)[0].offset)
