"""A checkpoint on several nodes: the chaos scenarios on a standalone Spark cluster.

Stories of both modes on one cluster of a master and two workers, each worker with one executor of
one core. The continuous one comes first: it needs both slots, and the other one kills a worker.
A Python worker stops itself (SIGSTOP) when its transaction is prepared, in phase 1; only then the
test kills what the story says, so that no kill misses its moment. `arm` lets the next one stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import (
    Follower,
    read_committed,
    read_uncommitted,
)
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import PARTITIONS, Pipeline, Run
from tests.integration.spark_cluster import Found, SparkCluster
from tests.integration.test_continuous import ROOT, Copy
from tests.tiers import long
from tests.waiting import until
from transactions.clock import Deadline

BATCH = 40
TRIES = 5
#: A task that takes twice the median gets a copy on the other host, soon.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "2",
    "spark.speculation.minTaskRuntime": "2s",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as running:
        yield running


class Story:
    """A pipeline on the cluster, whose processes meet their crash points only when told to.

    A crash point is disarmed while its file exists (`SPARKONCE_CRASH_ONCE`).
    """

    def __init__(self, pipeline: Pipeline, cluster: SparkCluster, follower: Follower) -> None:
        self.pipeline = pipeline
        self.cluster = cluster
        self.follower = follower
        self._in_worker = pipeline.folder / "stopped"
        self._in_driver = pipeline.folder / "crashed-decision_durable"
        #: The loser of a speculation stays stopped until Spark kills it, which may be later.
        self._stopped_before: set[int] = set()
        for trap in (self._in_worker, self._in_driver):
            trap.touch()

    def running(self, **conf: str) -> contextlib.AbstractContextManager[Run]:
        """Start a driver; `conf`: further Spark settings."""
        environment = {
            "SPARKONCE_CRASH_AT": "offsets_sent",
            "SPARKONCE_CRASH_ONCE": str(self._in_worker),
            "SPARKONCE_CRASH_SIGNAL": "STOP",
        }
        return self.pipeline.running(
            crash_at="decision_durable",
            trigger="0 seconds",
            max_offsets=BATCH,
            master=self.cluster.master_url,
            conf=orjson.dumps(self.cluster.conf(**environment) | conf).decode(),
        )

    def worker_stops(self, run: Run) -> Found:
        """Append records, and return the Python worker that stopped with its transaction ready.

        A broker shows what a transaction wrote to each partition in its own moment, so a batch can
        begin with the records of one, and the subtask of the other has an offset alone: losing
        that would leave nothing to see. It may go on then, and the next batch is taken.
        """
        for _ in range(TRIES):
            self._in_worker.unlink()
            self.pipeline.produce(BATCH, at_once=True)
            found = next_stopped(self.cluster, self._stopped_before)
            self._stopped_before.add(found.pid)
            if not self._has_offsets_alone():
                return found
            os.kill(found.pid, signal.SIGCONT)
            self.goes_on(run)
            self._stopped_before.discard(found.pid)  # it lives, and can be the next one
        raise AssertionError("every batch had a subtask without records")

    def _has_offsets_alone(self) -> bool:
        """Tell whether a transaction that waits for its decision has written no record."""
        with CoordinatorWire({"bootstrap.servers": self.pipeline.bootstrap}) as wire:
            deadline = Deadline(PATIENCE_S)
            found = wire.list_open(self.pipeline.application_id, None, deadline)
            described = wire.describe([one.transactional_id for one in found], deadline).values()
        touched = [{name.rpartition("-")[0] for name in one.partitions} for one in described]
        return {"__consumer_offsets"} in touched

    def driver_dies(self, run: Run) -> None:
        """Append records, and see the driver die of their decision."""
        self._in_driver.unlink()
        self.pipeline.produce(BATCH, at_once=True)
        assert run.wait(PATIENCE_S) == -signal.SIGKILL, run.text()

    def goes_on(self, run: Run) -> int:
        """Wait until all records are visible, and judge them while the driver runs.

        The audit waits until no transaction is open: that of the loser, which holds back readers,
        is ended by the janitor, since no other batch comes. Return how many records are hidden.
        """
        everything = self.pipeline.produced
        deadline = Deadline(PATIENCE_S)
        while len(self.follower.records) < everything:
            assert run.process.poll() is None, run.text()
            assert not deadline.expired(), f"{run.text()}\n{self.cluster.logs()}"
            deadline.pause(0.05)
        self.pipeline.audit()
        topics = (self.pipeline.copies, self.pipeline.counts)
        return sum(_aborted_records(self.pipeline.bootstrap, topic) for topic in topics)


def next_stopped(cluster: SparkCluster, before: set[int]) -> Found:
    """Wait until a Python worker, other than those before, has stopped at its crash point."""
    return until(
        lambda: cluster.stopped_python_worker(before),
        PATIENCE_S,
        lambda: f"no worker came to the crash point\n{cluster.logs()}",
        pause_s=0.02,
    )


def _aborted_records(bootstrap: str, topic: str) -> int:
    return len(read_uncommitted(bootstrap, topic)) - len(read_committed(bootstrap, topic))


@pytest.fixture
def story(bootstrap, topic, application_id, checkpoint, tmp_path, cluster) -> Iterator[Story]:
    pipeline = Pipeline(
        bootstrap=bootstrap,
        application_id=application_id,
        checkpoint=checkpoint,
        source=topic(PARTITIONS, "source"),
        copies=topic(PARTITIONS, "copies"),
        counts=topic(PARTITIONS, "counts"),
        folder=tmp_path,
    )
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        yield Story(pipeline, cluster, follower)


@long
def test_x5_an_executor_dies_under_a_continuous_stage(
    bootstrap: str,
    topic: Callable[..., str],
    application_id: str,
    tmp_path: Path,
    cluster: SparkCluster,
):
    """The whole stage ends with it. The restart strategy waits for the executor that takes its
    place, and starts the stage again from the last decision.
    """
    copy = Copy(
        bootstrap=bootstrap,
        app=application_id,
        source=topic(PARTITIONS, "source"),
        output=topic(PARTITIONS, "output"),
        folder=tmp_path,
    )
    conf = cluster.conf(
        PYTHONPATH=str(ROOT),
        SPARKONCE_CRASH_AT="offsets_sent",
        SPARKONCE_CRASH_ONCE=str(tmp_path / "stopped"),
        SPARKONCE_CRASH_SIGNAL="STOP",
    )
    options = {
        "master": cluster.master_url,
        "parallelism": PARTITIONS,
        "restart_strategy": "fixed-delay(attempts=3, delay=0.2 s)",
        "conf": orjson.dumps(conf).decode(),
    }
    with Follower(copy.bootstrap, copy.output) as follower:
        copy.produce()
        with copy.running(**options) as run:
            stopped = next_stopped(cluster, set())
            os.kill(cluster.executor_of(stopped).pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                # The kernel hangs up on a stopped process whose parents died; it may be first.
                os.kill(stopped.pid, signal.SIGKILL)
            run.until(lambda one: "event=restarted" in one.text())
            copy.produce()
            follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
            assert run.stop() == 0, run.text()
        copy.audit(follower)
    assert _aborted_records(copy.bootstrap, copy.output) > 0  # what the dead task had prepared


@pytest.mark.long
@pytest.mark.timeout(600)  # fourteen moments, one after the other
def test_x5_x14_executors_die_then_the_driver(story: Story):
    with story.running() as run:
        story.pipeline.produce(BATCH, at_once=True)
        assert story.goes_on(run) == 0

        stopped = story.worker_stops(run)
        os.kill(stopped.pid, signal.SIGKILL)
        hidden = story.goes_on(run)
        assert hidden > 0  # the task ran twice, and one of the two is not seen

        stopped = story.worker_stops(run)
        os.kill(story.cluster.executor_of(stopped).pid, signal.SIGKILL)
        assert story.goes_on(run) > hidden

        story.driver_dies(run)

    with story.running(**SPECULATION) as run:
        hidden = story.goes_on(run)
        run.until(lambda one: len(one.replays()) == 1)

        stopped = story.worker_stops(run)
        speculated = story.goes_on(run)
        assert speculated > hidden

        stopped = story.worker_stops(run)
        story.cluster.kill_worker(story.cluster.worker_of(stopped))
        assert story.goes_on(run) > speculated

        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0, run.text()
    story.pipeline.audit(story.follower)
