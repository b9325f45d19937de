"""Somebody has a query on Spark's own Kafka source, and moves it to sparkonce while its topic is
written all the time. What both have written together has each record once.

The checkpoints are those that Spark's own connector makes. The old query writes a file for each
batch, which is there as a whole or not: so a test knows what the old query has written.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.peers import SPARK_VERSION
from benchmarks.peers.install import jars
from tests.integration.query_script import plain_spark
from tests.journeys.conftest import (
    MICRO_BATCH,
    MODES,
    PATIENCE_S,
    SPARKONCE,
    VALUE,
    Process,
    Stranger,
    started,
)
from tests.journeys.test_one_word import one_word
from tests.pages import block, commands, replaced
from tests.tiers import long

MIGRATE, RUN = commands(block("docs/coming_from_spark.md", "migrate /data/old-query --job"))
(BY_HAND,) = commands(block("docs/coming_from_spark.md", "migrate /data/old-query --app-id"))
HELD = 2


def old_query(stranger: Stranger, **task: object) -> AbstractContextManager[Process]:
    """Start the old query; without `output` it writes files."""
    given = {
        "jars": [str(one) for one in jars("spark", SPARK_VERSION)],
        "bootstrap": stranger.bootstrap,
        "topic": stranger.topic,
        "checkpoint": str(stranger.folder / "old-query"),
        "folder": str(stranger.folder / "old-output"),
        "trigger": {"processingTime": "0 seconds"},
        **task,
    }
    script = str(Path(__file__).with_name("old_query.py"))
    return started(
        sys.executable, script, json.dumps(given), folder=stranger.folder, environment={}
    )


def types(stranger: Stranger, command: str, *options: str, suffix: str = "") -> tuple[int, str]:
    """Type the command of the page with the folders of this test in it.

    Args:
        stranger: whose folders.
        command: of the page.
        options: more of them.
        suffix: what the script of the continuous mode adds to the names of the pages.
    """
    here = {"/data/old-query": str(stranger.folder / "old-query")}
    if "--checkpoint" in command:
        here |= {
            "--app-id flights": f"--app-id {stranger.app}{suffix}",
            "/data/flights": f"{stranger.folder}/checkpoint{suffix}",
        }
    else:
        here["flights.toml"] = str(stranger.folder / "job.toml")
    words = replaced(command, here).split()
    assert words[0] == "sparkonce"
    ended = subprocess.run(
        (SPARKONCE, *words[1:], *options),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ended.returncode, ended.stdout + ended.stderr


def written_by_old_query(stranger: Stranger) -> list[str]:
    """Return the values in the files of finished batches."""
    folder = stranger.folder / "old-output"
    files = [path for path in folder.glob("*") if path.name.isdecimal()]
    return [value for path in files for value in path.read_text("utf-8").split("\n")]


def assert_each_record_once(stranger: Stranger) -> None:
    """Both outputs together have each record of each partition, from the first one on."""
    old = written_by_old_query(stranger)
    new = [record.value.decode() for record in stranger.reads_output()]
    assert old, "the old query wrote nothing"
    assert new, "the new pipeline wrote nothing"
    came = Counter((VALUE.fullmatch(one)["partition"], one) for one in (*old, *new))
    twice = sorted(one for one, times in came.items() if times > 1)
    assert not twice, f"{len(twice)} twice: {twice[:5]}"
    ends = Counter(partition for partition, _ in came)
    lost = [
        f"{partition}-{number}"
        for partition, end in ends.items()
        for number in range(end)
        if (partition, f"{partition}-{number}") not in came
    ]
    assert not lost, f"{len(lost)} lost: {lost[:5]}"


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("killed", "choice"), [("before", "run-again"), ("after", "skip")])
def test_a_query_that_is_killed_within_a_batch(stranger: Stranger, killed: str, choice: str):
    """Nobody but its owner knows whether the sink has the batch, so its owner must say it."""
    job = stranger.job()
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        with old_query(stranger, hold=f"{HELD} {killed}") as query:
            query.until_it_says(f"batch {HELD} is held")
            query.kill_all()
        code, said = types(stranger, MIGRATE)
        assert code == 2, said
        assert f"Batch {HELD} was planned and has no commit" in said
        assert f"{stranger.topic}-0 [" in said
        assert not (stranger.folder / "checkpoint").exists()
        code, said = types(stranger, MIGRATE, "--planned-batch", choice)
        assert code == 0, said
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    assert_each_record_once(stranger)
    code, said = stranger.verifies_job(job)
    assert code == 0, said
    code, said = types(stranger, MIGRATE, "--planned-batch", choice)
    assert code == 2, said
    assert "A migration needs an empty checkpoint." in said


@long
@pytest.mark.timeout(600)
@MODES
def test_a_query_that_has_ended_in_order(stranger: Stranger, mode: str):
    """Its topic and the new pipeline's are the same one; a SIGKILL changes nothing.

    Proven by its job file alone, the topic has results of nobody; and the command says why.
    """
    job = stranger.job(mode)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        sink = {"output": stranger.output, "trigger": {"availableNow": True}}
        with old_query(stranger, **sink) as query:
            assert query.ends() == 0, query.text
        code, said = types(stranger, MIGRATE)
        assert code == 0, said
        assert f"Next: sparkonce run {job}" in said
        assert RUN == "sparkonce run flights.toml"
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
    code, said = stranger.verifies_job(job)
    assert (code, "in place of --job and --checkpoint" in " ".join(said.split())) == (1, True), said
    # While the pipeline was stopped, the writers went on for a moment.
    code, said = stranger.verifies("--allow-missing")
    assert code == 0, said


@long
@pytest.mark.timeout(600)
@MODES
def test_a_query_that_is_stopped_at_any_moment(stranger: Stranger, mode: str):
    """For a pipeline in Python. The files say whether the old query has the planned batch."""
    script = stranger.script(mode)
    suffix = "" if mode == MICRO_BATCH else "-continuous"
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with old_query(stranger) as query:
            query.until_it_says("batch 3 is written")
            assert query.sigterm() == 0, query.text
        offsets = stranger.folder / "old-query" / "offsets"
        newest = max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
        options = []
        if not (stranger.folder / "old-query" / "commits" / str(newest)).exists():
            there = (stranger.folder / "old-output" / str(newest)).exists()
            options = ["--planned-batch", "skip" if there else "run-again"]
        code, said = types(stranger, BY_HAND, *options, suffix=suffix)
        assert code == 0, said
        with stranger.runs(script) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    assert "startingOffsets=earliest is not used" in pipeline.text
    assert_each_record_once(stranger)


@long
@pytest.mark.timeout(600)
def test_both_words_are_changed_on_the_checkpoint_of_the_query(stranger: Stranger):
    """The new query writes the batch that was planned. Of a first batch that was planned nobody
    knows where it begins, so the old query has to end it.
    """
    script = one_word(stranger)
    here = {"checkpoint": str(stranger.folder / "checkpoint")}
    environment = plain_spark()
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        with old_query(stranger, **here, hold="0 before") as query:
            query.until_it_says("batch 0 is held")
            query.kill_all()
        with stranger.runs(script, **environment) as query:
            assert query.ends() == 1, query.text
        assert "The first batch of this checkpoint does not say where it begins." in query.text
        assert stranger.reads_output() == []
        with old_query(stranger, **here, hold=f"{HELD} before") as query:
            query.until_it_says(f"batch {HELD} is held")
            query.kill_all()
        with stranger.runs(script, **environment) as query:
            stranger.more_comes_out(reader, query)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, query)
            assert f"begins with batch {HELD} of the query" in query.text
    assert_each_record_once(stranger)
