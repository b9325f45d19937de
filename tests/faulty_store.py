"""A wire to an S3 store on which requests and answers get lost, each kind in its turn."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import urlsplit

from transactions.clock import Deadline

_TIMEOUT_S: Final = 60.0
#: Of one connection; the other end makes headers of its own.
_HOP_BY_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


class Fault(StrEnum):
    """What goes wrong with a request."""

    REFUSED = "503, and the store has not seen it"
    DONE_AND_503 = "the store has done it, and the answer is 503"
    LOST = "the connection breaks before the store has seen it"
    DONE_AND_LOST = "the store has done it, and the connection breaks"
    STORM = "503, as all others for a while"


class FaultyStore(ThreadingHTTPServer):
    """Use it as a context manager; clients reach the store at its `endpoint`.

    The store checks signatures: of a request nothing but headers of the connection is changed.

    Attributes:
        met: how many requests met each fault.
        history: a line for each request: what came of it.

    Args:
        store: the store's own URL.
        shift: of the requests that go wrong, in the order in which they come.
        every: one of so many requests goes wrong.
        storm_every: one of so many begins a storm.
        storm_s: how long a storm lasts.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        store: str,
        *,
        shift: int,
        every: int = 13,
        storm_every: int = 60,
        storm_s: float = 1.5,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Wire)
        self.store = urlsplit(store).netloc
        self.met: Counter[Fault] = Counter()
        self.history: list[str] = []
        self._kinds = itertools.cycle(one for one in Fault if one is not Fault.STORM)
        self._numbers = itertools.count(shift)
        self._every, self._storm_every, self._storm_s = every, storm_every, storm_s
        self._storm = Deadline(0)
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def begin_storm(self) -> None:
        """Be too busy for all requests, for a while."""
        with self._lock:
            self._storm = Deadline(self._storm_s)

    def end_storm(self) -> None:
        """Be there for all requests again."""
        with self._lock:
            self._storm = Deadline(0)

    def fault(self) -> Fault | None:
        """Say what happens to the next request."""
        with self._lock:
            found = self._next_fault()
            if found is not None:
                self.met[found] += 1
            return found

    def _next_fault(self) -> Fault | None:
        if not self._storm.expired():
            return Fault.STORM
        number = next(self._numbers)
        if number % self._storm_every == 0:
            self._storm = Deadline(self._storm_s)
            return Fault.STORM
        return next(self._kinds) if number % self._every == 0 else None

    def before(self, request: BaseHTTPRequestHandler) -> None:
        """Called before each request is carried, on a thread of its own: a test can hold it."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no news."""


class _Wire(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyStore

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # the library calls `do_GET` for a GET, and so on
            return self._carry
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _carry(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.before(self)
        fault = self.server.fault()
        not_done = fault in {Fault.LOST, Fault.REFUSED, Fault.STORM}
        answer = None if not_done else self._ask(body)
        status = "" if answer is None else answer[0]
        self.server.history.append(f"{self.command} {self.path} {status} {fault or ''}".strip())
        if fault in {Fault.LOST, Fault.DONE_AND_LOST}:
            self.close_connection = True
        elif fault is not None or answer is None:
            self._say(503, [], b"")
        else:
            self._say(*answer)

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the store's answer."""
        store = http.client.HTTPConnection(self.server.store, timeout=_TIMEOUT_S)
        try:
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    store.putheader(name, value)
            store.putheader("Content-Length", str(len(body)))
            store.endheaders(body)
            answer = store.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            store.close()

    def _say(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        size = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                size = value if self.command == "HEAD" else size
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
