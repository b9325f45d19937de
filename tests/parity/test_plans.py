"""Rows 23 to 25 and 62: one query with several sources, state, and several queries in one JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from connectors import KafkaSink
from connectors.spark import BatchWriter
from connectors.testing.auditor.reader import read_committed
from tests.parity.query import at, expected, produce, run_to_its_end
from tests.tiers import long

Source = Callable[..., DataFrame]
parity = pytest.mark.parity
pytestmark = long


def earliest(source: Source, topic: str) -> DataFrame:
    return source(stream=True, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)


def collected(frame: DataFrame, checkpoint: str) -> dict[int, list[tuple[str, ...]]]:
    """Run a query to its end; return the rows of each batch as text."""
    rows: dict[int, list[tuple[str, ...]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        rows[number] = sorted(tuple(map(str, row)) for row in batch.collect())

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    return rows


@parity(23)
@pytest.mark.parametrize("topics", [1, 2])
def test_a_union_of_two_sources(source, bootstrap, topic, checkpoint, topics):
    names = [topic(), topic()][:topics]
    for name in names:
        produce(bootstrap, name, range(10))
    one, other = names[0], names[-1]
    query = run_to_its_end(earliest(source, one).union(earliest(source, other)), checkpoint)
    assert Counter(query.rows) == Counter(expected(one, range(10)) + expected(other, range(10)))


@parity(24)
def test_both_sides_of_a_self_join_read_the_same_offsets(source, bootstrap, topic, checkpoint):
    """In each batch: the join has a state, so a side that is late finds its rows there later."""
    name = topic()
    produce(bootstrap, name, range(10))
    rows = earliest(source, name).selectExpr("CAST(CAST(value AS STRING) AS INT) AS number")
    joined = rows.join(rows.selectExpr("number AS other"), f.expr("number = other"))
    found = collected(joined, checkpoint)
    batches = (range(4), range(4, 8), range(8, 10))
    assert found == {n: [(str(i), str(i)) for i in batch] for n, batch in enumerate(batches)}


@parity(25)
def test_a_watermark_by_the_timestamp_of_kafka(source, bootstrap, topic, checkpoint):
    """The second batch gives the windows that are complete by the records of the first one."""
    name = topic()
    produce(bootstrap, name, range(25_001))  # a millisecond from one to the next
    rows = source(
        stream=True, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=15_000
    )
    windows = rows.withWatermark("timestamp", "1 second").groupBy(
        f.window("timestamp", "5 seconds")
    )
    counts = windows.count().select(f.col("window.end").cast("long"), "count")
    found = dict(row for batch in collected(counts, checkpoint).values() for row in batch)
    seconds = {at(number) // 1000 // 5 * 5 + 5 for number in range(25_001)}
    last = at(14_999) / 1000 - 1
    assert found.keys() == {str(end) for end in seconds if end <= last}
    whole = sorted(map(int, found))[1:]
    assert {found[str(end)] for end in whole} == {"5000"}


@parity(62)
def test_two_queries_in_one_jvm_do_not_share_producers(
    source, bootstrap, topic, application_id, tmp_path
):
    """Each ends and starts again while the other runs."""
    name = topic()
    outputs = [topic(name="one"), topic(name="other")]
    produce(bootstrap, name, range(20))
    writers = [
        BatchWriter(
            KafkaSink(bootstrap_servers=bootstrap, topic=output),
            app_id=f"{application_id}-{number}",
        )
        for number, output in enumerate(outputs)
    ]

    def start(number: int) -> Any:
        frame = earliest(source, name).select("value")
        query = frame.writeStream.foreachBatch(writers[number])
        return query.option("checkpointLocation", str(tmp_path / f"{number}")).start()

    queries = [start(0), start(1)]
    try:
        for turn in (0, 1):
            queries[turn].processAllAvailable()
            queries[turn].stop()
            begin = 20 * (turn + 1)
            produce(bootstrap, name, range(begin, begin + 20))
            queries[1 - turn].processAllAvailable()
            queries[turn] = start(turn)
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    for output in outputs:
        found = sorted(int(one.value or b"") for one in read_committed(bootstrap, output))
        assert found == list(range(60))
