"""Asks brokers on the thread that needs the answer, where that can be done at once.

It answers most questions of a checkpoint. What it does not answer (a broker that is away, slow or
throttles us) is asked again by `wire_client`, which finds coordinators, waits and tries again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.errors import KafkaError

from connectors.wire.direct_connection import DirectConnection
from connectors.wire.wire_client import WireClient
from transactions.clock import Deadline
from transactions.errors import SparkOnceError

#: An answer takes a millisecond. A broker that stands still for so long is asked the other way.
_PATIENCE_S: Final = 2.0
#: A broker that did not answer is asked the other way for so long.
_LEFT_ALONE_S: Final = 5.0


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
        """
        if threading.current_thread() is threading.main_thread():
            return {}
        if not self._asking.acquire(blocking=False):
            return {}
        try:
            return self._ask(questions, min(_PATIENCE_S, deadline.remaining()))
        finally:
            self._asking.release()

    def close(self) -> None:
        """Close all connections; a later question connects again."""
        for connection in list(self._connections.values()):
            connection.interrupt()
        with self._asking:
            while self._connections:
                self._connections.popitem()[1].close()

    def _ask(self, questions: Mapping[int, Sequence[Any]], patience_s: float) -> dict[int, Any]:
        now = time.monotonic()
        until = now + patience_s
        sent: dict[int, Any] = {}
        for node, requests in questions.items():
            if self._left_alone.get(node, now) <= now:
                with self._dropped_on_error(node):
                    sent[node] = self._connection(node, patience_s).send(requests, until)
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
    def _dropped_on_error(self, node: int) -> Any:
        try:
            yield
        except (OSError, KafkaError, SparkOnceError):
            self._left_alone[node] = time.monotonic() + _LEFT_ALONE_S
            if (connection := self._connections.pop(node, None)) is not None:
                connection.close()
