"""Sends one raw request to one broker, and knows whether it left this machine.

kafka-python provides connections, versions, SSL and SASL. This file adds what a transaction needs:
a Deadline limits every wait; coordinators are found and cached here; and a failure says whether the
request can have reached the broker (`AnswerLostError`) or not (`NotSentError`).

House rules: everything named ``async`` runs on kafka-python's one I/O thread. Only that thread
changes the coordinator cache, so it needs no lock. kafka-python itself never repeats a request
(read in its source), so one `send` is at most one request on the wire.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from connectors.clients.client_log import hide_logins
from connectors.clients.client_settings import kafka_python_settings
from connectors.clients.token_source import TokenSource
from connectors.wire import broker_answers
from connectors.wire.backoff import FIRST_PAUSE_S, Backoff
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.direct_connection import DirectConnection
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigurationError,
    IllegalTransitionError,
    SparkOnceError,
    TokenUnavailableError,
)

TRANSACTION: Final = int(CoordinatorType.TRANSACTION)
GROUP: Final = int(CoordinatorType.GROUP)

#: By default kafka-python pauses a connection at 5 requests in flight; a checkpoint has hundreds.
MAX_IN_FLIGHT: Final = 300
#: Requests started together; below MAX_IN_FLIGHT, so that metadata requests still fit.
WAVE: Final = 200
MOST_COORDINATORS: Final = 4096

_LOGIN_TRIES: Final = 3
_TIMEOUTS: Final = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)

T = TypeVar("T")
R = TypeVar("R")

hide_logins()


class NotSentError(Exception):
    """The request never left this machine: a second try cannot do anything twice."""


class AnswerLostError(Exception):
    """The request was handed to the connection and no answer came: it may have been carried out."""


class WireClient:
    """Connections to all brokers of one cluster, for raw requests.

    Args:
        kafka: the user's client settings, without prefix.
        request_timeout_s: longest wait for one answer. After it the whole connection is closed, so
            every other request in flight on it is in doubt too.
    """

    def __init__(self, kafka: Mapping[str, str], request_timeout_s: float) -> None:
        self._kafka = kafka
        timeout_ms = max(1, int(request_timeout_s * 1000))
        self._config = {
            **kafka_python_settings(kafka),
            "request_timeout_ms": timeout_ms,
            "socket_connection_setup_timeout_ms": timeout_ms,
            "max_in_flight_requests_per_connection": MAX_IN_FLIGHT,
            "receive_message_max_bytes": 100_000_000,
            "reconnect_backoff_max_ms": 1000,
        }
        self._bootstrap = kafka.get("bootstrap.servers", "")
        self._tokens: TokenSource | None = self._config.get("sasl_oauth_token_provider")
        self._protocol = self._config.get("security_protocol", "PLAINTEXT")
        self._request_timeout_s = request_timeout_s
        self._lock = threading.Lock()
        self._net: Any = None
        self._manager: Any = None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._first_failure = ""

    def run(self, step: Callable[..., Awaitable[T]], *args: Any, deadline: Deadline) -> T:
        """Run one coroutine on the I/O thread and wait for it; connect first if needed.

        Raises:
            AuthenticationError: the broker refused our credentials.
            BrokerUnavailableError: no broker answered before the deadline.
        """
        self.connect(deadline)
        try:
            result: T = self._manager.run(step, *args)
        except SparkOnceError:
            raise
        except kafka_errors.KafkaError as error:
            raise self._foreign(error) from error
        except (NotSentError, AnswerLostError) as error:
            raise self.unavailable(str(error)) from error
        return result

    def connect(self, deadline: Deadline) -> None:
        """Connect to the cluster; return at once if it is connected already.

        Raises:
            AuthenticationError: the broker, or who gives the tokens, refused our credentials.
            BrokerUnavailableError: no broker answered before the deadline, or there was no token.
        """
        with self._lock:
            if self._manager is not None and self._manager.bootstrapped:
                return
            self._close()
            self._first_failure = ""
            if self._tokens is not None:  # here, because the I/O thread must not wait for one
                self._tokens.usable(deadline)
            self._net = NetworkSelector(**self._config)
            self._manager = KafkaConnectionManager(self._net, **self._config)
            self._net.start()
            try:
                if self._protocol != "PLAINTEXT":
                    self._manager.run(self._greet, deadline)
                self._manager.bootstrap(max(1, int(deadline.remaining() * 1000)))
            except kafka_errors.KafkaError as error:
                self._close()
                raise self._foreign(error) from error
            except BaseException:
                self._close()
                raise

    def direct_connection(self, node: int, timeout_s: float) -> DirectConnection:
        """Return a new connection for the calling thread. Precondition: a request was answered.

        Raises:
            OSError, KafkaError, SparkOnceError: there is no connection, or no login.
        """
        manager = self._manager
        broker = None if manager is None else manager.cluster.broker_metadata(node)
        if broker is None:
            raise ConnectionError(f"broker {node} is not known")
        address = (broker.host, broker.port)
        versions = manager.broker_version_data
        return DirectConnection(address, self._kafka, self._config, versions, timeout_s)

    async def _greet(self, deadline: Deadline) -> None:
        """Log in once, or until the deadline: bootstrap() would repeat wrong credentials.

        For wrong credentials a broker answers and closes. kafka-python often sees the end before
        the answer (seen). So several connections that were closed during the login count as a
        refusal. One that hung, or that closed before it said what it can, is none.
        """
        backoff, is_time = Backoff(self, deadline), True
        while is_time:
            for broker in self._manager.cluster.bootstrap_brokers():
                if await self._logs_in(broker.node_id, deadline):
                    return
            is_time = await backoff.again()

    async def _logs_in(self, node: Any, deadline: Deadline) -> bool:
        for _ in range(_LOGIN_TRIES):
            connection = None
            self._manager.broker_version_data = None  # of an earlier try, even a failed one
            try:
                connection = self._manager.get_connection(node, refresh_metadata_on_err=False)
                left_ms = max(1.0, deadline.remaining() * 1000)
                await self._manager.wait_for(connection.init_future, left_ms)
            except kafka_errors.KafkaError as error:
                self._raise_if_refused(error)
                self._first_failure = self._first_failure or str(error)
                no_login = connection is None or connection.broker_version_data is None
                if no_login or isinstance(error, _TIMEOUTS):
                    return False
                await self.pause(min(FIRST_PAUSE_S, deadline.remaining()))
            else:
                connection.close()
                return True
        if self._protocol.startswith("SASL"):
            raise kafka_errors.SaslAuthenticationFailedError(
                f"the broker closed the connection during the login, {_LOGIN_TRIES} times"
            )
        return False

    def close(self) -> None:
        """Close every connection; a later `run` connects again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._manager is not None:
            self._manager.call_soon(self._manager.close)
            self._net.stop()
            self._net.close()
        self._net = self._manager = None
        self._coordinators = {}

    # -- sending ----------------------------------------------------------------------------

    async def send(self, node: int, request: Any, deadline: Deadline) -> Any:
        """Send one request to one broker and return its answer.

        Raises:
            NotSentError: nothing was sent; try again.
            AnswerLostError: the request may have been carried out.
            AuthenticationError: the broker refuses the connection for good.
            ConfigurationError: the broker has no version of this request that we may use.
        """
        connection = await self._ready(node, deadline)
        timeout_s = min(self._request_timeout_s, deadline.remaining())
        if timeout_s <= 0.0:
            raise NotSentError("the deadline has passed")
        # There is no await between _ready and this line: the connection is open and not paused, so
        # any failure from here on comes after the send.
        try:
            return await connection.send_request(request, request_timeout_ms=timeout_s * 1000)
        except kafka_errors.IncompatibleBrokerVersion as error:
            raise ConfigurationError(
                "The broker is too old or too new for a request that sparkonce needs.",
                where=f"broker {node} of {self._bootstrap}",
                cause=str(error),
            ) from error
        except kafka_errors.NodeNotReadyError as error:
            raise NotSentError(str(error)) from error
        except Exception as error:  # also a broken answer: in any case the request was sent
            raise AnswerLostError(f"broker {node}: {error}") from error

    async def _ready(self, node: int, deadline: Deadline) -> Any:
        timeout_ms = max(1.0, deadline.remaining() * 1000)
        try:
            connection = self._manager.get_connection(node)
            if not connection.connected:
                await self._manager.wait_for(connection.init_future, timeout_ms)
        except kafka_errors.UnknownBrokerIdError as error:
            await self.refresh(deadline)
            raise NotSentError(f"broker {node} is not known yet") from error
        except kafka_errors.KafkaError as error:
            self._raise_if_refused(error)
            raise NotSentError(f"broker {node}: {type(error).__name__}: {error}") from error
        except TokenUnavailableError as error:
            raise NotSentError(f"broker {node}: {error.what} {error.cause}") from error
        if connection.paused or not connection.connected:
            raise NotSentError(f"broker {node}: connection paused or closed")
        return connection

    async def pause(self, seconds: float) -> None:
        """Wait without holding the I/O thread."""
        await self._net.sleep(seconds)

    async def together(self, step: Callable[[R], Awaitable[T]], items: Sequence[R]) -> list[T]:
        """Run a coroutine for every item at the same time, in bounded waves; keep the order."""
        if len(items) == 1:  # a separate task would cost three rounds of the I/O loop
            return [await step(items[0])]
        results: list[T] = []
        for start in range(0, len(items), WAVE):
            wave = [self._manager.call_soon(step, item) for item in items[start : start + WAVE]]
            # Await a whole wave even if one fails: nothing may run on unnoticed.
            failures: list[Exception] = []
            for future in wave:
                try:
                    results.append(await future)
                except Exception as error:  # noqa: BLE001 - raised again below
                    failures.append(error)
            if failures:
                raise failures[0]
        return results

    # -- brokers and coordinators -------------------------------------------------------------

    async def refresh(self, deadline: Deadline) -> None:
        """Request the list of brokers again; a failure keeps the old list."""
        asked = self._manager.call_soon(self._manager.cluster.refresh_metadata)
        try:
            await self._manager.wait_for(asked, max(1.0, deadline.remaining() * 1000))
        except kafka_errors.KafkaError as error:
            self._raise_if_refused(error)

    def brokers(self) -> list[int]:
        """Return the ids of the brokers in the last metadata."""
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    def cluster_id(self) -> str:
        """Return the cluster's own name; "" before its first metadata."""
        return "" if self._manager is None else str(self._manager.cluster.cluster_id or "")

    async def any_broker(self) -> int:
        """Return a broker for a question that every broker can answer.

        Raises:
            NotSentError: every broker is in its reconnect pause.
        """
        node = self._manager.least_loaded_node()
        if node is None:
            raise NotSentError(f"no broker of {self._bootstrap} can be connected to now")
        return int(node)

    def forget(self, kind: int, keys: Iterable[str]) -> None:
        """Drop cached coordinators that have moved or did not answer."""
        for key in keys:
            self._coordinators.pop((kind, key), None)

    async def coordinators(
        self, kind: int, keys: Sequence[str], deadline: Deadline
    ) -> dict[str, int]:
        """Return the known coordinators of the keys.

        The result lacks keys without a known coordinator (not available, loading); the caller waits
        and asks again.

        Raises:
            NotSentError: no broker could be asked. AnswerLostError: the broker did not answer.
            AuthenticationError: we may not describe a key.
        """
        if len(self._coordinators) > MOST_COORDINATORS:  # ids change; one look-up finds all again
            self._coordinators.clear()
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        if unknown:
            node = await self.any_broker()
            await self._ready(node, deadline)
            if self._version(FindCoordinatorRequest) >= 4:
                request = FindCoordinatorRequest(
                    key_type=kind, coordinator_keys=unknown, min_version=4
                )
                rows = (await self.send(node, request, deadline)).coordinators
                self._learn(kind, [(row.key, row) for row in rows])
            else:
                for key in unknown:
                    request = FindCoordinatorRequest(key=key, key_type=kind, max_version=3)
                    self._learn(kind, [(key, await self.send(node, request, deadline))])
        return self.known_coordinators(kind, keys)

    def known_coordinators(self, kind: int, keys: Iterable[str]) -> dict[str, int]:
        """Return the coordinators that need no question. From any thread."""
        known = {key: self._coordinators.get((kind, key)) for key in keys}
        return {key: node for key, node in known.items() if node is not None}

    def _learn(self, kind: int, rows: Iterable[tuple[str, Any]]) -> None:
        for key, row in rows:
            answer = broker_answers.read(Request.FIND_COORDINATOR, row.error_code)
            if answer.meaning is Meaning.DONE:
                self._coordinators[(kind, key)] = row.node_id
            else:
                self.raise_permanent(Request.FIND_COORDINATOR, answer, key)

    def _version(self, request: Any) -> int:
        try:
            return int(self._manager.broker_version_data.api_version(request))
        except kafka_errors.IncompatibleBrokerVersion:
            return -1

    # -- errors -----------------------------------------------------------------------------

    def raise_permanent(self, request: Request, answer: Answer, name: str) -> None:
        """Raise for an answer that a retry cannot change; return for every other answer.

        Raises:
            AuthenticationError: a right is missing.
            ConfigurationError: a setting is refused.
            IllegalTransitionError: we sent a forbidden request; a bug.
        """
        where = f"{request.value} for {name!r} at {self._bootstrap}"
        if answer.meaning is Meaning.AUTHORIZATION:
            raise AuthenticationError(
                "The broker refuses a request: the principal lacks a right.",
                where=where,
                cause=str(answer),
                option=f"kafka.security.protocol={self._protocol}, and the ACLs of its principal: "
                f"{answer.sentence}",
            )
        if answer.meaning is Meaning.CONFIGURATION:
            raise ConfigurationError(
                "The broker refuses a request permanently.", where=where, cause=str(answer)
            )
        if answer.meaning is Meaning.BUG:
            raise IllegalTransitionError(
                "The broker sent an answer that must never occur.", where=where, cause=str(answer)
            )

    def unavailable(self, cause: str) -> BrokerUnavailableError:
        """Return the error for a deadline that passed without an answer."""
        return BrokerUnavailableError(
            "No broker answered before the deadline.",
            where=self._bootstrap,
            cause=cause,
            option=f"kafka.bootstrap.servers={self._bootstrap}, "
            f"kafka.security.protocol={self._protocol}",
        )

    def _raise_if_refused(self, error: Exception) -> None:
        foreign = self._foreign(error)
        if isinstance(foreign, ConfigurationError):
            raise foreign from error

    def _foreign(self, error: Exception) -> SparkOnceError:
        refused: tuple[type[Exception], ...] = (
            kafka_errors.SaslAuthenticationFailedError,
            kafka_errors.UnsupportedSaslMechanismError,
            kafka_errors.AuthorizationError,
        )
        # With a token it can be a second login of one connection; see `client_errors`.
        if self._tokens is None:
            refused += (kafka_errors.IllegalSaslStateError,)
        if isinstance(error, refused):
            return AuthenticationError(
                "The broker refused our credentials.",
                where=self._bootstrap,
                cause=str(error),
                option=f"kafka.sasl.mechanism={self._config.get('sasl_mechanism')}, "
                "kafka.sasl.jaas.config",
            )
        if "certificate verify failed" in str(error).lower():
            return AuthenticationError(
                "The broker's certificate is not trusted, or names another host.",
                where=self._bootstrap,
                cause=str(error),
                option=f"kafka.ssl.truststore.location={self._config.get('ssl_cafile', '')}, "
                "kafka.ssl.endpoint.identification.algorithm",
            )
        first = f"; at first: {self._first_failure}" if self._first_failure else ""
        return self.unavailable(f"{error}{first}")
