"""Asks brokers on the thread that needs the answer, where that can be done at once.

It answers most questions of a checkpoint. What it does not answer (a broker that is away, slow or
throttles us) is asked again by `wire_client`, which finds coordinators, waits and tries again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kafka.errors import SaslAuthenticationFailedError

from connectors.wire.direct_connection import DirectConnection
from connectors.wire.wire_client import WireClient
from transactions.clock import Deadline
from transactions.errors import SparkOnceError

logger = logging.getLogger(__name__)

#: An answer takes a millisecond. A broker that stands still for so long is asked the other way.
_PATIENCE_S: Final = 2.0
#: A broker that did not answer is asked the other way for so long.
_LEFT_ALONE_S: Final = 5.0
#: After a refused login: companies lock accounts that try again and again.
_REFUSED_S: Final = 300.0


class DirectQuestions:
    """One direct connection per broker. From any thread.

    Args:
        wire: knows the brokers and the login.
    """

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self._connections: dict[int, DirectConnection] = {}
        self._left_alone: dict[int, float] = {}
        self._asking = threading.Lock()
        self._closed = 0  # how often

    def ask(
        self, questions: Mapping[int, Sequence[Any]], deadline: Deadline
    ) -> dict[int, list[Any]]:
        """Ask all brokers at the same time. Only requests that may be carried out twice.

        Args:
            questions: the requests by broker id.
            deadline: when to give up.

        Returns the answers by broker id; a broker that did not answer all of its questions is
        missing. Nobody answers on the main thread (see `DirectConnection`), or while another thread
        asks.

        Raises:
            BrokerUnavailableError: `close` was called meanwhile: the other way is closed, too.
        """
        if threading.current_thread() is threading.main_thread():
            return {}
        if not self._asking.acquire(blocking=False):
            return {}
        closed = self._closed
        try:
            answers = self._ask(questions, min(_PATIENCE_S, deadline.remaining()))
        finally:
            self._asking.release()
        if closed != self._closed:
            raise self._wire.unavailable("the connections were closed meanwhile")
        return answers

    def close(self) -> None:
        """Close all connections, and fail a question under way; a later question connects again."""
        self._closed += 1
        for connection in list(self._connections.values()):
            connection.interrupt()
        with self._asking:
            while self._connections:
                self._connections.popitem()[1].close()

    def _ask(self, questions: Mapping[int, Sequence[Any]], patience_s: float) -> dict[int, Any]:
        closed, now = self._closed, time.monotonic()
        until = now + patience_s
        sent: dict[int, Any] = {}
        for node, requests in questions.items():
            left_s = until - time.monotonic()
            if left_s <= 0.0 or closed != self._closed:
                break
            if self._left_alone.get(node, now) <= now:
                with self._dropped_on_error(node):
                    sent[node] = self._connection(node, left_s).send(requests, until)
        answers: dict[int, Any] = {}
        for node, futures in sent.items():
            with self._dropped_on_error(node):
                answers[node] = self._connections[node].receive(futures)
        return answers

    def _connection(self, node: int, timeout_s: float) -> DirectConnection:
        if node not in self._connections:
            self._connections[node] = self._wire.direct_connection(node, timeout_s)
        return self._connections[node]

    @contextlib.contextmanager
    def _dropped_on_error(self, node: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - also a broken answer: it is asked again
            logger.debug("broker %s is asked the other way: %r", node, error)
            refused = isinstance(error, SaslAuthenticationFailedError | SparkOnceError)
            pause_s = _REFUSED_S if refused else _LEFT_ALONE_S
            self._left_alone[node] = time.monotonic() + pause_s
            if (connection := self._connections.pop(node, None)) is not None:
                connection.close()
