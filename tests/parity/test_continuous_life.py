"""How a continuous pipeline runs: idle, to an end that goes back, beside another one, and stops."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from connectors import KafkaSink, KafkaSource
from connectors.cluster.local_cluster import LocalCluster
from connectors.spark.continuous_driver import ContinuousDriver
from connectors.testing.auditor.reader import Follower, read_committed
from tests.parity.continuous_query import after_a_file, checked, place_and_value, row_of
from tests.parity.query import expected, produce
from tests.parity.test_continuous import NOW, Make, Topic, make, parity
from tests.parity.test_topics_that_change import Topics, topics
from tests.parity.test_where_it_begins import more, three
from tests.tiers import long
from tests.waiting import until
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

__all__ = ["make", "three", "topics"]  # fixtures

pytestmark = long


@parity(32, 38)
@pytest.mark.parametrize("headers", [True, False])
def test_the_columns_are_those_of_sparks_source(make: Make, three: str, headers: bool):
    function = functools.partial(checked, with_headers=headers)
    reads = {"subscribe": three, "startingOffsets": "earliest", "includeHeaders": headers}
    assert make(trigger=NOW, transform=function, **reads).runs_to_its_end()


@parity(19)
def test_available_now_ends_with_an_error_when_ends_are_lower_than_planned(
    make: Make, topics: Topics, tmp_path: Path
):
    """Else it would wait for ever for records that will not come. The task has fetched few of them
    when the topic is deleted: one fetch is one of ten batches.
    """
    topics.make("a", range(100))
    for begin in range(100, 1000, 100):
        produce(topics.bootstrap, topics.name("a"), range(begin, begin + 100))
    function = functools.partial(after_a_file, folder=str(tmp_path))
    reads = {"subscribe": topics.name("a"), "startingOffsets": "earliest"}
    reads |= {"kafka.queued.max.messages.kbytes": "1", "kafka.fetch.message.max.bytes": "1000"}
    query = make(trigger=NOW, transform=function, failOnDataLoss="false", **reads)
    query.driver.start()
    until((tmp_path / "came").exists, 60.0)
    topics.delete("a")
    topics.make("a", range(2))
    (tmp_path / "go").touch()
    assert "created again" in query.fails()


@parity(21)
def test_an_idle_pipeline_makes_no_checkpoint(make: Make, bootstrap: str, three: str, checkpoint):
    def decided() -> int:
        log = read_log(LocalFileBackend(Path(checkpoint) / "decisions"))
        return -1 if log.decision is None else log.decision.checkpoint_id

    with make(subscribe=three, startingOffsets="earliest") as query:
        query.until(30)
        patience, last = Deadline(60.0), decided()
        while True:  # the last records can come in several checkpoints
            patience.pause(0.5)
            if last == (last := decided()):
                break
            assert not patience.expired()
        patience.pause(2.0)
        assert decided() == last
        more(bootstrap, three)
        query.until(36)
        assert decided() > last


@parity(40)
def test_a_pipeline_stops_while_a_fetch_hangs(make: Make):
    """The only broker of its source stands still."""
    with LocalCluster() as cluster:
        cluster.create_topic("hangs", 1)
        produce(cluster.bootstrap_servers, "hangs", range(5))
        reads = {"subscribe": "hangs", "startingOffsets": "earliest"}
        reads["kafka.bootstrap.servers"] = cluster.bootstrap_servers
        with make(**reads) as query:
            query.until(5)
            cluster.pause_broker(0)
            try:
                patience = Deadline(90.0)
                query.driver.stop()
                assert not patience.expired()
            finally:
                cluster.resume_broker(0)


@parity(62)
def test_two_pipelines_in_one_jvm(spark, bootstrap: str, topic: Topic, application_id, tmp_path):
    """The first one ends and starts again while the other one goes on."""
    source, outputs = topic(), [topic(), topic()]
    produce(bootstrap, source, range(5))

    def driver(number: int, **options: Any) -> ContinuousDriver:
        return ContinuousDriver(
            spark,
            app_id=f"{application_id}-{number}",
            checkpoint=str(tmp_path / str(number)),
            source=KafkaSource(
                bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest"
            ),
            sink=KafkaSink(bootstrap_servers=bootstrap, topic=outputs[number]),
            transform=place_and_value,
            restart_strategy="none",
            **options,
        )

    other = driver(1)
    with Follower(bootstrap, outputs[1]) as seen:
        other.start()
        driver(0, trigger=NOW).run()
        seen.until(lambda records: len(records) >= 5, timeout=60)
        produce(bootstrap, source, range(5, 9))
        driver(0, trigger=NOW).run()
        seen.until(lambda records: len(records) >= 9, timeout=60)
        other.request_stop()
        other.wait()
    for output in outputs:
        assert sorted(map(row_of, read_committed(bootstrap, output))) == expected(source, range(9))
