"""The continuous mode's reader on the native consumer: the same positions, checks and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from connectors.clients import client_errors
from connectors.kafka.source.offsets import partition_key
from connectors.kafka.source.partition_reader import MOST_ROWS, PartitionReader, Read
from connectors.native.native_consumer import NativeConsumer, PartitionFailedError


class NativePartitionReader(PartitionReader):
    """See `PartitionReader`. Only if `librdkafka.available()` returns ""."""

    def _make_consumer(self, settings: dict[str, Any]) -> NativeConsumer:
        return NativeConsumer(settings, headers=self._source.include_headers)

    def read(self, timeout_s: float) -> Iterator[Read]:
        """See `PartitionReader.read`."""
        self.lag = 0
        try:
            polled = self._consumer.poll_batches(MOST_ROWS, timeout_s)
        except PartitionFailedError as failed:
            yield from self._failed(failed)
            return
        self._check_trouble()
        self._note_lag(sum(one.batch.num_rows for one in polled))
        for one in polled:
            name = partition_key(one.topic, one.partition)
            self._check_same(one.topic)
            if one.batch.num_rows:
                first = one.batch.column("offset")[0].as_py()
                assert first >= self._positions[name], "librdkafka went back"
            elif one.next_offset <= self._positions[name]:
                continue
            self._positions[name] = one.next_offset
            batch = one.batch if one.batch.num_rows else None
            yield Read(partition=name, position=one.next_offset, batch=batch)

    def _failed(self, failed: PartitionFailedError) -> Iterator[Read]:
        if self._may_come_back(failed.error):
            self._gone.add(failed.topic)
            return
        if client_errors.is_about_the_group(failed.error):
            return
        name = partition_key(failed.topic, failed.partition)
        if not client_errors.is_truncated(failed.error):
            raise client_errors.translate(failed.error, name, self._source.client_settings)
        ends: dict[str, int] = {}
        self._truncated(name, ends)
        self._positions.update(ends)
        yield Read(partition=name, position=ends[name], batch=None)
