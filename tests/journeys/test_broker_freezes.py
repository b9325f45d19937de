"""One broker of three after the other says nothing for some seconds: its machine swaps. The others
answer, and still name it as a leader. The pipeline waits and goes on by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.cluster.local_cluster import LocalCluster
from tests.journeys.conftest import MODES, stranger_on
from tests.tiers import long
from transactions.clock import Deadline

#: Longer than a client waits for the end of a topic, which it asks for all the time.
SILENT_S = 8.0


@long
@pytest.mark.timeout(600)
@MODES
def test_it_goes_on_by_itself(tmp_path: Path, mode: str):
    with LocalCluster(brokers=3) as cluster:
        stranger = stranger_on(cluster.bootstrap_servers, cluster.create_topic, tmp_path)
        with (
            stranger.busy_topic(),
            stranger.follows_output() as reader,
            stranger.runs(stranger.script(mode)) as pipeline,
        ):
            stranger.more_comes_out(reader, pipeline)
            for broker in range(3):
                cluster.pause_broker(broker)
                Deadline(SILENT_S).pause(SILENT_S)
                cluster.resume_broker(broker)
                stranger.more_comes_out(reader, pipeline)
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        stranger.assert_each_record_came_once()
