"""Rows 3, 6, 8, 9: topics and partitions that come and go while a query runs, and between runs."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException

from connectors.clients.topic_leaders import has_leaders
from tests.pages import block, replaced
from tests.parity.query import Query, at, expected, produce, run_to_its_end
from tests.tiers import long
from tests.waiting import until

parity = pytest.mark.parity


class Topics:
    """Topics that only this test has, by short names, and a pattern for all of them."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.pattern = f"{prefix}-[a-z]"
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}"

    def make(self, short: str, *offsets: range) -> None:
        """Create a topic, also where one of its name is still being deleted, and fill it."""
        name = self.name(short)
        new = NewTopic(name, max(1, len(offsets)), 1)
        until(
            lambda: self._admin.create_topics([new])[name].exception(30) is None, 60.0, pause_s=0.1
        )
        self._until_it_has(name, max(1, len(offsets)))
        produce(self.bootstrap, name, *offsets)

    def delete(self, short: str) -> None:
        self._admin.delete_topics([self.name(short)])[self.name(short)].result(30)

    def add_partition(self, short: str, number: int) -> None:
        name = self.name(short)
        self._admin.create_partitions([NewPartitions(name, number)])[name].result(30)
        self._until_it_has(name, number)

    def _until_it_has(self, name: str, partitions: int) -> None:
        """The broker knows them a moment later: before that it refuses records for them."""
        until(lambda: has_leaders(self._admin, name, partitions), 60.0, pause_s=0.1)


@pytest.fixture
def topics(bootstrap: str, application_id: str) -> Topics:
    return Topics(bootstrap, application_id)


@pytest.fixture
def frame(source, topics):
    def read(**options: object):
        return source(
            stream=True, subscribePattern=topics.pattern, startingOffsets="earliest", **options
        )

    return read


@long
@parity(3)
def test_a_pattern_needs_the_whole_name(frame, topics, checkpoint):
    topics.make("a", range(3))
    topics.make("ab", range(3))
    topics.make("b", range(2), range(1))
    rows = expected(topics.name("a"), range(3)) + expected(topics.name("b"), range(2), range(1))
    assert run_to_its_end(frame(), checkpoint).rows == rows


@parity(3)
def test_no_topic_at_first(source, topics, checkpoint):
    """With latest by default; a topic that comes later is read from its beginning, after a restart
    too.
    """
    frame = source(stream=True, subscribePattern=topics.pattern)
    with Query(frame, checkpoint) as query:
        query.until_it_has_begun()
        topics.make("a", range(4))
        assert query.until(4) == expected(topics.name("a"), range(4))
        query.query.processAllAvailable()
    topics.make("b", range(2))
    assert run_to_its_end(frame, checkpoint).rows == expected(topics.name("b"), range(2))


@long
@parity(3, 5, 16)
def test_the_example_of_the_page(spark, topics, checkpoint):
    text = block("docs/coming_from_spark.md", 'option("subscribePattern"')
    here = {
        "localhost:9092": topics.bootstrap,
        "flights-.*": topics.pattern,
        "1764028800000": str(at(1000)),
    }
    topics.make("a", range(3))
    names = {"spark": spark}
    exec(replaced(text, here), names)
    with Query(names["flights"], checkpoint) as query:
        query.until_it_has_begun()
        topics.make("b", range(4))
        assert query.until(4) == expected(topics.name("b"), range(4))


@parity(6)
def test_a_partition_that_is_added_is_read_from_its_beginning(frame, topics, checkpoint):
    topics.make("a", range(3))
    with Query(frame(), checkpoint) as query:
        query.until(3)
        topics.add_partition("a", 2)
        produce(topics.bootstrap, topics.name("a"), range(0), range(5))
        assert query.until(8) == expected(topics.name("a"), range(3), range(5))


@long
@parity(8)
def test_a_topic_that_is_deleted_while_the_query_runs_is_data_loss(frame, topics, checkpoint):
    """Spark's source with failOnDataLoss=true ends with an error too."""
    topics.make("a", range(3))
    topics.make("b", range(3))
    with Query(frame(), checkpoint) as query:
        query.until(6)
        topics.delete("b")
        with pytest.raises(StreamingQueryException, match="DataLossError") as raised:
            query.query.awaitTermination(60)
    assert f"no longer there: {topics.name('b')}-0" in str(raised.value)


@long
@parity(8)
def test_a_topic_that_is_deleted_between_runs_is_data_loss(frame, topics, checkpoint):
    topics.make("a", range(3))
    topics.make("b", range(3))
    run_to_its_end(frame(), checkpoint)
    topics.delete("b")
    with pytest.raises(StreamingQueryException, match="DataLossError") as raised:
        run_to_its_end(frame(), checkpoint)
    assert f"no longer there: {topics.name('b')}-0" in str(raised.value)


@parity(8, 9)
def test_the_others_go_on_without_a_deleted_topic(frame, topics, checkpoint):
    topics.make("a", range(3))
    topics.make("b", range(3))
    reading = frame(failOnDataLoss="false")
    with Query(reading, checkpoint) as query:
        query.until(6)
        topics.delete("b")
        produce(topics.bootstrap, topics.name("a"), range(3, 8))
        query.until(11)
        query.query.processAllAvailable()
    produce(topics.bootstrap, topics.name("a"), range(8, 9))
    rows = run_to_its_end(reading, checkpoint).rows
    assert query.rows + rows == sorted(
        expected(topics.name("a"), range(8)) + expected(topics.name("b"), range(3))
    ) + expected(topics.name("a"), range(8, 9))


@long
@parity(8)
def test_a_topic_that_is_made_anew_while_the_query_runs_is_another_topic(frame, topics, checkpoint):
    topics.make("a", range(3))
    topics.make("b", range(3))
    with Query(frame(failOnDataLoss="false"), checkpoint) as query:
        query.until(6)
        topics.delete("b")
        topics.make("b", range(20))
        assert query.until(26) == sorted(
            expected(topics.name("a"), range(3))
            + expected(topics.name("b"), range(3))
            + expected(topics.name("b"), range(20))
        )


@long  # `unit/test_source_stream.py` has it in `make test`
@parity(8)
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_made_anew_between_runs_is_another_topic(
    frame, topics, checkpoint, fail_on_data_loss
):
    """However far it has grown, and also when it came later than the query: the offsets of a
    pattern contain the ids of its topics.
    """
    reading = frame(failOnDataLoss=fail_on_data_loss)
    topics.make("a", range(3))
    run_to_its_end(reading, checkpoint)
    topics.make("b", range(3))
    run_to_its_end(reading, checkpoint)
    topics.delete("b")
    topics.make("b", range(20))
    if fail_on_data_loss == "false":
        assert run_to_its_end(reading, checkpoint).rows == expected(topics.name("b"), range(20))
        return
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run_to_its_end(reading, checkpoint)
