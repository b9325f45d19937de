"""Savepoints as an operator uses them: taken, stopped with, restored elsewhere; a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import PATIENCE_S, ROOT, running
from tests.integration.test_run import ARROW, PARTITIONS, UPPER, Job
from tests.tiers import long

ONCE = 'trigger = "available-now"'
COUNTS = "SELECT value AS key, CAST(count(1) AS STRING) AS value FROM source GROUP BY source.value"


@pytest.fixture
def job(tmp_path: Path, bootstrap: str, application_id: str, topic: Callable[..., str]) -> Job:
    names = [topic(PARTITIONS, name) for name in ("in", "out", "second")]
    return Job(tmp_path, bootstrap, application_id, *names)


def savepoint(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "connectors.cli.main", "savepoint", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "BROKERS": job.bootstrap},
        cwd=job.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def take(job: Job, path: Path, *options: str) -> str:
    done = savepoint(job, "take", str(path), "--to", "savepoints", *options)
    assert done.returncode == 0, done.stderr
    place = done.stdout.strip()
    assert place.startswith(str(job.folder / "savepoints"))
    return place


def moved(job: Job, folder: str, *, master: str = "local[2]", **parts: object) -> Path:
    """Write the job file for another checkpoint folder."""
    path = job.write(**parts)  # type: ignore[arg-type]
    text = path.read_text().replace('checkpoint = "state"', f'checkpoint = "{folder}"')
    path.write_text(text.replace('master = "local[2]"', f'master = "{master}"'))
    return path


MODES = {
    "micro-batch": {"transform": f"sql = '{UPPER}'", "app": ""},
    "continuous": {"transform": 'arrow = "my_arrow:shout"', "app": 'mode = "continuous"\n'},
}


@long
@pytest.mark.parametrize("mode", MODES)
def test_x10_f35_taken_while_running_stopped_with_and_restored_elsewhere(job: Job, mode: str):
    """On another folder and parallelism; the older one would produce its successors again."""
    (job.folder / "my_arrow.py").write_text(ARROW)
    parts = MODES[mode]
    tasks = "parallelism = {}" if mode == "continuous" else ""
    path = job.write(**{**parts, "app": parts["app"] + tasks.format(1)})
    job.produce(300)
    with Follower(job.bootstrap, job.output) as reader:
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 300, timeout=PATIENCE_S)
            older = take(job, path)
            job.produce(300)
            reader.until(lambda seen: len(seen) == 600, timeout=PATIENCE_S)
            newer = take(job, path, "--stop")
            assert process.wait() == 0, process.text
        again = take(job, path)  # of a stopped pipeline: the same once more

        job.produce(300)
        path = moved(
            job, "other", master="local[3]", **{**parts, "app": parts["app"] + tasks.format(2)}
        )
        with running(path, "--from-savepoint", newer, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 900, timeout=PATIENCE_S)
            process.kill()
        job.produce(100)  # the same command line goes on where it was
        with running(path, "--from-savepoint", newer, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 1000, timeout=PATIENCE_S)
            assert process.terminate() == 0, process.text
    job.audit(job.output)

    shown = orjson.loads(savepoint(job, "list", "savepoints", "--json").stdout)
    assert [one["path"] for one in shown] == [older, newer, again]
    assert shown[0]["checkpoint"] < shown[1]["checkpoint"] == shown[2]["checkpoint"]
    _an_older_one_is_refused(job, older, moved(job, "third", **parts))


def _an_older_one_is_refused(job: Job, older: str, path: Path) -> None:
    with running(path, "--from-savepoint", older, BROKERS=job.bootstrap) as process:
        assert process.wait() == 2, process.text
    assert "700 offsets" in process.text
    assert "produced twice" in process.text
    assert not (job.folder / "third").exists()
    job.audit(job.output)


@pytest.mark.long
def test_state_goes_on_after_a_restore_and_a_claimed_savepoint_is_gone(job: Job):
    """Counts by key: offsets and state are of one moment, or a count would be off."""
    parts = {"transform": f"sql = '{COUNTS}'", "app": ONCE}
    path = _with_two_partitions(job.write(**parts))
    job.produce(50)
    job.produced = 0
    job.produce(50)
    with running(path, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    place = take(job, path)
    job.produced = 0
    job.produce(70)
    path = _with_two_partitions(moved(job, "other", **parts))
    words = ("--from-savepoint", place, "--claim-mode", "claim")
    with running(path, *words, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    latest: dict[bytes | None, bytes | None] = {}
    for record in read_committed(job.bootstrap, job.output):
        latest[record.key] = record.value
    assert latest == {
        f"record {number}".encode(): b"3" if number < 50 else b"1" for number in range(70)
    }
    assert not Path(place).exists()


@pytest.mark.long
def test_a_sink_more_and_a_sink_less(job: Job):
    """Both read one source; Spark counts it once for each, in the offsets of its checkpoint."""
    job.produce(30)
    with running(job.write(app=ONCE), BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    place = take(job, job.folder / "job.toml")
    job.produce(30)
    both = (job.output, job.second)
    with running(
        moved(job, "both", app=ONCE, sinks=both), "--from-savepoint", place, BROKERS=job.bootstrap
    ) as process:
        assert process.wait() == 0, process.text
    job.audit(job.output)
    assert len(read_committed(job.bootstrap, job.second)) == 30, "what came behind the savepoint"

    place = take(job, job.folder / "job.toml")
    job.produce(30)
    words = ("--from-savepoint", place, "--allow-non-restored-state")
    with running(moved(job, "one", app=ONCE), *words, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    job.audit(job.output)
    assert len(read_committed(job.bootstrap, job.second)) == 30


def _with_two_partitions(path: Path) -> Path:
    text = path.read_text().replace("[spark]\n", '[spark]\nsql.shuffle.partitions = "2"\n')
    path.write_text(text)
    return path


@pytest.mark.long
@pytest.mark.parametrize("step", ["savepoint_copied", "savepoint_named"])
def test_a_kill_while_it_is_made_leaves_a_whole_one_or_none(job: Job, step: str):
    path = job.write()
    job.produce(100)
    with Follower(job.bootstrap, job.output) as reader:
        crash = {"SPARKONCE_CRASH_AT": step}
        with running(path, BROKERS=job.bootstrap, **crash) as process:
            reader.until(lambda seen: len(seen) == 100, timeout=PATIENCE_S)
            done = savepoint(job, "take", str(path), "--to", "savepoints")
            assert process.wait() == -9, process.text
        assert done.returncode == 1, done.stderr
        assert "ended without an answer" in done.stderr
        assert "nothing is lost" in done.stderr
        found = orjson.loads(savepoint(job, "list", "savepoints", "--json").stdout)
        assert len(found) == (step == "savepoint_named")
        for one in found:
            assert savepoint(job, "show", one["path"]).returncode == 0
        job.produce(100)
        with running(path, BROKERS=job.bootstrap) as process:
            reader.until(lambda seen: len(seen) == 200, timeout=PATIENCE_S)
            assert process.terminate() == 0, process.text
    job.audit(job.output)


@pytest.mark.long
def test_a_killed_pipeline_has_to_finish_its_checkpoint_first(job: Job):
    job.produce(100)
    path = job.write(app=ONCE)
    crash = {"SPARKONCE_CRASH_AT": "decision_durable", "SPARKONCE_CRASH_ONCE": "crashed"}
    with running(path, BROKERS=job.bootstrap, **crash) as process:
        assert process.wait() == -9, process.text
    done = savepoint(job, "take", str(path), "--to", "savepoints")
    assert done.returncode == 1, done.stderr
    for part in ("not finished", "checkpoint 0", "start the pipeline"):
        assert part in done.stderr
    assert not (job.folder / "savepoints").exists()
    with running(path, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    place = take(job, path)
    job.produce(50)
    path = moved(job, "other", app=ONCE)
    with running(path, "--from-savepoint", place, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    job.audit(job.output)


@pytest.mark.long
def test_a_busy_pipeline_is_stopped_in_the_middle_of_its_work(job: Job):
    """The next batch is planned already: it ends without a decision, and is in no savepoint."""
    limit = "maxOffsetsPerTrigger = 50"
    path = job.write(source=limit)
    records = 30_000  # a minute of batches, whatever the two commands take
    job.produce(records)
    with running(path, BROKERS=job.bootstrap) as process:
        process.until(lambda text: "checkpoint 0" in text)
        while_running = take(job, path)
        place = take(job, path, "--stop")
        assert process.wait() == 0, process.text
    shown = orjson.loads(savepoint(job, "list", "savepoints", "--json").stdout)
    assert [one["path"] for one in shown] == [while_running, place]
    assert 0 < len(read_committed(job.bootstrap, job.output)) < records
    path = moved(job, "other", app=ONCE)
    with running(path, "--from-savepoint", place, BROKERS=job.bootstrap) as process:
        assert process.wait() == 0, process.text
    job.audit(job.output)
