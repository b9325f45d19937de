"""A librdkafka producer without transactions: what it has sent is visible at once, for good.

It is idempotent, so that its own retries neither double nor reorder records. What a failed
checkpoint wrote cannot be taken back: its records are written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.kafka.sink.record_producer import RecordProducer


class PlainProducer(RecordProducer):
    """Queues and flushes; see `RecordProducer`.

    Args:
        settings: the user's.
        name: what errors call it.
        strict: raise when the broker refused a record; otherwise refusals are only counted.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, *, strict: bool) -> None:
        self._strict = strict
        super().__init__(settings, name, {"enable.idempotence": True})

    def refused(self) -> tuple[int, str]:
        """Return how many records were refused since this was last asked, and the first reason."""
        self.serve()
        found = self._failed, self._first_failure if self._failed else ""
        self.forget_failures()
        return found

    def discard(self) -> None:
        """Drop what is queued: the checkpoint failed, and writes it again on another producer."""
        self._producer.purge(in_flight=False)

    def _check_failures(self) -> None:
        if self._strict:
            super()._check_failures()
