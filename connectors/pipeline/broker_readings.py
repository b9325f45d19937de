"""What the brokers say about a running application, for its metrics; nothing here changes anything.

It has its own connections: a slow answer to the metrics must not close the connection on which an
EndTxn is under way. One reading costs a few requests per cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.source.offsets import parse_offsets
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import Deadline

_ANSWER_S: Final = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReading:
    """One reading.

    Attributes:
        open_transactions: how many transactions of the application are open, in any state that
            holds readers back; those of the running checkpoint count too.
        oldest_open_ms: when the first of them began, by the broker's clock; -1 when none is open.
        stable_lag: per sink and ``topic-partition``, how many offsets (records and markers) lie
            after the last stable offset, where no read_committed consumer can go. Only for sinks
            with a topic of their own.
        latest: per ``topic-partition`` of the sources, where a reader would end now.
    """

    open_transactions: int
    oldest_open_ms: int
    stable_lag: Mapping[tuple[str, str], int]
    latest: Mapping[str, int]


class BrokerReader:
    """Asks the brokers of all sinks and sources. Lives in the driver process, for one thread.

    Args:
        app_id: the application whose transactions are counted.
        sinks: the sinks whose output is looked at.
        sources: the sources whose input is looked at.
    """

    def __init__(
        self, app_id: str, sinks: Sequence[KafkaSink], sources: Sequence[KafkaSource]
    ) -> None:
        self._app_id = app_id
        clusters = {sink.bootstrap_servers: sink.settings for sink in sinks}
        self._wires = [
            CoordinatorWire(settings, request_timeout_s=_ANSWER_S) for settings in clusters.values()
        ]
        self._inputs = [SourcePlanner(_impatient(source)) for source in sources]
        self._outputs = {
            sink.name: SourcePlanner(
                KafkaSource(
                    bootstrap_servers=sink.bootstrap_servers,
                    subscribe=[sink.topic],
                    poll_timeout_ms=int(_ANSWER_S * 1000),
                    kafka=sink.settings,
                )
            )
            for sink in sinks
            if sink.topic is not None
        }

    def read(self, deadline: Deadline) -> BrokerReading:
        """Ask everything once.

        Raises:
            SparkOnceError: a broker did not answer, or refused.
        """
        started: dict[str, int] = {}
        for wire in self._wires:
            ids = [one.transactional_id for one in wire.list_open(self._app_id, None, deadline)]
            for name, found in wire.describe(ids, deadline).items():
                started[name] = found.start_time_ms
        lag: dict[tuple[str, str], int] = {}
        for sink, output in self._outputs.items():
            # The end first: what is committed between the two answers must not look held back.
            ends = output.latest_offsets("read_uncommitted")
            stable = output.latest_offsets("read_committed")
            lag |= {(sink, key): max(0, end - stable.get(key, end)) for key, end in ends.items()}
        return BrokerReading(
            open_transactions=len(started),
            oldest_open_ms=min((ms for ms in started.values() if ms >= 0), default=-1),
            stable_lag=lag,
            # As a batch would ask: without a deleted topic, if the source may go on without it.
            latest={k: v for each in self._inputs for k, v in each.next_end({}).items()},
        )

    def close(self) -> None:
        """Close the connections; a reading under way fails."""
        for wire in self._wires:
            wire.close()


def next_offsets(end_offsets: Sequence[str]) -> dict[str, int]:
    """Merge the ends of a checkpoint's sources; if two read a partition, the smaller end counts."""
    merged: dict[str, int] = {}
    for text in end_offsets:
        for name, offset in parse_offsets(text).items():
            merged[name] = min(offset, merged.get(name, offset))
    return merged


def _impatient(source: KafkaSource) -> KafkaSource:
    return dataclasses.replace(source, poll_timeout_ms=int(_ANSWER_S * 1000))
