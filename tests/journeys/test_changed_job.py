"""A stranger's pipeline has run for a while, and their company wants more of it: one topic more,
one less, another sink. The checkpoint stays.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from connectors.testing.auditor.reader import Follower
from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, MODES, PARTITIONS, Stranger
from tests.tiers import long


def new_topic(stranger: Stranger, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": stranger.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def change(job: Path, before: str, now: str) -> None:
    text = job.read_text()
    assert before in text
    job.write_text(text.replace(before, now))


def runs_a_while(stranger: Stranger, job: Path, reader: Follower) -> None:
    with stranger.runs(job) as pipeline:
        stranger.more_comes_out(reader, pipeline)
        assert pipeline.sigterm() == 0, pipeline.text


@long
@MODES
def test_a_topic_more_one_less_and_both(stranger: Stranger, mode: str):
    """The new one is read from its first record. The one that is left out goes on where it was."""
    first = stranger.topic
    more = dataclasses.replace(stranger, topic=new_topic(stranger, f"{first}-more"))
    job = stranger.job(mode, source='startingOffsets = "earliest"')
    with (
        stranger.busy_topic(),
        more.busy_topic("m"),
        stranger.follows_output() as reader,
    ):
        runs_a_while(stranger, job, reader)
        change(job, f'subscribe = "{first}"', f'subscribe = "{first},{more.topic}"')
        with stranger.runs(job) as pipeline:
            more.comes_to(more.input_ends(), reader, pipeline, "m")
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        change(job, f'subscribe = "{first},{more.topic}"', f'subscribe = "{more.topic}"')
        with stranger.runs(job) as pipeline:
            more.comes_to(more.input_ends(), reader, pipeline, "m")
            assert pipeline.sigterm() == 0, pipeline.text
            assert "has changed" in pipeline.text
        left_out = stranger.numbers_in_output()
        ends = stranger.input_ends()
        assert all(max(left_out[at]) < end - 1 for at, end in ends.items()), "it was read on"
        change(job, f'subscribe = "{more.topic}"', f'subscribe = "{first},{more.topic}"')
        with stranger.runs(job) as pipeline:
            stranger.comes_to(ends, reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
    stranger.assert_each_record_came_once(mark="m")


@long
def test_a_sink_more_and_one_less(stranger: Stranger):
    """The new one gets what comes from then on; the old one goes on, and then gets nothing more."""
    other = dataclasses.replace(stranger, output=new_topic(stranger, f"{stranger.output}-more"))
    job = stranger.job(MICRO_BATCH, source='startingOffsets = "earliest"')
    sink = '[[sink]]\n"kafka.bootstrap.servers" = "{}"\ntopic = "{}"\n'
    one, two = (sink.format(stranger.bootstrap, each.output) for each in (stranger, other))
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        Follower(stranger.bootstrap, other.output) as others,
    ):
        runs_a_while(stranger, job, reader)
        there = numbers_now(stranger)
        job.write_text(job.read_text() + two)
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(others, pipeline)
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            other.comes_to(stranger.input_ends(), others, pipeline)
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        last = numbers_now(stranger)
        change(job, one, "")
        with stranger.runs(job) as pipeline:
            other.comes_to(stranger.input_ends(), others, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
            assert f"sinks that get nothing more: {stranger.output}" in pipeline.text
    stranger.assert_each_record_came_once()
    assert numbers_now(stranger) == last
    begins = {at: range(count, count + 1) for at, count in there.items()}
    other.assert_each_record_came_once(begins)


def numbers_now(stranger: Stranger) -> dict[int, int]:
    """Return how many records of each partition are in the output."""
    return {at: len(came) for at, came in stranger.numbers_in_output().items()}


@long
def test_another_sink_of_the_continuous_mode(stranger: Stranger):
    """It goes on exactly where the old one has ended."""
    other = dataclasses.replace(stranger, output=new_topic(stranger, f"{stranger.output}-new"))
    job = stranger.job(CONTINUOUS, source='startingOffsets = "earliest"')
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        Follower(stranger.bootstrap, other.output) as others,
    ):
        runs_a_while(stranger, job, reader)
        there = numbers_now(stranger)
        change(job, f'topic = "{stranger.output}"', f'topic = "{other.output}"')
        with stranger.runs(job) as pipeline:
            other.comes_to(stranger.input_ends(), others, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()
    assert numbers_now(stranger) == there
    other.assert_each_record_came_once({at: range(count, count + 1) for at, count in there.items()})
