"""Errors that stand in a consumer's queue and are not about what is read now."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from connectors import KafkaSource
from connectors.clients.client_errors import ErrorWatch
from connectors.kafka.source import range_reader
from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.range_reader import _Reading
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    DataLossError,
    MissingTopicError,
    PhaseOneError,
)

OUT_OF_RANGE = KafkaError(KafkaError._AUTO_OFFSET_RESET)
WANTED = OffsetRange("in", 1, 10, 13)


def message(
    offset: int, error: KafkaError | None = None, place: tuple[Any, int] = ("in", 1)
) -> Message:
    """Return what confluent-kafka gives for a record, or for an error in its place."""
    topic, partition = place
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        value=b"%d" % offset,
        error=error,
        timestamp=(1, 7),
    )


class Consumer:
    """Gives one prepared chunk after the other; the partition holds these offsets."""

    holds = 0, 100

    def __init__(self, *chunks: list[Message]) -> None:
        self._chunks = list(chunks)
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def assign(self, _positions: Any) -> None:
        return

    def consume(self, _most: int, _timeout: float) -> list[Message]:
        return self._chunks.pop(0)

    def get_watermark_offsets(self, _place: Any, timeout: float) -> tuple[int, int]:
        return self.holds


class Pooled:
    def __init__(self, *chunks: list[Message]) -> None:
        self.consumer = Consumer(*chunks)
        self.trouble = ErrorWatch()


def offsets(*chunks: list[Message], fail_on_data_loss: bool) -> list[int]:
    source = KafkaSource(
        bootstrap_servers="b:1", subscribe="in", fail_on_data_loss=fail_on_data_loss
    )
    reading = _Reading(Pooled(*chunks), source, WANTED, SYSTEM_CLOCK)  # type: ignore[arg-type]
    return [offset for batch in reading.batches() for offset in batch["offset"].to_pylist()]


RECORDS = [message(10), message(11), message(12)]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("place", [("in", 0), ("other", 1)])
def test_what_the_range_before_has_left_does_not_end_this_one(place, fail_on_data_loss):
    """Librdkafka gives this error no version, so it outlives the assignment."""
    stale = message(99, OUT_OF_RANGE, place)
    assert offsets([stale], RECORDS, fail_on_data_loss=fail_on_data_loss) == [10, 11, 12]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_what_is_gone_behind_the_range_is_no_loss(fail_on_data_loss):
    chunk = [*RECORDS, message(13, OUT_OF_RANGE)]
    assert offsets(chunk, fail_on_data_loss=fail_on_data_loss) == [10, 11, 12]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_an_old_error_of_the_same_partition_skips_nothing(fail_on_data_loss):
    """The range before was read ahead of its end, and retention came by."""
    stale = message(99, OUT_OF_RANGE)
    assert offsets([stale], RECORDS, fail_on_data_loss=fail_on_data_loss) == [10, 11, 12]


def test_an_error_that_comes_again_and_again_ends_the_read():
    with pytest.raises(BrokerUnavailableError, match="out of range"):
        offsets(*[[message(10, OUT_OF_RANGE)]] * 100, fail_on_data_loss=False)


def test_what_is_gone_inside_the_range_is_a_loss(monkeypatch):
    monkeypatch.setattr(Consumer, "holds", (50, 100))
    with pytest.raises(DataLossError, match="at offset 11"):
        offsets([message(10), message(11, OUT_OF_RANGE)], fail_on_data_loss=True)


def test_a_topic_that_was_deleted_meanwhile_is_looked_for_again_or_missing(monkeypatch):
    missing = message(-1001, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    for fail_on_data_loss, kind in ((True, MissingTopicError), (False, PhaseOneError)):
        source = KafkaSource(
            bootstrap_servers="b:1", subscribe="in", fail_on_data_loss=fail_on_data_loss
        )
        pooled = Pooled([missing])
        monkeypatch.setattr(range_reader._POOL, "take", lambda _, one=pooled: one)
        with pytest.raises(kind, match=r"deleted|exist"):
            list(range_reader.read_range(source, WANTED))
        assert pooled.consumer.closed


def test_a_group_that_may_not_be_looked_up_does_not_matter_and_a_topic_does():
    group = message(-1001, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), (None, -1))
    assert offsets([group], [group, *RECORDS], fail_on_data_loss=True) == [10, 11, 12]
    topic = message(-1001, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(AuthenticationError):
        offsets([topic], fail_on_data_loss=True)
