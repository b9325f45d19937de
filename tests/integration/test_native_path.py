"""The native path beside the plain one on a real broker: the same records, the same errors."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from connectors.clients.client_settings import librdkafka_settings
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native import librdkafka
from connectors.native.native_producer import NativeTransactionalProducer
from connectors.records.message_schema import HEADERS_TYPE, SINK_SCHEMA
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import (
    Record,
    assert_no_open_transaction,
    read_committed,
    read_uncommitted,
)
from tests.integration.wire_helpers import committable, settled, soon
from tests.tiers import long
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.errors import DeliveryError, PhaseOneError, RecordRefusedError, SparkOnceError

BOTH = (TransactionalProducer, NativeTransactionalProducer)
_numbers = itertools.count()

Topic = Callable[..., str]
Make = Callable[..., TransactionalProducer]


@pytest.fixture
def make(bootstrap: str, application_id: str) -> Iterator[Make]:
    """Make an initialised producer of a kind; its transaction is aborted in the end."""
    made = []

    def one(kind: type[TransactionalProducer], **settings: str) -> TransactionalProducer:
        name = f"{application_id}.log.1.p.{next(_numbers)}"
        kafka = librdkafka_settings({"bootstrap.servers": bootstrap, **settings})
        producer = kind(kafka, name, timeout_ms=60_000)
        producer.init(soon())
        made.append(producer)
        return producer

    yield one
    for producer in made:
        with contextlib.suppress(PhaseOneError):  # nothing was open, or it is fenced
            producer.abort(soon())


def rows(*values: bytes | None, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def written(producer: TransactionalProducer, *batches: pa.RecordBatch, to: str | None) -> None:
    """Write a transaction and end it."""
    producer.begin()
    for batch in batches:
        producer.produce(batch, to, soon())
    producer.flush(soon())
    producer.resync(soon())


def visible(bootstrap: str, topic: str) -> list[Record]:
    """Read what is committed; the marker of an answered EndTxn may still be on its way."""
    assert_no_open_transaction(bootstrap, topic)
    return read_committed(bootstrap, topic)


def comparable(record: Record) -> tuple[object, ...]:
    return record.partition, record.key, record.value, record.headers


def both_write(make: Make, bootstrap: str, topic: Topic, *batches: pa.RecordBatch, **how) -> list:
    """Write by both ways into topics of their own; return what one has, after comparing."""
    partitions = how.pop("partitions", 1)
    found = []
    for kind in BOTH:
        out = topic(partitions)
        written(make(kind, **how), *batches, to=out)
        found.append(sorted(visible(bootstrap, out), key=lambda r: (r.partition, r.offset)))
    plain, native = found
    assert list(map(comparable, native)) == list(map(comparable, plain))
    return native


def test_the_native_path_is_available_here():
    assert librdkafka.available() == ""


def test_nulls_empty_values_and_headers_and_times(make, bootstrap, topic):
    headers = pa.array(
        [
            [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
            None,
            [],
            [{"key": "", "value": b""}, {"key": "ü", "value": b"\0"}],
        ],
        HEADERS_TYPE,
    )
    batch = rows(
        None,
        b"",
        b"v\0v",
        b"w",
        key=pa.array([b"k", None, b"", b"\0"], pa.binary()),
        headers=headers,
        timestamp=pa.array([1_700_000_000_123_999, None, 1_000, None], SINK_SCHEMA.types[-1]),
    )
    seen = both_write(make, bootstrap, topic, batch)
    assert [(r.key, r.value) for r in seen] == [
        (b"k", None),
        (None, b""),
        (b"", b"v\0v"),
        (b"\0", b"w"),
    ]
    assert [r.headers for r in seen] == [
        (("h", b"1"), ("h", None)),
        (),
        (),
        (("", b""), ("ü", b"\0")),
    ]
    assert (seen[0].timestamp, seen[2].timestamp) == (1_700_000_000_123, 1)
    assert seen[1].timestamp > 1_700_000_000_123  # the producer's own


def test_nulls_and_empty_values_without_headers(make, bootstrap, topic):
    """The batch call: rows with headers or times go another way."""
    all_empty = rows(b"", b"", key=pa.array([b"", b""], pa.binary()))
    no_key = rows(None, b"x", key=pa.nulls(2, pa.binary()))
    of_type_null = pa.record_batch({"value": pa.nulls(1), "key": pa.array([b"k"], pa.binary())})
    seen = both_write(make, bootstrap, topic, all_empty, no_key, rows(None), of_type_null, rows())
    assert [(r.key, r.value) for r in seen] == [
        (b"", b""),
        (b"", b""),
        (None, None),
        (None, b"x"),
        (None, None),
        (b"k", None),
    ]


def test_keys_choose_the_same_partition(make, bootstrap, topic):
    keys = [b"", *(b"key-%d" % n * (1 + n % 5) for n in range(2000))]
    batch = rows(*(b"%d" % n for n in range(2001)), key=pa.array(keys, pa.binary()))
    seen = both_write(make, bootstrap, topic, batch, partitions=7)
    assert len(seen) == 2001
    assert {r.partition for r in seen} == set(range(7))


def test_every_layout_of_a_column(make, bootstrap, topic):
    values = [b"a", None, b"", b"ccc", b"dd"]
    texts = pa.array([None if v is None else v.decode() for v in values], pa.string())
    binary = pa.array(values, pa.binary())
    fixed = pa.array([None if v is None else v.ljust(4) for v in values], pa.binary(4))
    columns = [
        binary,
        texts,
        binary.cast(pa.large_binary()),
        texts.cast(pa.large_string()),
        fixed,
        binary.dictionary_encode(),
        binary.cast(pa.binary_view()),
        texts.cast(pa.string_view()),
        pa.concat_arrays([binary, binary]).slice(3, 4),
    ]
    batches = [pa.record_batch({"value": column, "key": column}) for column in columns]
    seen = both_write(make, bootstrap, topic, *batches)
    assert [r.value for r in seen[:4]] == values[:4]
    assert len(seen) == 8 * 5 + 4


def test_slices_of_a_batch(make, bootstrap, topic):
    whole = rows(*(None if n % 7 == 0 else b"%d" % n for n in range(100)))
    slices = [whole.slice(start, 13) for start in range(0, 100, 13)]
    seen = both_write(make, bootstrap, topic, *slices)
    assert [r.value for r in seen] == whole.column("value").to_pylist()


def test_partitions_that_rows_name(make, bootstrap, topic):
    """Alternating, then mixed with rows that leave it to their key."""
    values = [b"%03d" % n for n in range(300)]
    keys = pa.array([b"k%d" % (n % 10) for n in range(300)], pa.binary())
    named = pa.array([n % 3 for n in range(300)], pa.int32())
    mixed = pa.array([None if n % 4 == 0 else n % 3 for n in range(300)], pa.int32())
    batches = [rows(*values, key=keys, partition=column) for column in (named, mixed)]
    seen = both_write(make, bootstrap, topic, *batches, partitions=3)
    assert len(seen) == 600


def test_several_topics_in_one_batch(make, bootstrap, topic):
    for kind in BOTH:
        outs = [topic(2), topic(2), topic(2)]
        names = [outs[n * n % 3] for n in range(300)]
        keys = pa.array([b"k%d" % (n % 5) for n in range(300)], pa.binary())
        batch = rows(*(b"%03d" % n for n in range(300)), key=keys, topic=pa.array(names))
        written(make(kind), batch.slice(1), to=None)
        for out in outs:
            expected = [b"%03d" % n for n in range(1, 300) if names[n] == out]
            seen = visible(bootstrap, out)
            assert sorted(r.value for r in seen) == expected
            for partition in (0, 1):
                ordered = [r.value for r in seen if r.partition == partition]
                assert ordered == sorted(ordered)


@pytest.mark.parametrize("extra", [{}, {"timestamp": 5_000_000}], ids=["batch", "one-by-one"])
def test_w5_more_than_the_queue_holds(make, bootstrap, topic, extra):
    values = [b"%05d" % n for n in range(5000)]
    columns = {
        name: pa.array([value] * 5000, pa.timestamp("us", tz="UTC"))
        for name, value in extra.items()
    }
    how = {"queue.buffering.max.messages": "100"}
    seen = both_write(make, bootstrap, topic, rows(*values, **columns), **how)
    assert [r.value for r in seen] == values


def test_w5_a_queue_that_stays_full_ends_with_the_deadline(make, topic):
    out = topic()
    for kind in BOTH:
        producer = make(kind, **{"queue.buffering.max.messages": "10", "linger.ms": "30000"})
        begin_with_marker(producer, out)
        with pytest.raises(DeliveryError, match="stayed full"):
            producer.produce(rows(*[b"x"] * 100), out, Deadline(0.3))


def begin_with_marker(producer: TransactionalProducer, topic: str) -> None:
    """Begin as the sink does; an abort before any answered request may leave it open."""
    producer.begin()
    producer.send_offsets(producer.transactional_id, {f"{topic}-0": 0}, "token", soon())
    producer.await_offsets()


def errors_of(
    make: Make, topic: Topic, batch: pa.RecordBatch, out: str | None, **how: str
) -> list[SparkOnceError]:
    """Return what both ways raise; each must still be able to abort, quickly."""
    found = []
    for kind in BOTH:
        producer = make(kind, **how)
        begin_with_marker(producer, topic())
        with pytest.raises(SparkOnceError) as caught:
            producer.produce(batch, out, soon())
            producer.flush(soon())
        found.append(caught.value)
        for_an_abort = Deadline(10)
        producer.abort(for_an_abort)
        assert for_an_abort.remaining() > 2
        assert producer._failed == 0
    plain, native = found
    assert type(native) is type(plain)
    assert (native.what, native.option) == (plain.what, plain.option)
    return found


def said(error: SparkOnceError) -> str:
    """Return where and cause, without the transactional id."""
    return error.where.partition(": ")[2] + error.cause


def test_a_record_as_large_as_java_sends_it(make, bootstrap, topic):
    """By its own default librdkafka refuses what Spark's sink writes."""
    large = b"x" * 1_048_000
    seen = both_write(make, bootstrap, topic, rows(b"a", large, b"b" * 600_000, b"c" * 600_000))
    assert [len(record.value or b"") for record in seen] == [1, 1_048_000, 600_000, 600_000]


@pytest.mark.parametrize("limit", [None, 5_000])
def test_a_record_that_is_larger_than_the_producer_sends(make, topic, limit: int | None):
    out = topic()
    how = {} if limit is None else {"message.max.bytes": str(limit)}
    large = b"x" * 1_048_577
    timed = rows(large, timestamp=pa.array([1], pa.timestamp("us", tz="UTC")))
    for batch in (rows(b"ok", large), rows(large, key=pa.array([b"k"])), timed):
        for error in errors_of(make, topic, batch, out, **how):
            assert isinstance(error, RecordRefusedError)
            assert error.where.endswith(f": {out}")
            assert f"{limit or 1_048_576:,} bytes" in error.cause
            assert f"kafka.max.request.size={limit or 1_048_576};" in error.option


def test_w6_a_record_that_the_broker_refuses_is_counted(make, bootstrap, topic):
    """The raw EndTxn would commit the transaction without it."""
    out = topic(max_message_bytes="2000")
    batch = rows(b"x" * 10_000)
    plain, native = errors_of(make, topic, batch, out)
    assert isinstance(native, RecordRefusedError)
    assert said(native) == said(plain)
    assert "1 record(s)" in native.what
    with_headers = rows(
        b"x" * 10_000, headers=pa.array([[{"key": "a", "value": b"b"}]], HEADERS_TYPE)
    )
    assert isinstance(errors_of(make, topic, with_headers, out)[1], RecordRefusedError)
    assert visible(bootstrap, out) == []


def test_w6_refused_records_are_counted_each(make, topic):
    out = topic(max_message_bytes="2000")
    counts = []
    for kind in BOTH:
        producer = make(kind)
        producer.begin()
        with pytest.raises(RecordRefusedError):
            producer.produce(rows(*[b"x" * 1500] * 10), out, soon())
            producer.flush(soon())
        counts.append(producer._failed)
    assert counts[0] == counts[1]
    assert counts[1] >= 1


def test_rows_without_an_address(make, topic):
    out = topic()
    for nowhere in (None, ""):
        named = rows(b"a", b"b", topic=pa.array([out, nowhere], pa.string()))
        assert "no topic" in errors_of(make, topic, named, None)[1].cause
    errors_of(make, topic, pa.record_batch({"value": pa.array([1])}), out)


def test_w3_a_topic_or_a_partition_that_does_not_exist(make, topic, bootstrap, application_id):
    """An abort would wait for ever if the record of the missing partition stayed counted.

    What librdkafka asks for while it aborts, the other partition, may be overtaken by the abort:
    then the broker refuses that, and the producer is given up; or it opens the transaction anew.
    The sweep ends both.
    """
    out = topic(2)
    quick = {"topic.metadata.propagation.max.ms": "500"}
    _, native = errors_of(make, topic, rows(b"a"), "no-such-topic", **quick)
    assert isinstance(native, DeliveryError)
    seventh = pa.array([7, 0], pa.int32())
    for kind in BOTH:  # also where the topic is known already
        producer = make(kind)
        written(producer, rows(b"warm"), to=out)
        producer.begin()
        with pytest.raises(DeliveryError):
            producer.produce(rows(b"a", b"b", partition=seventh), out, soon())
            producer.flush(soon())
        for_an_abort, refused = Deadline(10), ""
        try:
            producer.abort(for_an_abort)
        except PhaseOneError as error:
            refused = str(error)
        assert not refused or "INVALID_TXN_STATE" in refused
        assert for_an_abort.remaining() > 2
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        for one in wire.list_open(application_id, None, soon()):
            wire.fence(one.transactional_id, 60_000, soon())
    assert [one.value for one in visible(bootstrap, out)] == [b"warm"] * len(BOTH)


def test_offsets_the_drivers_commit_a_resync_and_the_next_transaction(
    make, bootstrap, topic, application_id
):
    source, out = topic(), topic()
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        producer = make(NativeTransactionalProducer)
        for number in range(3):
            producer.begin()
            producer.produce(rows(b"%d" % number), out, soon())
            producer.flush(soon())
            producer.send_offsets(
                application_id, {f"{source}-0": 10 + number}, f"t{number}", soon()
            )
            producer.await_offsets()
            one = committable(wire, producer.transactional_id)
            assert (one.producer_id, one.producer_epoch) == (
                producer.producer_id,
                producer.producer_epoch,
            )
            outcomes = wire.commit([one], soon())
            assert set(outcomes.values()) == {Outcome.COMMITTED}
            producer.resync(soon())
            settled(wire, producer.transactional_id)
            markers = wire.read_markers(application_id, [f"{source}-0"], soon())
            assert markers == {f"{source}-0": (10 + number, f"t{number}")}
        assert not producer.spent
    assert [r.value for r in visible(bootstrap, out)] == [b"0", b"1", b"2"]


@long
def test_offsets_of_a_partition_that_does_not_exist_are_refused_in_both(make, application_id):
    for kind in BOTH:
        producer = make(kind)
        producer.begin()
        producer.send_offsets(application_id, {"no-such-topic-0": 1}, "t", soon())
        with pytest.raises(PhaseOneError, match="UNKNOWN_TOPIC_OR_PART"):
            producer.await_offsets()


def test_what_is_aborted_stays_invisible(make, bootstrap, topic):
    out = topic()
    producer = make(NativeTransactionalProducer)
    producer.begin()
    producer.produce(rows(b"lost"), out, soon())
    producer.flush(soon())
    assert [r.value for r in read_uncommitted(bootstrap, out)] == [b"lost"]
    producer.abort(soon())
    written(producer, rows(b"kept"), to=out)
    assert [r.value for r in visible(bootstrap, out)] == [b"kept"]


def test_a_fenced_producer_says_so_in_both(make, bootstrap, topic):
    out = topic()
    texts = []
    for kind in BOTH:
        producer = make(kind)
        written(producer, rows(b"a"), to=out)
        with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
            wire.fence(producer.transactional_id, 60_000, soon())
        producer.begin()
        with pytest.raises(PhaseOneError) as caught:
            producer.produce(rows(b"b"), out, soon())
            producer.flush(soon())
            producer.resync(soon())
        producer.serve()
        texts.append((type(caught.value), caught.value.what))
    assert texts[0] == texts[1]


def test_a_callback_that_fails_is_raised_by_every_later_call(make, topic, monkeypatch):
    """Else its record would be missing, and the transaction committed."""
    out = topic(max_message_bytes="2000")
    broken = RuntimeError("in the callback")

    def note(_self, _error, _message):
        raise broken

    monkeypatch.setattr(TransactionalProducer, "_note_failure", note)
    producer = make(NativeTransactionalProducer)
    producer.begin()
    producer.produce(rows(b"x" * 10_000), out, soon())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="in the callback"):
            producer.flush(soon())
    monkeypatch.undo()
    producer._producer._handle._raised = None


def test_a_setting_that_librdkafka_does_not_know(bootstrap):
    texts = []
    for kind in BOTH:
        with pytest.raises(Exception, match="no\\.such") as caught:
            kind({"bootstrap.servers": bootstrap, "no.such.setting": 1}, "x", timeout_ms=1000)
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1]
