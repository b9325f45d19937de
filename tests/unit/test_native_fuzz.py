"""Any batch by pointers and by objects, both ways: the same records come out (finding E1).

Four paths over librdkafka's mock cluster: each producer writes, each reader reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.source import partition_reader
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native.native_producer import NativePlainProducer
from connectors.native.native_reader import NativePartitionReader
from connectors.options.kafka_source import KafkaSource
from connectors.records.message_schema import HEADERS_TYPE, SINK_SCHEMA
from tests.mock_cluster import MockCluster
from transactions.clock import Deadline

PARTITIONS = 3
TOPICS = ("a", "b")
KINDS = {"plain": PlainProducer, "native": NativePlainProducer}
READERS = (PartitionReader, NativePartitionReader)

#: Around the size from which values are copied one by one, and far above it.
SIZES = st.sampled_from([16_383, 16_384, 16_385, 200_000])
BYTES = st.one_of(
    st.binary(max_size=40),
    st.just(b""),
    st.builds(lambda size, one: one * size, SIZES, st.binary(min_size=1, max_size=1)),
)
TEXT = st.text(max_size=20)
NAME = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
HEADER = st.fixed_dictionaries({"key": NAME, "value": st.none() | st.binary(max_size=20)})
HEADERS = st.none() | st.lists(HEADER, max_size=3)
#: What the sink gets is microseconds; a time that is not given is the producer's own.
TIMES = st.none() | st.integers(1_000_000, 2**50)


def column(draw: st.DrawFn, values: list[Any], kinds: list[pa.DataType]) -> pa.Array:
    """Draw a layout: the type, and whether the column is a slice of a longer one."""
    kind = draw(st.sampled_from(kinds))
    padding = values[:1] * draw(st.integers(0, 9))
    if pa.types.is_dictionary(kind):
        longer = pa.array(padding + values, kind.value_type).dictionary_encode()
    else:
        longer = pa.array(padding + values, kind)
    return longer.slice(len(padding))


BYTES_KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.binary()),
]
TEXT_KINDS = [pa.string(), pa.large_string(), pa.string_view()]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Draw a batch of the sink's schema, with any of its optional columns."""
    rows = draw(st.integers(1, 20))

    def some(one: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(st.none() | one, min_size=rows, max_size=rows))

    columns: dict[str, pa.Array] = {}
    for name in ("value", *(["key"] if draw(st.booleans()) else [])):
        text = draw(st.booleans())
        given_values = some(TEXT if text else BYTES)
        columns[name] = column(draw, given_values, TEXT_KINDS if text else BYTES_KINDS)
    given_topics = draw(st.lists(st.sampled_from(TOPICS), min_size=rows, max_size=rows))
    columns["topic"] = pa.array(given_topics, pa.string())
    if draw(st.booleans()):
        columns["partition"] = pa.array(some(st.integers(0, PARTITIONS - 1)), pa.int32())
    if draw(st.booleans()):
        columns["headers"] = pa.array(some(HEADERS), HEADERS_TYPE)
    if draw(st.booleans()):
        columns["timestamp"] = pa.array(some(TIMES), SINK_SCHEMA.field("timestamp").type)
    return pa.record_batch(columns)


@dataclasses.dataclass
class Path:
    """One producer with topics of its own, and both readers behind it."""

    producer: PlainProducer
    name: str
    readers: list[PartitionReader]

    def write(self, batch: pa.RecordBatch) -> None:
        own = pa.array([f"{self.name}-{one}" for one in batch.column("topic").to_pylist()])
        place = batch.schema.get_field_index("topic")
        self.producer.produce(batch.set_column(place, "topic", own), None, Deadline(20.0))
        self.producer.flush(Deadline(20.0))


ORDER = [(name, "ascending") for name in ("topic", "partition", "offset")]


def read(reader: PartitionReader, rows: int) -> pa.Table:
    found: list[pa.RecordBatch] = []
    deadline = Deadline(20.0)
    while sum(one.num_rows for one in found) < rows:
        assert not deadline.expired()
        batch = reader.read(0.5).batch
        found += [] if batch is None else [batch]
    table = pa.Table.from_batches(found)
    table.validate(full=True)
    return table.sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )


@pytest.fixture(scope="module")
def paths() -> Iterator[list[Path]]:
    # The mock cluster holds an empty fetch for its whole time, also when a record comes.
    with MockCluster() as cluster, mock.patch.object(partition_reader, "_IDLE_FETCH_MS", 5):
        made = []
        for name, kind in KINDS.items():
            topics = [cluster.topic(f"{name}-{one}", PARTITIONS) for one in TOPICS]
            source = KafkaSource(
                bootstrap_servers=cluster.bootstrap, subscribe=topics, include_headers=True
            )
            offsets = {f"{one}-{number}": 0 for one in topics for number in range(PARTITIONS)}
            client = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0}
            producer = kind(client, name, strict=True)
            made.append(Path(producer, name, [reader(source, offsets) for reader in READERS]))
        yield made
        for one in made:
            for reader in one.readers:
                reader.close()
        made.clear()


def comparable(table: pa.Table, times_given: bool) -> tuple[dict[Any, list[Any]], list[str]]:
    """Return the records of each partition in their order; and, sorted, those that may be in any:
    without a key the client chooses one.
    """
    placed: dict[Any, list[Any]] = {}
    anywhere = []
    for row in table.to_pylist():
        topic = row["topic"].rpartition("-")[2]
        record = (row["key"], row["value"], row["headers"], row["timestamp"] if times_given else 0)
        if row["key"] is None:
            anywhere.append(repr((topic, record)))
        else:
            placed.setdefault((topic, row["partition"]), []).append(record)
    return placed, sorted(anywhere)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches())
def test_e1_all_four_paths_carry_the_same_records(paths, batch):
    every_time = "timestamp" in batch.schema.names and not batch.column("timestamp").null_count
    results = []
    for path in paths:
        path.write(batch)
    for path in paths:
        tables = [read(one, batch.num_rows) for one in path.readers]
        assert tables[0].equals(tables[1]), "the readers differ"
        results.append(comparable(tables[0], every_time))
    assert results[0] == results[1], "the producers differ"
    (placed, anywhere), rows = results[0], batch.to_pylist()
    sent = sorted((as_bytes(row.get("key")) or b"", as_bytes(row["value"]) or b"") for row in rows)
    came = [(key, value or b"") for each in placed.values() for key, value, *_ in each]
    assert len(came) + len(anywhere) == len(rows)
    assert [one for one in sent if one[0]] == sorted(one for one in came if one[0])


def as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
