"""A stranger reads all topics of a name's beginning, and one more of them appears: all its records
come through, from the first one on, also behind a SIGKILL.
"""

from __future__ import annotations

import dataclasses

from tests.journeys.conftest import MODES, Stranger
from tests.tiers import long


@long
@MODES
def test_a_topic_that_appears_while_the_pipeline_runs(stranger: Stranger, mode: str):
    job = stranger.job(mode, reads=f'subscribePattern = "{stranger.topic}.*"')
    more = dataclasses.replace(stranger, topic=f"{stranger.topic}-more")
    with stranger.busy_topic(), stranger.follows_output() as reader:
        before = stranger.input_ends()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            seen = stranger.input_ends()
            more.create_topic()
            with more.busy_topic("m"):
                more.comes_to(more.input_ends(), reader, pipeline, "m")
                pipeline.kill_all()
                with stranger.runs(job) as again:
                    more.comes_to(more.input_ends(), reader, again, "m")
                    stranger.comes_to(stranger.input_ends(), reader, again)
                    assert again.sigterm() == 0, again.text
    begins = {partition: range(before[partition], seen[partition]) for partition in before}
    stranger.assert_each_record_came_once(begins)
    stranger.assert_each_record_came_once(mark="m")
    code, said = stranger.verifies_job(job)
    assert code == 2, said
    assert "The job does not name the topics that it reads." in said
