"""Somebody deletes the topic and makes another one of its name.

The offsets of the old topic say nothing about the new one, also where it has as many records. So
the pipeline ends with an error, and nothing of the new topic is written. With
`failOnDataLoss = "false"` it says so and reads the new one from its begin.
"""

from __future__ import annotations

from tests.journeys.conftest import MODES, Process, Stranger
from tests.tiers import long

BEGIN = 'startingOffsets = "earliest"\n'
GO_ON = BEGIN + 'failOnDataLoss = "false"'
NEW = "new:"


@long
@MODES
def test_while_the_pipeline_is_stopped(stranger: Stranger, mode: str):
    job = stranger.job(mode, source=BEGIN)
    with stranger.follows_output() as reader:
        with stranger.busy_topic(), stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        came = stranger.numbers_in_output()
        longer = max(stranger.input_ends().values()) + 100
        stranger.delete_topic()
        stranger.create_topic()
        with stranger.busy_topic(NEW, begin_with=longer):
            with stranger.runs(job) as pipeline:
                assert pipeline.ends() == 1, pipeline.text
            assert_it_says_what_is_gone(pipeline, stranger)
            assert stranger.numbers_in_output() == came
            assert stranger.numbers_in_output(NEW) == {}
            with stranger.runs(stranger.job(mode, source=GO_ON)) as pipeline:
                stranger.comes_to(stranger.input_ends(), reader, pipeline, NEW)
                assert pipeline.sigterm() == 0, pipeline.text
    assert "failOnDataLoss=false, reading continues" in pipeline.text
    stranger.assert_each_record_came_once()
    stranger.assert_each_record_came_once(mark=NEW)


@long
@MODES
def test_while_the_pipeline_runs(stranger: Stranger, mode: str):
    with (
        stranger.follows_output() as reader,
        stranger.runs(stranger.job(mode, source=BEGIN)) as pipeline,
    ):
        with stranger.busy_topic():
            stranger.more_comes_out(reader, pipeline)
        stranger.comes_to(stranger.input_ends(), reader, pipeline)
        with pipeline.frozen():
            stranger.delete_topic()
            stranger.create_topic()
        with stranger.busy_topic(NEW):
            assert pipeline.ends() == 1, pipeline.text
    assert_it_says_what_is_gone(pipeline, stranger)
    stranger.assert_each_record_came_once()
    assert stranger.numbers_in_output(NEW) == {}


@long
@MODES
def test_while_it_runs_and_may_go_on(stranger: Stranger, mode: str):
    """For a while there is no topic at all. The new one is soon longer than the old one was: a
    client that reads on by itself begins in its middle.
    """
    with (
        stranger.follows_output() as reader,
        stranger.runs(stranger.job(mode, source=GO_ON)) as pipeline,
    ):
        with stranger.busy_topic():
            stranger.more_comes_out(reader, pipeline)
        longer = max(stranger.input_ends().values()) + 100
        stranger.delete_topic()
        pipeline.until_it_says("failOnDataLoss=false, reading continues: .*topic")
        stranger.create_topic()
        with stranger.busy_topic(NEW, begin_with=longer):
            stranger.comes_to(stranger.input_ends(), reader, pipeline, NEW)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
    stranger.assert_each_record_came_once(mark=NEW)


def assert_it_says_what_is_gone(pipeline: Process, stranger: Stranger) -> None:
    """The last that it says is an error of four parts."""
    before, error, said = pipeline.text.rpartition("\nDataLossError: ")
    assert error, f"it is not said at the begin of a line: {before}{said}"
    assert len(said.splitlines()) == 4, said
    for part in ("where:", "cause:", "look at:", stranger.topic, "created again", "failOnDataLoss"):
        assert part in said, said
