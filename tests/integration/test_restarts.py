"""Runs that fail go on by themselves, in the same process, and no record shows it.

The reader that judges is independent (read_committed), as in every crash test.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.cluster.local_cluster import LocalCluster
from connectors.spark import StreamingDriver
from tests.auditor.reader import Follower, read_committed
from tests.auditor.reader import assert_no_open_transaction as assert_all_ended
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import pipeline_on
from tests.integration.test_bad_input import produce
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from transactions import events
from transactions.clock import Deadline
from transactions.errors import CheckpointTimeoutError, MissingTopicError

EXPONENTIAL = "exponential-delay(initial=200ms, max=2s, attempts=30)"


@long
def test_k3_a_broker_that_is_killed_and_comes_back(tmp_path: Path):
    """The run fails for good, is restarted until the broker answers, and goes on."""
    with LocalCluster() as cluster:
        bootstrap = cluster.bootstrap_servers

        def topics(partitions: int, name: str) -> str:
            cluster.create_topic(name, partitions)
            return name

        pipeline = pipeline_on(bootstrap, topics, tmp_path, "restarts")
        pipeline.produce(80)
        with pipeline.running(
            trigger="0 seconds",
            restart_strategy=EXPONENTIAL,
            poll_timeout_ms=2000,
            checkpoint_timeout=20,
        ) as run:
            run.until(lambda one: len(one.checkpoints()) >= 2)
            # Kafka 4.4 with one broker, killed between PREPARE_COMMIT and the markers, finds no
            # leader as it starts, takes the partitions for deleted and never writes the markers
            # (seen, four times of four): nothing of ours could show the records then.
            for name in (pipeline.copies, pipeline.counts):
                assert_all_ended(bootstrap, name)
            cluster.kill_broker(0)
            run.until(lambda one: any(": restart 1 in " in line for line in one.errors))
            cluster.start_broker(0)
            pipeline.produce(80)
            with Follower(bootstrap, pipeline.copies) as reader:
                reader.until(lambda seen: len(seen) == pipeline.produced, timeout=PATIENCE_S)
            run.process.terminate()
            assert run.wait() == 0, run.text()
        assert "event=restarted app=restarts attempt=1" in "".join(run.errors)
        pipeline.audit()
        assert_no_open_transaction(bootstrap, "restarts")


@long  # a task of the continuous mode is killed in `make test`
def test_x3_x14_a_killed_worker_and_the_same_process_goes_on(
    bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path
):
    """SIGKILL with a prepared transaction in hand: the sweep of the next run ends it."""
    pipeline = pipeline_on(bootstrap, topic, tmp_path, application_id)
    pipeline.produce(120)
    code, run = pipeline.run_once(
        crash_at="offsets_sent@1", restart_strategy="fixed-delay(attempts=1, delay=100ms)"
    )
    assert code == 0, run.text()
    assert (pipeline.folder / "crashed-offsets_sent@1").exists()
    assert run.checkpoints() == [0, 1, 2]
    assert sum(": restart 1 in 0.1 s" in line for line in run.errors) == 1
    pipeline.audit()


class BlocksOnce:
    """A function of a user that waits for ever at one record, the first time it is seen."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            stuck = b"stuck" in batch.column("value").to_pylist()
            if stuck and not self._flag.exists():
                self._flag.touch()
                while True:
                    time.sleep(60)
            yield batch


@pytest.fixture
def published() -> Iterator[list[events.Event]]:
    """Events of this process, of the kind `restarted`."""
    found: list[events.Event] = []
    unsubscribe = events.subscribe(lambda e: found.append(e) if e.kind == "restarted" else None)
    yield found
    unsubscribe()


def copying(
    spark: SparkSession,
    bootstrap: str,
    app: str,
    folder: Path,
    source: str,
    sink: str,
    **more: object,
) -> StreamingDriver:
    """A driver that copies through `BlocksOnce`."""
    driver = StreamingDriver(spark, app_id=app, checkpoint=folder / "checkpoint", **more)
    rows = driver.read(
        KafkaSource(
            bootstrap_servers=bootstrap,
            subscribe=source,
            starting_offsets="earliest",
            max_offsets_per_trigger=2,
        )
    ).select("value")
    copied = rows.mapInArrow(BlocksOnce(folder / "flag"), "value binary")
    driver.write(copied, KafkaSink(bootstrap_servers=bootstrap, topic=sink))
    return driver


@long
def test_a_stuck_job_is_cancelled_and_the_next_run_goes_on(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    published: list[events.Event],
):
    source, sink = topic(1, "in"), topic(1, "out")
    values = ["1", "2", "3", "stuck", "5"]
    copies = functools.partial(copying, spark, bootstrap, application_id, tmp_path, source, sink)
    for value in values[:2]:
        produce(bootstrap, source, value)
    began = time.monotonic()
    copies(trigger="available-now").run()
    # How long a batch in order takes depends on the machine: the stuck one gets three times that.
    timeout_s = max(6.0, 3 * (time.monotonic() - began))
    for value in values[2:]:
        produce(bootstrap, source, value)
    driver = copies(
        trigger="available-now",
        checkpoint_timeout_s=timeout_s,
        restart_strategy="fixed-delay(attempts=3, delay=0)",
        tolerable_failed_checkpoints=1,
    )
    driver.run()
    assert (tmp_path / "flag").exists()
    assert driver.restarts == len(published) == 1
    for event in published:
        assert str(event.fields["cause"]).startswith(CheckpointTimeoutError.__name__)
    assert [r.value for r in read_committed(bootstrap, sink)] == [v.encode() for v in values]


@pytest.mark.long
def test_a_permanent_error_ends_the_pipeline_at_once(
    spark: SparkSession,
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    published: list[events.Event],
):
    """The topic is deleted under the running pipeline; nobody but a person brings it back."""
    source, sink = topic(1, "in"), topic(1, "out")
    produce(bootstrap, source, "1")
    (tmp_path / "flag").touch()
    driver = copying(spark, bootstrap, application_id, tmp_path, source, sink, trigger="0 seconds")
    driver.start()
    with Follower(bootstrap, sink) as reader:
        reader.until(lambda seen: len(seen) == 1, timeout=PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([source])[source].result()
    with pytest.raises(MissingTopicError):
        driver.wait()
    assert driver.restarts == 0
    assert published == []


@pytest.mark.long
def test_x15_an_older_driver_that_would_restart_itself_does_not_take_over(
    bootstrap, topic, application_id, tmp_path, monkeypatch
):
    """Frozen while a newer one fenced its writers it fails in phase 1, which is retried usually."""
    pipeline = pipeline_on(bootstrap, topic, tmp_path, application_id)
    pipeline.produce(80)
    monkeypatch.setenv("SPARKONCE_CRASH_SIGNAL", "STOP")
    with pipeline.running(
        crash_at="offsets_sent@1", trigger="0 seconds", restart_strategy=EXPONENTIAL
    ) as older:
        older.until(lambda one: len(one.checkpoints()) == 1)
        frozen = _stopped_worker(older.process.pid)
        monkeypatch.delenv("SPARKONCE_CRASH_SIGNAL")
        code, newer = pipeline.run_once()
        assert code == 0, newer.text()
        frozen.resume()
        assert older.wait() == 3, older.text()
        assert "FencedError" in older.text()
        assert "newer run" in older.text()
    pipeline.audit()


def _stopped_worker(driver: int) -> psutil.Process:
    """Return the Python worker of a driver that has stopped itself at its crash point."""
    deadline = Deadline(PATIENCE_S)
    while True:
        for child in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() == psutil.STATUS_STOPPED:
                    return child
        assert not deadline.expired()
        deadline.pause(0.1)
