"""The two-phase matrix on a real broker and a real Spark, with real SIGKILLs.

Every test tells a story: input, a crash here, run again, then an independent read_committed
reader judges both output topics, and a second one that was reading all the while agrees (X23).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import Pipeline, pipeline_on
from tests.tiers import long, sampled
from tests.waiting import until
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

RECORDS = 120  # three batches of 40


@pytest.fixture
def pipeline(bootstrap, topic, application_id, tmp_path) -> Pipeline:
    made = pipeline_on(bootstrap, topic, tmp_path, application_id)
    made.produce(RECORDS)
    return made


#: Who is killed, and where; each run but the last dies at its point, and the next one recovers.
STORIES = {
    "x1_x2_x3_worker": ["records_queued@0", "records_flushed@1", "offsets_sent@2"],
    "x3_x5_driver": ["committables_collected@0", "one_committed@1"],
    "x4_x8_driver": ["decision_durable@0", "all_committed@1"],
    "f4_driver_in_recovery_too": ["decision_durable@1", "recovery_fenced", "recovery_settled"],
}
DECIDED = {"decision_durable", "one_committed", "all_committed"}


@pytest.mark.parametrize(
    "crashes", sampled(STORIES.values(), STORIES["x3_x5_driver"]), ids=STORIES.keys()
)
def test_a_sigkill_at_each_step(pipeline: Pipeline, crashes: list[str], request):
    tell(pipeline, crashes, by_worker="worker" in request.node.callspec.id)


def tell(pipeline: Pipeline, crashes: list[str], *, by_worker: bool, **options: object) -> None:
    """Die at one point after the other, then run to the end; the options are those of each run."""
    replays = []
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        for crash_at in crashes:
            code, run = pipeline.run_once(crash_at=crash_at, **options)
            assert code == (1 if by_worker else -signal.SIGKILL), run.text()
            replays += run.replays()
        code, run = pipeline.run_once(**options)
        assert code == 0, run.text()
        replays += run.replays()
        assert len(replays) == sum(point.split("@")[0] in DECIDED for point in crashes)
        pipeline.audit(follower)


@long  # `test_streams_scenarios.py` has state beside a replay in `make test`
@pytest.mark.parametrize("stateful", ["window", "transform-with-state"])
def test_state_agrees_with_the_output_after_a_replay(pipeline: Pipeline, stateful: str):
    """The decided batch is not written again, but its state is brought up once more."""
    code, run = pipeline.run_once(crash_at="decision_durable@1", stateful=stateful)
    assert code == -signal.SIGKILL, run.text()
    code, run = pipeline.run_once(stateful=stateful)
    assert code == 0, run.text()
    assert run.replays() == [1]
    pipeline.audit()


@long
def test_x14_a_task_that_died_is_retried_and_its_transaction_never_seen(pipeline: Pipeline):
    """Spark runs the task again in the same batch; the loser is fenced by the janitor."""
    code, run = pipeline.run_once(crash_at="offsets_sent@1", master="local[2,4]")
    assert code == 0, run.text()
    assert run.checkpoints() == [0, 1, 2]
    pipeline.audit()


@long
def test_x15_two_drivers_on_one_checkpoint_the_newest_wins(pipeline: Pipeline):
    with pipeline.running(trigger="0 seconds") as older:
        older.until(lambda run: len(run.checkpoints()) >= 1)
        with pipeline.running(trigger="0 seconds") as newer:
            # The second run has written its Fence.
            until(lambda: _log_of(pipeline).run_epoch != 1, PATIENCE_S, pause_s=0.1)
            pipeline.produce(40)
            assert older.wait() == 3, older.text()
            assert "FencedError" in older.text()
            assert "newer run" in older.text()
            pipeline.produce(40)
            _until_visible(pipeline)
            newer.process.send_signal(signal.SIGTERM)
            assert newer.wait() == 0, newer.text()
    pipeline.audit()


@pytest.mark.long
def test_sigterm_stops_between_two_checkpoints(pipeline: Pipeline):
    with pipeline.running(trigger="0 seconds") as run:
        run.until(lambda one: len(one.checkpoints()) >= 1)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0, run.text()
    code, run = pipeline.run_once()
    assert code == 0, run.text()
    pipeline.audit()


@pytest.mark.long
def test_f15_x11_w7_an_empty_transaction_never_becomes_a_committable(pipeline: Pipeline):
    """One source partition gets no data: its subtask writes nothing, and ends nothing."""
    code, run = pipeline.run_once(max_offsets=1000)
    assert code == 0, run.text()
    written = _log_of(pipeline).written  # a clean end has settled the decision
    assert written
    for one in written:
        assert one.record_count > 0 or one.source_offsets
    pipeline.audit()
    written = [read_committed(pipeline.bootstrap, t) for t in (pipeline.copies, pipeline.counts)]
    reported = sum(int(str(line["records"])) for line in run.lines if "records" in line)
    assert reported == sum(map(len, written))  # W7


def _log_of(pipeline: Pipeline) -> LogState:
    return read_log(LocalFileBackend(Path(pipeline.checkpoint) / "decisions"))


def _until_visible(pipeline: Pipeline) -> None:
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        follower.until(lambda records: len(records) == pipeline.produced, timeout=PATIENCE_S)
    assert len(read_committed(pipeline.bootstrap, pipeline.copies)) == pipeline.produced
