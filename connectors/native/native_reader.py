"""The continuous mode's reader on the native consumer: the same positions, checks and errors."""

from __future__ import annotations

from typing import Any

from connectors.clients import client_errors
from connectors.kafka.source.offsets import partition_key
from connectors.kafka.source.partition_reader import MOST_ROWS, PartitionReader, Read
from connectors.native.native_consumer import NativeConsumer, PartitionFailedError


class NativePartitionReader(PartitionReader):
    """See `PartitionReader`. Only if `librdkafka.available()` returns ""."""

    def _make_consumer(self, settings: dict[str, Any]) -> NativeConsumer:
        return NativeConsumer(settings, headers=self._source.include_headers)

    def read(self, timeout_s: float) -> Read:
        """See `PartitionReader.read`."""
        self.lag = 0
        try:
            polled = self._consumer.poll_batch(MOST_ROWS, timeout_s)
        except PartitionFailedError as failed:
            return self._failed(failed)
        self._check_trouble()
        self._note_lag(polled.batch.num_rows)
        positions: dict[str, int] = {}
        for one in polled.moved:
            name = partition_key(one.topic, one.partition)
            self._check_same(one.topic)
            is_end = one.first == one.next_offset
            assert is_end or one.first >= self._positions[name], "librdkafka went back"
            if one.next_offset > self._positions[name]:
                positions[name] = one.next_offset
        self._positions.update(positions)
        return Read(positions=positions, batch=polled.batch if polled.batch.num_rows else None)

    def _failed(self, failed: PartitionFailedError) -> Read:
        positions: dict[str, int] = {}
        if self._may_come_back(failed.error):
            self._gone.add(failed.topic)
        elif not client_errors.is_about_the_group(failed.error):
            name = partition_key(failed.topic, failed.partition)
            if not client_errors.is_truncated(failed.error):
                raise client_errors.translate(failed.error, name, self._source.client_settings)
            self._truncated(name, positions)
        self._positions.update(positions)
        return Read(positions=positions, batch=None)
