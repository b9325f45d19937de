"""A copier that is killed and stopped again and again: K1, K2, K7 (Kafka's own transaction tests).

Theirs: unique records, many small transactions of small batches, copiers killed three times at a
fifth of the way or later, and a consumer of committed records beside them. Ours copies nine
partitions in place, so that order can be judged as well, and counts repeating keys in the same
decision.
"""

from __future__ import annotations

import signal

import pytest

from tests.auditor.reader import Follower
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import Pipeline, pipeline_on

RECORDS = 9_000
PARTITIONS = 9
PER_CHECKPOINT = 450  # twenty checkpoints, of two branches each
SHARE = RECORDS // 5
#: As K1's: batches of 512 bytes, five in flight.
SMALL = '{"batch.size": "512", "max.in.flight.requests.per.connection": "5"}'


@pytest.fixture
def pipeline(bootstrap, topic, application_id, tmp_path) -> Pipeline:
    made = pipeline_on(bootstrap, topic, tmp_path, application_id, PARTITIONS)
    made.produce(RECORDS)
    return made


@pytest.mark.long
def test_k1_k2_k7_killed_and_restarted_copiers_copy_once_and_in_order(pipeline: Pipeline):
    """Three SIGKILLs and a clean stop, each a fifth of the records after the one before."""
    options = {"max_offsets": PER_CHECKPOINT, "trigger": "0 seconds", "producer": SMALL}
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        for how in ("kill", "kill", "stop", "kill"):
            before = len(follower.records)
            with pipeline.running(**options) as run:
                follower.until(
                    lambda seen, least=before + SHARE: len(seen) >= least, timeout=PATIENCE_S
                )
                if how == "kill":
                    run.kill()
                    assert run.process.returncode == -signal.SIGKILL
                else:
                    assert run.stop() == 0, run.text()
            assert len(follower.records) < RECORDS, "it was done before: nothing was interrupted"
        code, run = pipeline.run_once(max_offsets=PER_CHECKPOINT, producer=SMALL)
        assert code == 0, run.text()
        pipeline.audit(follower)
