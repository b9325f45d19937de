"""The HTTP endpoint of a driver, for Prometheus and for the probes of a cluster.

    driver = StreamingDriver(..., metrics_port=9108)     # http://127.0.0.1:9108/metrics

It never goes missing while the driver lives, and a probe asks no broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, start_http_server

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline.broker_readings import BrokerReader, next_offsets
from connectors.pipeline.metrics import BrokerMetrics, EventMetrics, Reader
from transactions.errors import ConfigurationError
from transactions.events import subscribe
from transactions.log_entries import Decision

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

logger = logging.getLogger("sparkonce.metrics")

#: A probe gets 200 while this process answers.
LIVE: Final = "/livez"
#: A probe gets 200 when what an earlier run had left is settled, else 503.
READY: Final = "/readyz"


class MetricsEndpoint:
    """Serves the metrics of one driver over HTTP, from its start to its end.

    Args:
        app_id: label of every metric.
        port: where to listen; 0 takes a free port and logs it.
        host: the address on which to listen.
        reader: asks the brokers.
        committed: see `BrokerMetrics`.

    Raises:
        ConfigurationError: the port is taken, or no port at all; or the host is no address of this
            machine.
    """

    def __init__(
        self,
        app_id: str,
        port: int,
        host: str,
        *,
        reader: Reader,
        committed: Callable[[], Mapping[str, int]],
    ) -> None:
        registry = CollectorRegistry()
        self._events = EventMetrics(app_id, registry)
        self._brokers = BrokerMetrics(app_id, reader, committed)
        registry.register(self._brokers)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            reader.close()
            raise ConfigurationError(
                "The metrics endpoint cannot listen; nothing was started.",
                where=f"{host}:{port}",
                cause="another process (an earlier driver?) has the port, or the host is no "
                f"address of this machine: {error}",
                option=f"metrics_port={port}, 0 takes a free one; metrics_host={host}",
            ) from error
        metrics = self._server.get_app()
        assert metrics is not None
        self._server.set_app(_with_probes(metrics, lambda: self._events.ready))
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        self._unsubscribe = subscribe(self._events.hear)
        logger.info("metrics of %s: %s", app_id, self.url)

    @classmethod
    def of_driver(
        cls,
        app_id: str,
        port: int,
        host: str,
        *,
        sinks: Sequence[KafkaSink],
        sources: Sequence[KafkaSource],
        last_decision: Callable[[], Decision | None],
    ) -> Self:
        """Open the endpoint for a driver; a scrape calls `last_decision`, on another thread.

        Raises:
            ConfigurationError: see above.
        """

        def committed() -> Mapping[str, int]:
            decision = last_decision()
            return {} if decision is None else next_offsets(decision.end_offsets)

        reader = BrokerReader(app_id, sinks, sources)
        return cls(app_id, port, host, reader=reader, committed=committed)

    def close(self) -> None:
        """Stop listening; a second call is harmless."""
        self._unsubscribe()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._brokers.close()


def _with_probes(metrics: WSGIApplication, ready: Callable[[], bool]) -> WSGIApplication:
    """Return an application that answers probes too; they ask no broker."""

    def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in (LIVE, READY):
            return metrics(environ, start_response)
        good = path == LIVE or ready()
        status = "200 OK" if good else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [b"ok\n" if good else b"recovering\n"]

    return serve
