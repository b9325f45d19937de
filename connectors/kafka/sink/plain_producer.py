"""A librdkafka producer without transactions: a sent record is visible at once, for good.

It is idempotent, so its own retries neither double nor reorder records. Nothing can undo what a
failed checkpoint wrote: its records are written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.kafka.sink.record_producer import RecordProducer


class PlainProducer(RecordProducer):
    """Queues and flushes; see `RecordProducer`.

    Args:
        settings: the user's settings.
        name: its name in errors.
        strict: raise when the broker refused a record; otherwise only count refusals.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, *, strict: bool) -> None:
        self._strict = strict
        super().__init__(settings, name, {"enable.idempotence": True})

    def refused(self) -> tuple[int, str]:
        """Return the number of records refused since the last call, and the first reason."""
        self.serve()
        found = self._failed, self._first_failure if self._failed else ""
        self.forget_failures()
        return found

    def discard(self) -> None:
        """Drop queued records: the checkpoint failed, and another producer writes them again."""
        self._producer.purge(in_flight=False)

    def _check_failures(self) -> None:
        if self._strict:
            super()._check_failures()
