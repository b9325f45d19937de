"""A connection to one broker that the asking thread itself writes to and reads from.

The connections of `wire_client` have a thread of their own, so a question passes from one thread to
another and back, and each time waits for a core of a busy machine. `benchmarks/direct_questions.py`
compares both: here a question takes a third of the CPU time.

Frames, versions and the login are kafka-python's. This is the transport and the loop of one of its
connections, which needs nothing else of them.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from kafka.net.connection import KafkaConnection

from connectors.clients.login import Login
from connectors.clients.tls_context import context_of

_READ_BYTES: Final = 65536
_LOOK_S: Final = 0.001


class DirectConnection:
    """For questions only: after any error it is unknown whether a request has arrived.

    One thread at a time, except for `interrupt`. Not for the main thread: ctrl-C would end a
    question in the middle of an answer.

    Args:
        address: host and port of the broker.
        kafka: the user's client settings, without prefix.
        config: kafka-python's settings made of them.
        versions: what the brokers can, from kafka-python; None: it asks.
        timeout_s: longest wait for the connection and the login.

    Raises:
        OSError, KafkaError: there is no connection, or no login.
        SparkOnceError: there is no token for the login, or a file of it cannot be read.
    """

    def __init__(
        self,
        address: tuple[str, int],
        kafka: Mapping[str, str],
        config: Mapping[str, Any],
        versions: Any,
        timeout_s: float,
    ) -> None:
        self.host = address[0].rstrip(".")
        self._until = time.monotonic() + timeout_s
        self._timers: dict[int, tuple[float, Callable[[], Any] | None]] = {}
        self._numbers = itertools.count()
        self._socket = socket.create_connection(address, timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (tls := Login.of(kafka).tls) is not None:
                context = context_of(tls)
                self._socket = context.wrap_socket(self._socket, server_hostname=self.host)
            self._kafka = KafkaConnection(self, broker_version_data=versions, **config)
            self._kafka.connection_made(self)
            self._drive(self._kafka.initialize(self._until))
            self._check_login()
        except BaseException:
            self._socket.close()
            raise

    def _check_login(self) -> None:
        if not self._kafka.connected:
            raise self._kafka.init_future.exception

    def send(self, requests: Sequence[Any], until: float) -> list[Any]:
        """Send requests, one behind the other; the broker answers in this order.

        Args:
            requests: of kafka-python, each in a version that the broker can choose.
            until: when an answer is too late, by `time.monotonic`.

        Returns what `receive` waits for.

        Raises:
            OSError, KafkaError: the connection is of no more use.
        """
        self._until = until
        self._run_timers()
        left_ms = (until - time.monotonic()) * 1000.0
        return [self._kafka.send_request(one, request_timeout_ms=left_ms) for one in requests]

    def receive(self, sent: Sequence[Any]) -> list[Any]:
        """Wait for the answers to what was sent.

        Raises:
            OSError, KafkaError: the connection is of no more use.
        """
        for one in sent:
            self._await(one)
        if failed := [one.exception for one in sent if one.exception is not None]:
            raise failed[0]
        return [one.value for one in sent]

    def interrupt(self) -> None:
        """Make a thread that waits here fail. From any thread."""
        with contextlib.suppress(OSError):
            # Not TLS's own shutdown: it goes on in plain text.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; a second call is harmless. Also called by kafka-python."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._socket.close()
        if not self._kafka.closed:
            self._kafka.connection_lost(error)

    def _await(self, future: Any) -> None:
        while not future.is_done:
            # At least a look: the answer may be there, while another broker took all the time.
            self._socket.settimeout(max(_LOOK_S, self._until - time.monotonic()))
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError(f"{self.host} has closed the connection")
            self._kafka.data_received(data)

    def _drive(self, steps: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine of kafka-python; it waits for nothing but answers."""
        with contextlib.suppress(StopIteration):
            while True:
                self._await(steps.send(None))

    def _run_timers(self) -> None:
        """Do what is due: a login is repeated before it ends, a throttled connection goes on."""
        now = time.monotonic()
        due = sorted((when, number) for number, (when, _) in self._timers.items() if when <= now)
        for _, number in due:
            step = self._timers.pop(number, (0.0, None))[1]
            begun = None if step is None else step()  # a step can cancel the next one
            if inspect.iscoroutine(begun):
                self._drive(begun)

    # --- what kafka-python calls: its transport -----------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.settimeout(max(_LOOK_S, self._until - time.monotonic()))
        self._socket.sendall(data)

    def abort(self, error: Exception | None = None) -> None:
        """Close the connection, because of an error."""
        self._end(error)

    def resume_reading(self) -> None:
        """Nothing: the asking thread reads."""

    def get_protocol(self) -> Any:
        """Return who takes the data."""
        return self._kafka

    def getPeer(self) -> Any:  # noqa: N802 - kafka-python's name
        """Return the broker's address."""
        return self._socket.getpeername()

    def host_port(self) -> str:
        """Return the broker for a log line."""
        return self.host

    # --- what kafka-python calls: its loop ----------------------------------------------------

    def call_at(self, when: float, step: Callable[[], Any]) -> int:
        """Do something before the first question behind a time."""
        number = next(self._numbers)
        self._timers[number] = (when, step)
        return number

    def call_later(self, delay_s: float, step: Callable[[], Any]) -> int:
        """See `call_at`."""
        return self.call_at(time.monotonic() + delay_s, step)

    def cancel(self, number: int) -> None:
        """Forget a step."""
        self._timers.pop(number, None)
