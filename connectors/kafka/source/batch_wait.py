"""When a batch is worth starting: enough records wait, or it has waited long enough."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.options.kafka_source import KafkaSource
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline


class BatchWait:
    """Holds back batches of one source, by `minOffsetsPerTrigger` and `maxTriggerDelay`.

    The first batch of a run is never held back, as in Spark (KafkaMicroBatchStream.delayBatch): a
    run does not know when the batch before it began.

    Args:
        source: has both options.
        clock: time source.
    """

    def __init__(self, source: KafkaSource, clock: Clock = SYSTEM_CLOCK) -> None:
        self._least = source.min_offsets_per_trigger
        self._longest_s = source.max_trigger_delay_ms / 1000
        self._clock = clock
        self._latest_start: Deadline | None = None

    def holds_back(self, start: Mapping[str, int], end: Mapping[str, int]) -> bool:
        """Return whether the batch of these offsets must wait; if not, its start counts."""
        if self._least is None:
            return False
        waiting = sum(max(0, last - start.get(key, 0)) for key, last in end.items())
        expired = self._latest_start is None or self._latest_start.expired()
        if waiting == 0 or (waiting < self._least and not expired):
            return True
        self._latest_start = Deadline(self._longest_s, self._clock)
        return False
