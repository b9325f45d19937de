"""The metrics of a driver: `EventMetrics` turns events into numbers, `BrokerMetrics` asks the
brokers when somebody scrapes. `connectors.pipeline.metrics_endpoint` serves both.

A scrape never waits longer than `_PATIENCE_S`: the age of the last reading shows a broker that does
not answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from connectors.kafka.source.offsets import split_key
from connectors.pipeline.broker_readings import BrokerReading
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.events import Event

logger = logging.getLogger("sparkonce.metrics")

MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)

_PATIENCE_S: Final = 2.0
_READING_S: Final = 8.0
_FRESH_S: Final = 1.0
#: From the milliseconds of a barrier to the minutes of a batch that waits for a broker.
_COMMIT_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_CHECKPOINT_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)

#: Counter -> (help, event kind, field that is added; "" adds 1).
_COUNTERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "checkpoints_completed": ("Checkpoints made visible", "checkpoint_completed", ""),
    "checkpoints_replayed": (
        "Checkpoints that an earlier attempt had decided and this one finished",
        "checkpoint_completed",
        "replayed",
    ),
    "checkpoints_failed": ("Checkpoints that failed", "checkpoint_failed", ""),
    "records_committed": ("Records made visible", "checkpoint_completed", "records"),
    "transactions_committed": (
        "Transactions of this run's own checkpoints, all proven committed",
        "checkpoint_completed",
        "transactions",
    ),
    "transactions_decided": ("Transactions past the point of no return", "decided", "transactions"),
    "transactions_recommitted": (
        "Decided transactions that were found open and committed by recovery or proof",
        "recommitted",
        "transactions",
    ),
    "transactions_aging": (
        "Decided transactions that had used up half of their timeout",
        "aging",
        "transactions",
    ),
    "transactions_lost": ("Decided transactions that the broker aborted", "lost", "transactions"),
    "transactions_healed": ("Lost transactions produced again", "healed", "transactions"),
    "records_healed": ("Records of healed transactions", "healed", "records"),
    "heals_refused": ("Heals that a person must decide", "heal_refused", ""),
    "commits_hidden": (
        "Partitions in which a broker keeps committed records from readers",
        "hidden_commit",
        "partitions",
    ),
    "records_refused": ("Records that a sink without a guarantee lost", "refused", "records"),
    "recoveries": ("Times that a run settled what was left before it", "recovered", ""),
    "restarts": ("Restarts of the query by the restart strategy", "restarted", ""),
    "retries": ("Steps that were tried again", "retried", ""),
    "fenced": ("Times that a newer run has stopped this one", "fenced", ""),
    "rescales": ("Times that partitions moved to fewer or more tasks", "rescaled", ""),
    "savepoints": ("Savepoints made", "savepoint", ""),
    "restores": ("Checkpoint folders begun from a savepoint", "restored", ""),
}


class EventMetrics:
    """Turns events into numbers; `hear` is the listener. Safe for any thread.

    Args:
        app_id: label of every metric; events of other applications are not counted.
        registry: where the metrics are kept.
        clock: replaced in tests.

    Attributes:
        ready: whether what an earlier run had left is settled.
    """

    def __init__(
        self, app_id: str, registry: CollectorRegistry, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._app_id = app_id
        self._clock = clock
        self._pending = 0
        self._oldest_ms = -1
        self.ready = False

        self._counters = {
            name: self._of_app(Counter(f"sparkonce_{name}", text, ["app"], registry=registry))
            for name, (text, _, _) in _COUNTERS.items()
        }
        self._swept = Counter(
            "sparkonce_transactions_swept",
            "Open transactions without an owner that were aborted",
            ["app", "sink"],
            registry=registry,
        )
        self._last_checkpoint = self._gauge("last_checkpoint_id", "Last finished one", registry)
        self._last_checkpoint.set(-1)
        self._last_time = self._gauge(
            "last_checkpoint_timestamp_seconds",
            "When it was finished; 0 before the first of this process",
            registry,
        )
        self._gauge(
            "transactions_pending", "Transactions decided and not yet proven committed", registry
        ).set_function(lambda: self._pending)
        self._gauge(
            "transactions_pending_oldest_age_seconds",
            "Age of the oldest pending transaction since it began; 0 without one",
            registry,
        ).set_function(lambda: age_s(self._oldest_ms, self._clock))
        self._open_histograms(registry)

    def _open_histograms(self, registry: CollectorRegistry) -> None:
        self._commit = self._of_app(
            Histogram(
                "sparkonce_commit_latency_seconds",
                "From the last record at the broker to all of them visible",
                ["app"],
                buckets=_COMMIT_BUCKETS,
                registry=registry,
            )
        )
        self._duration = self._of_app(
            Histogram(
                "sparkonce_checkpoint_duration_seconds",
                "From the start of a checkpoint to its end",
                ["app"],
                buckets=_CHECKPOINT_BUCKETS,
                registry=registry,
            )
        )
        self._phase = Histogram(
            "sparkonce_checkpoint_phase_seconds",
            "Phases of a checkpoint: start, write, check, decide, commit, finish",
            ["app", "phase"],
            buckets=_COMMIT_BUCKETS,
            registry=registry,
        )

    def _gauge(self, name: str, text: str, registry: CollectorRegistry) -> Gauge:
        return self._of_app(Gauge(f"sparkonce_{name}", text, ["app"], registry=registry))

    def _of_app(self, metric: MetricT) -> MetricT:
        return metric.labels(app=self._app_id)

    def hear(self, event: Event) -> None:
        """Count one event; see `transactions.events.subscribe`."""
        if event.fields.get("app", self._app_id) != self._app_id:
            return
        for name, (_, kind, field) in _COUNTERS.items():
            if kind == event.kind:
                self._counters[name].inc(_number(event, field) if field else 1)
        match event.kind:
            case "swept":
                sink = str(event.fields.get("sink", ""))
                self._swept.labels(self._app_id, sink).inc(_number(event, "count"))
            case "decided":
                self._set_pending(_number(event, "transactions"), event)
            case "recovering":
                self._set_pending(_number(event, "transactions"), event)
                self.ready = False
            case "recovered":
                lost = _number(event, "lost")  # healing follows, and ends with its checkpoint
                self._set_pending(lost, event)
                self.ready = not lost
            case "fenced":
                self._set_pending(0, event)  # they belong to the newer run now
                self.ready = False
            case "checkpoint_completed":
                self._set_pending(0, event)
                self.ready = True
                self._complete(event)

    def _set_pending(self, count: float, event: Event) -> None:
        if not count:
            self._oldest_ms = -1
        elif "oldest_start_ms" in event.fields:
            self._oldest_ms = int(_number(event, "oldest_start_ms"))
        self._pending = int(count)

    def _complete(self, event: Event) -> None:
        self._last_checkpoint.set(_number(event, "checkpoint"))
        self._last_time.set(self._clock.now_ms() / 1000)
        phases = {
            name.removeprefix("phase_").removesuffix("_ms"): _number(event, name) / 1000
            for name in event.fields
            if name.startswith("phase_")
        }
        if not phases:
            return
        for phase, seconds in phases.items():
            self._phase.labels(self._app_id, phase).observe(seconds)
        self._duration.observe(sum(phases.values()))
        self._commit.observe(sum(phases.get(name, 0.0) for name in ("check", "decide", "commit")))


class Reader(Protocol):
    """What `BrokerMetrics` asks; `connectors.pipeline.broker_readings.BrokerReader` is one."""

    def read(self, deadline: Deadline) -> BrokerReading:
        """Ask everything once."""

    def close(self) -> None:
        """Close the connections."""


class BrokerMetrics:
    """A Prometheus collector: on a scrape it collects what only the brokers know.

    At most one reading is under way, on a thread of its own; a scrape waits a short time for it,
    and otherwise shows the reading before.

    Args:
        app_id: label of every metric.
        reader: asks the brokers.
        committed: returns the next offset to read per ``topic-partition``, as last decided.
        clock: replaced in tests.
    """

    def __init__(
        self,
        app_id: str,
        reader: Reader,
        committed: Callable[[], Mapping[str, int]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._app_id = app_id
        self._reader = reader
        self._committed = committed
        self._clock = clock
        self._changed = threading.Condition()
        self._under_way = False
        self._closed = False
        self._last: BrokerReading | None = None
        self._last_at = clock.monotonic()
        self._failures = 0

    def collect(self) -> Iterator[Any]:
        """Yield the metric families of one scrape."""
        reading, age, failures = self._reading()
        yield self._gauge(
            "sparkonce_broker_reading_age_seconds",
            "Age of what the brokers said; growing: they do not answer",
            age,
        )
        failed = CounterMetricFamily(
            "sparkonce_broker_reading_failures", "Readings that failed", labels=["app"]
        )
        failed.add_metric([self._app_id], failures)
        yield failed
        if reading is None:
            return
        yield self._gauge(
            "sparkonce_transactions_open",
            "Transactions of the application that are open at the brokers",
            reading.open_transactions,
        )
        yield self._gauge(
            "sparkonce_transactions_open_oldest_age_seconds",
            "Age of the oldest open transaction; 0 without one",
            age_s(reading.oldest_open_ms, self._clock),
        )
        stable = GaugeMetricFamily(
            "sparkonce_output_stable_offset_lag_records",
            "Offsets between the last stable offset of an output partition and its end",
            labels=["app", "sink", "topic", "partition"],
        )
        for (sink, key), lag in sorted(reading.stable_lag.items()):
            topic, partition = split_key(key)
            stable.add_metric([self._app_id, sink, topic, str(partition)], lag)
        yield stable
        behind = GaugeMetricFamily(
            "sparkonce_input_lag_records",
            "Offsets of an input partition that no decided checkpoint has read yet",
            labels=["app", "topic", "partition"],
        )
        for key, offset in sorted(self._committed().items()):
            topic, partition = split_key(key)
            if key in reading.latest:
                lag = max(0, reading.latest[key] - offset)
                behind.add_metric([self._app_id, topic, str(partition)], lag)
        yield behind

    def describe(self) -> Iterator[Any]:
        """Yield nothing, so that registering asks no broker."""
        return iter(())

    def close(self) -> None:
        """End the reading; a scrape after it shows the last one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._reader.close()

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["app"])
        family.add_metric([self._app_id], value)
        return family

    def _reading(self) -> tuple[BrokerReading | None, float, int]:
        with self._changed:
            stale = self._last is None or self._clock.monotonic() - self._last_at > _FRESH_S
            if stale and not self._under_way and not self._closed:
                self._under_way = True
                threading.Thread(target=self._read, name="sparkonce-metrics", daemon=True).start()
            if stale:
                self._changed.wait_for(lambda: not self._under_way or self._closed, _PATIENCE_S)
            return self._last, self._clock.monotonic() - self._last_at, self._failures

    def _read(self) -> None:
        reading = None
        try:
            reading = self._reader.read(Deadline(_READING_S, self._clock))
        except Exception as error:  # noqa: BLE001 - metrics must not end; the age shows it
            logger.debug("the brokers could not be read: %s", error)
        with self._changed:
            self._under_way = False
            if reading is None:
                self._failures += 1
            else:
                self._last, self._last_at = reading, self._clock.monotonic()
            self._changed.notify_all()


def age_s(start_ms: int, clock: Clock) -> float:
    """Return how many seconds ago `start_ms` was, 0 for -1 ("never")."""
    return max(0.0, clock.now_ms() / 1000 - start_ms / 1000) if start_ms >= 0 else 0.0


def _number(event: Event, field: str) -> float:
    value = event.fields.get(field, 0)
    return 0.0 if isinstance(value, str) else float(value)
