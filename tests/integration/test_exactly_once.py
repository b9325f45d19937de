"""The two-phase matrix on a real broker and a real Spark, with real SIGKILLs.

Every test tells a story: input, a crash here, run again, then an independent read_committed
reader judges both output topics, and a second one that was reading all the while agrees (X23).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.auditor.reader import Follower, read_committed
from tests.integration.pipeline_process import PARTITIONS, Pipeline
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

RECORDS = 120  # three batches of 40


@pytest.fixture
def pipeline(bootstrap, topic, application_id, checkpoint, tmp_path) -> Pipeline:
    made = Pipeline(
        bootstrap=bootstrap,
        application_id=application_id,
        checkpoint=checkpoint,
        source=topic(PARTITIONS, "source"),
        copies=topic(PARTITIONS, "copies"),
        counts=topic(PARTITIONS, "counts"),
        folder=tmp_path,
    )
    made.produce(RECORDS)
    return made


CRASHES = {
    "x1_worker_before_flush": "records_queued@1",
    "x2_worker_before_offsets": "records_flushed@1",
    "x3_worker_prepared": "offsets_sent@1",
    "x3_driver_prepared": "committables_collected@1",
    "x4_driver_decided": "decision_durable@1",
    "x5_driver_committed_before_spark_knows": "all_committed@1",
    "x8_driver_after_the_first_of_several": "one_committed@1",
}


@pytest.mark.parametrize("crash_at", CRASHES.values(), ids=CRASHES.keys())
def test_x1_to_x8_a_sigkill_at_each_step(pipeline: Pipeline, crash_at: str):
    by_worker = crash_at.split("@", maxsplit=1)[0] in (
        "records_queued",
        "records_flushed",
        "offsets_sent",
    )
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        code, run = pipeline.run_once(crash_at=crash_at)
        assert code == (1 if by_worker else -signal.SIGKILL), run.text()
        assert run.checkpoints() == [0], run.text()
        code, run = pipeline.run_once()
        assert code == 0, run.text()
        decided = crash_at.split("@", maxsplit=1)[0] in (
            "decision_durable",
            "one_committed",
            "all_committed",
        )
        assert (
            run.lines[0] == {"checkpoint": 1, "records": 0, "replayed": True}
            if decided
            else (run.lines[0]["replayed"] is False)
        ), run.text()
        pipeline.audit(follower)


def test_f4_two_crashes_in_a_row_and_one_in_recovery(pipeline: Pipeline):
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        for crash_at in ("decision_durable@1", "recovery_fenced", "one_committed@2"):
            code, run = pipeline.run_once(crash_at=crash_at)
            assert code == -signal.SIGKILL, run.text()
        code, run = pipeline.run_once()
        assert code == 0, run.text()
        pipeline.audit(follower)


def test_x14_a_task_that_died_is_retried_and_its_transaction_never_seen(pipeline: Pipeline):
    """Spark runs the task again in the same batch; the loser is fenced by the janitor."""
    code, run = pipeline.run_once(crash_at="offsets_sent@1", master="local[2,4]")
    assert code == 0, run.text()
    assert run.checkpoints() == [0, 1, 2]
    pipeline.audit()


def test_x15_two_drivers_on_one_checkpoint_the_newest_wins(pipeline: Pipeline):
    with pipeline.running(trigger="0 seconds") as older:
        older.until(lambda run: len(run.checkpoints()) >= 1)
        with pipeline.running(trigger="0 seconds") as newer:
            newer.until(
                lambda run: (
                    any("recovered: run" in line for line in run.errors)
                    or bool(run.checkpoints())
                    or older.process.poll() is not None
                )
            )
            pipeline.produce(40)
            assert older.wait() == 3, older.text()
            assert "FencedError" in older.text()
            assert "newer run" in older.text()
            pipeline.produce(40)
            _until_visible(pipeline)
            newer.process.send_signal(signal.SIGTERM)
            assert newer.wait() == 0, newer.text()
    pipeline.audit()


def test_sigterm_stops_between_two_checkpoints(pipeline: Pipeline):
    with pipeline.running(trigger="0 seconds") as run:
        run.until(lambda one: len(one.checkpoints()) >= 1)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0, run.text()
    code, run = pipeline.run_once()
    assert code == 0, run.text()
    pipeline.audit()


def test_f15_x11_an_empty_transaction_never_becomes_a_committable(pipeline: Pipeline):
    """One source partition gets no data: its subtask writes nothing, and ends nothing."""
    code, run = pipeline.run_once(max_offsets=1000)
    assert code == 0, run.text()
    decision = read_log(LocalFileBackend(Path(pipeline.checkpoint) / "decisions")).decision
    assert decision is not None
    for one in decision.committables:
        assert one.record_count > 0 or one.source_offsets
    pipeline.audit()


def _until_visible(pipeline: Pipeline) -> None:
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        follower.until(lambda records: len(records) == pipeline.produced, timeout=60)
    assert len(read_committed(pipeline.bootstrap, pipeline.copies)) == pipeline.produced
