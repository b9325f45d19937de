"""Whether source and sink are on one cluster: by their servers, and then by the cluster's id."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.client_options import servers_of
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from tests.both_halves import plain_writer
from transactions.checkpoint_location import CheckpointLocation
from transactions.sink import Cluster, OpenSink


@pytest.mark.parametrize(
    ("read", "read_id", "written", "written_id", "same"),
    [
        ("a:1,b:1", "", "b:1, A:1", "", True),  # the order of the list, spaces, upper case
        ("a:1,b:1", "one", "b:1,a:1", "", True),
        ("a:1", "one", "b:1", "one", True),  # other brokers of one cluster
        ("localhost:1", "one", "127.0.0.1:1", "one", True),
        ("a:1", "one", "a:1,b:1", "one", True),
        ("a:1", "one", "b:1", "other", False),
        # An id that is not known says nothing: only the servers are compared.
        ("a:1", "", "b:1", "", False),
        ("a:1", "one", "b:1", "", False),
        ("a:1", "", "b:1", "one", False),
    ],
)
def test_one_cluster_is_one_whatever_its_brokers_are_called(
    read: str, read_id: str, written: str, written_id: str, same: bool
):
    one, other = Cluster(servers_of(read), read_id), Cluster(servers_of(written), written_id)
    assert one.is_same(other) is same
    assert other.is_same(one) is same
    assert writer(written, written_id).carries_offsets_of(one) is same


def writer(servers: str, cluster_id: str) -> KafkaWriter:
    return KafkaWriter(
        "out",
        "out",
        {"bootstrap.servers": servers},
        timeout_ms=60_000,
        checkpoint_timeout_s=5.0,
        cluster_id=cluster_id,
    )


class Source:
    """A connected planner; it counts the questions for its cluster's id."""

    def __init__(self, servers: str, cluster_id: str) -> None:
        self.source = KafkaSource(bootstrap_servers=servers, subscribe="in")
        self.asked = 0
        self._id = cluster_id

    def cluster_id(self) -> str:
        self.asked += 1
        return self._id


def found(sources: list[Source], **writers: Any) -> str | None:
    """Return the sink that a run finds for the offsets of these sources."""
    none: Any = None
    options = RunOptions(
        app_id="app",
        checkpoint=CheckpointLocation("/none"),
        sources=[],
        sinks=[],
        checkpoint_timeout_s=1.0,
        restart_budget_s=1.0,
    )
    run = Run(options)
    run.sinks = {name: OpenSink(one, none) for name, one in writers.items()}
    planners: Any = sources
    return run._find_offsets_sink(planners)


def test_a_start_asks_for_an_id_once_and_only_if_the_servers_differ():
    alike, unlike = Source("a:1", "one"), Source("b:1", "one")
    assert found([alike], out=writer("a:1", "one")) == "out"
    assert alike.asked == 0
    assert found([unlike], out=writer("a:1", "one")) == "out"
    assert unlike.asked == 1
    assert found([Source("b:1", "other")], out=writer("a:1", "one")) is None
    assert found([Source("b:1", "")], out=writer("a:1", "")) is None


def test_a_sink_that_carries_no_offsets_needs_no_id():
    source = Source("b:1", "one")
    options = KafkaSink(bootstrap_servers="a:1", topic="out", guarantee="at-least-once")
    assert found([source], out=plain_writer(options, checkpoint_timeout_s=1.0)) is None
    assert source.asked == 0


def test_the_sink_with_the_servers_of_the_source_comes_first():
    """Another sink could carry the offsets as well. An upgraded pipeline keeps the one it had."""
    sinks = {"first": writer("b:1", "one"), "second": writer("a:1", "one")}
    assert found([Source("a:1", "one")], **sinks) == "second"


def test_the_offsets_of_all_sources_go_into_one_sink():
    """Each text is that of a sink, and no sink has the text of both sources."""
    sources = [Source("a:1", "one"), Source("b:1", "one")]
    assert found(sources, first=writer("b:1", "one"), second=writer("a:1", "one")) == "first"
    assert [one.asked for one in sources] == [1, 1]
    apart = [Source("a:1", "one"), Source("b:1", "other")]
    assert found(apart, first=writer("b:1", "other"), second=writer("a:1", "one")) is None


@pytest.mark.parametrize(("told", "cluster_id"), [("one", "one"), (None, "")])
def test_brokers_that_tell_no_id_give_an_empty_one(told: str | None, cluster_id: str):
    """A very old broker has none."""
    planner = SourcePlanner(KafkaSource(bootstrap_servers="b:1", subscribe="in"))
    answer = SimpleNamespace(result=lambda: SimpleNamespace(cluster_id=told))
    admin = SimpleNamespace(describe_cluster=lambda request_timeout: answer, poll=lambda _: 0)
    questions: Any = planner._questions
    questions._admin = admin
    assert planner.cluster_id() == cluster_id
