"""A power cut under a real Spark: the machine goes off, and Spark's files are what a disk kept.

The driver is killed at a step, and of its checkpoint folder all that nobody synced is gone, torn,
empty or there (`tests.power_cut`). The broker is another machine. An independent reader judges.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.auditor.reader import Follower
from tests.integration.pipeline_process import pipeline_on
from tests.power_cut import RECORD_TO, cut_recorded
from tests.tiers import long


@long
def test_b1_a_driver_goes_on_after_power_cuts(
    bootstrap, topic, application_id, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With state and without, in one query: of the copies nothing is lost, the counts are right.

    All that nobody synced is gone, right behind a decision; then the machine goes off between
    two batches, and the disk has kept some of what was not synced.
    """
    record, rng = tmp_path / "syncs", random.Random(15)
    monkeypatch.setenv(RECORD_TO, str(record))
    pipeline = pipeline_on(bootstrap, topic, tmp_path, application_id)
    pipeline.produce(120)  # three batches of 40
    replays, said = [], list[str]()
    with Follower(bootstrap, pipeline.copies) as follower:
        for crash_at, kept in (
            ("decision_durable@1", 0.0),
            ("batch_started@2", 0.5),
        ):
            code, run = pipeline.run_once(crash_at=crash_at)
            assert code == -signal.SIGKILL, (said, run.text())
            replays += run.replays()
            said += [crash_at, *cut_recorded(Path(pipeline.checkpoint), record, rng, kept=kept)]
        code, run = pipeline.run_once()
        assert code == 0, (said, run.text())
        replays += run.replays()
        assert replays[:1] == [1], said
        pipeline.audit(follower)
