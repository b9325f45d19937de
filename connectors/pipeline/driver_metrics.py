"""The metrics endpoint in the life of a driver: opened at its start, closed at its end.

It is apart from `connectors.pipeline.metrics_endpoint`, which needs an optional package: a driver
without metrics runs without the package. Restarts inside a process keep the endpoint, and so
its counters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError
from transactions.log_entries import Decision

ONLY_THIS_MACHINE: Final = "127.0.0.1"


class DriverMetrics:
    """The metrics of one driver; without a port it does nothing.

    Args:
        app_id: label of every metric.
        port: where to listen, 0 for a free port, None for no endpoint.
        host: the address on which to listen.
    """

    def __init__(self, app_id: str, port: int | None, host: str = ONLY_THIS_MACHINE) -> None:
        self._app_id = app_id
        self._port = port
        self._host = host
        self._open = contextlib.ExitStack()

    def open(
        self,
        sinks: Sequence[KafkaSink],
        sources: Sequence[KafkaSource],
        log: Callable[[], DecisionLog | None],
    ) -> None:
        """Listen, before any data moves.

        Args:
            sinks: the sinks whose output is looked at.
            sources: the sources whose input is looked at.
            log: returns the log of the present run; called on a scrape, from another thread.

        Raises:
            ConfigurationError: the port is taken, the host is no address of this machine, or
                prometheus-client is not installed.
        """
        if self._port is None:
            return
        try:
            from connectors.pipeline.metrics_endpoint import MetricsEndpoint  # noqa: PLC0415
        except ImportError as missing:
            if missing.name != "prometheus_client":
                raise
            raise ConfigurationError(
                "Metrics need the package prometheus-client.",
                cause="it is an optional part: pip install '.[metrics]' in a clone of sparkonce",
                option=f"metrics_port={self._port}",
            ) from missing

        def last_decision() -> Decision | None:
            now = log()
            return None if now is None else now.state.decision

        endpoint = MetricsEndpoint.of_driver(
            self._app_id,
            self._port,
            self._host,
            sinks=sinks,
            sources=sources,
            last_decision=last_decision,
        )
        self._open.callback(endpoint.close)

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Stop listening when the driver ends with an error."""
        try:
            yield
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening; a second call is harmless."""
        self._open.close()
