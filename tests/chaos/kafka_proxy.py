"""A TCP proxy between Kafka clients and brokers that loses, delays or repeats single requests.

It reads no more than the header of a request (length, API key, version, correlation id, client
id), which is the same in every version, and matches answers by their correlation id. A *rule*
says what happens to the next requests of one API key:

    proxy.add(Rule(END_TXN, Action.DROP_RESPONSE))             the broker did it, nobody hears
    held = proxy.add(Rule(END_TXN, Action.DELAY_REQUEST))      until held.release()
    proxy.add(Rule(None, Action.CLOSE_BEFORE, times=None))     every request, until removed

A delayed request holds back what its client sends behind it on the same connection, as the
network would; it is sent on even when its client has given up and closed: that is how a late
request overtakes nothing but time. Requests on other connections pass it by. Of one that is held
back the client hears at once that its connection is gone: it connects again and repeats what it
sent, and the first copy comes behind that.

Plaintext only. Standard library only; one thread with an event loop, any number of connections.
Clients come back through it when the broker advertises its address: see `proxied_cluster`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import enum
import random
import struct
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66

NAMES: Final[Mapping[int, str]] = {
    PRODUCE: "Produce",
    FETCH: "Fetch",
    METADATA: "Metadata",
    FIND_COORDINATOR: "FindCoordinator",
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    END_TXN: "EndTxn",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit",
    DESCRIBE_TRANSACTIONS: "DescribeTransactions",
    LIST_TRANSACTIONS: "ListTransactions",
}

#: What tears a transaction when it comes late.
TRANSACTION_REQUESTS: Final = (
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    TXN_OFFSET_COMMIT,
    END_TXN,
)

_POLL_S = 0.005
_ANSWERS_S = 5.0  # how long answers are waited for after their client has closed
_CONNECT_S = 5.0


class Action(enum.Enum):
    """What happens to a request that a rule matches."""

    DROP_REQUEST = "the broker never gets it; the connection stays open"
    DROP_RESPONSE = "the broker does it; its answer is swallowed, the connection stays open"
    DELAY_REQUEST = "held back, and everything behind it on its connection"
    DELAY_RESPONSE = "the broker does it; its answer is held back"
    CLOSE_BEFORE = "the connection is closed instead of sending it on"
    CLOSE_AFTER = "the broker does it; the connection is closed instead of answering"
    HOLD_BACK = "the client's connection is closed at once; the broker gets it later"
    REPEAT_REQUEST = "sent twice; the second answer is swallowed"


_HELD = {Action.DELAY_REQUEST, Action.HOLD_BACK}


@dataclass(frozen=True, slots=True)
class Request:
    """The header of a request, and its bytes."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    frame: bytes

    @classmethod
    def parse(cls, frame: bytes) -> Request:
        """Read a frame without its length."""
        key, version, correlation, length = struct.unpack_from(">hhih", frame)
        client = frame[10 : 10 + length].decode("utf-8", "replace") if length > 0 else ""
        return cls(key, version, correlation, client, frame)


@dataclass(eq=False)
class Rule:
    """What happens to which requests, and how often it has happened.

    Attributes:
        api_key: the kind of request, or several of them; None is every kind.
        action: what happens.
        times: to the first so many; None is all.
        seconds: how long a delay lasts; None is until `release`.
        spread: up to so many seconds longer, each delay by itself.
        share: of the requests that it could match, drawn by `chance`.
        client: only requests whose client id starts so.
        contains: only requests with these bytes in them (a transactional id, a topic).
        until: monotonic time after which the rule matches no more; None is never.
    """

    api_key: int | Collection[int] | None
    action: Action
    times: int | None = 1
    seconds: float | None = None
    spread: float = 0.0
    share: float = 1.0
    chance: random.Random = field(default_factory=random.Random)
    client: str = ""
    contains: bytes = b""
    until: float | None = None
    hits: int = 0
    answers: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let everything that it holds go, now and later."""
        self._released.set()

    def wait_for_hits(self, hits: int = 1, timeout: float = 30.0) -> None:
        """Wait until it has met so many requests."""
        with self._news:
            assert self._news.wait_for(lambda: self.hits >= hits, timeout), f"{self} never met one"

    def wait_for_answers(self, answers: int = 1, timeout: float = 30.0) -> None:
        """Wait until the broker has answered so many of the requests that it met."""
        with self._news:
            held = self._news.wait_for(lambda: self.answers >= answers, timeout)
            assert held, f"{self}: the broker answered {self.answers}"

    def matches(self, request: Request) -> bool:
        """Tell whether it applies; called on the proxy's thread."""
        wanted = (self.api_key,) if isinstance(self.api_key, int) else self.api_key
        return (
            (wanted is None or request.api_key in wanted)
            and (self.times is None or self.hits < self.times)
            and (self.until is None or time.monotonic() < self.until)
            and request.client_id.startswith(self.client)
            and self.contains in request.frame
            and (self.share >= 1.0 or self.chance.random() < self.share)
        )

    def note(self, *, hit: bool = False, answer: bool = False) -> None:
        """Count; called on the proxy's thread."""
        with self._news:
            self.hits += hit
            self.answers += answer
            self._news.notify_all()

    async def gate(self) -> None:
        """Wait as long as the delay lasts; called on the proxy's thread."""
        # Polled: an event that a thread sets and a loop waits for would need the loop's address.
        end = None
        if self.seconds is not None:
            end = time.monotonic() + self.seconds + self.chance.uniform(0.0, self.spread)
        while not self._released.is_set() and (end is None or time.monotonic() < end):
            await asyncio.sleep(_POLL_S)


class KafkaProxy:
    """Listens on one port of 127.0.0.1 per broker and hands everything on, by the rules.

    Args:
        routes: listening port -> port of the broker, both on 127.0.0.1.
    """

    def __init__(self, routes: Mapping[int, int]) -> None:
        self._routes = dict(routes)
        self._rules: tuple[Rule, ...] = ()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._links: set[_Link] = set()
        self._refusing = False
        self._thread = threading.Thread(target=self._run, name="kafka-proxy", daemon=True)
        #: Requests that came in, by API key.
        self.seen: collections.Counter[int] = collections.Counter()
        #: Bytes of answers, by the listening port behind which the broker is.
        self.answered: collections.Counter[int] = collections.Counter()
        #: What became of those that a rule met.
        self.met: collections.Counter[Action] = collections.Counter()

    def start(self) -> Self:
        """Listen; returns when every port is open."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Close every connection; safe to call twice."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- what tests say -----------------------------------------------------------------------

    def add(self, rule: Rule) -> Rule:
        """Put a rule behind the others: the first that matches a request is taken."""
        with self._lock:
            self._rules = (*self._rules, rule)
        return rule

    def remove(self, rule: Rule, *, let_go: bool = True) -> None:
        """Take a rule away and let go what it holds, or leave that to its time."""
        with self._lock:
            self._rules = tuple(one for one in self._rules if one is not rule)
        if let_go:
            rule.release()

    def clear(self) -> None:
        """Take all rules away."""
        for rule in self._rules:
            self.remove(rule)

    def refuse(self, refusing: bool) -> None:
        """Close every connection and each new one at once (True), or serve again (False)."""
        self._refusing = refusing
        if refusing and self._loop is not None:
            self._loop.call_soon_threadsafe(self._close_links)

    # -- its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        servers = []
        try:
            for port in self._routes:

                async def serve(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    port: int = port,
                ) -> None:
                    await self._connection(reader, writer, port)

                servers.append(await asyncio.start_server(serve, "127.0.0.1", port))
            self._ready.set()
            await self._stop.wait()
        finally:
            for server in servers:
                server.close()
            self._close_links()

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        try:
            if self._refusing:
                return
            upstream = await asyncio.wait_for(
                asyncio.open_connection("127.0.0.1", self._routes[port]), _CONNECT_S
            )
        except (OSError, TimeoutError):
            return  # the broker is down: so is the way to it
        else:
            link = _Link(self, port, reader, writer, *upstream)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)
        finally:
            writer.close()

    def _close_links(self) -> None:
        for link in self._links:
            link.close()

    def rule_for(self, request: Request) -> Rule | None:
        """Return the first rule for a request and count it; called on the proxy's thread."""
        self.seen[request.api_key] += 1
        for rule in self._rules:
            if rule.matches(request):
                rule.note(hit=True)
                self.met[rule.action] += 1
                return rule
        return None


class _Link:
    """One client connection and its twin to the broker."""

    def __init__(
        self,
        proxy: KafkaProxy,
        port: int,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        broker_reader: asyncio.StreamReader,
        broker_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._port = port
        self._client_reader = client_reader
        self._client_writer = client_writer
        self._broker_reader = broker_reader
        self._broker_writer = broker_writer
        #: What the broker owes us: per correlation id the rules of the requests, in order.
        self._owed: dict[int, collections.deque[Rule | None]] = {}

    async def run(self) -> None:
        """Hand requests and answers on until one side is gone and nothing is owed."""
        answers = asyncio.create_task(self._hand_answers_on())
        requests = asyncio.create_task(self._hand_requests_on())
        try:
            done, _ = await asyncio.wait({answers, requests}, return_when=asyncio.FIRST_COMPLETED)
            if answers not in done:
                # The client has gone; what it sent is on its way, as it would be on a network.
                end = time.monotonic() + _ANSWERS_S
                while self._owed and time.monotonic() < end and not answers.done():
                    await asyncio.sleep(_POLL_S)
        finally:
            self.close()
            for task in (answers, requests):
                task.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)

    def close(self) -> None:
        """Close both connections."""
        self._client_writer.close()
        self._broker_writer.close()

    async def _hand_requests_on(self) -> None:
        while (frame := await _read(self._client_reader)) is not None:
            request = Request.parse(frame)
            rule = self._proxy.rule_for(request)
            action = None if rule is None else rule.action
            if action is Action.DROP_REQUEST:
                continue
            if action is Action.CLOSE_BEFORE:
                self.close()
                return
            if action is Action.HOLD_BACK:
                self._client_writer.close()  # what it has sent behind this one is lost
            if rule is not None and action in _HELD:
                await rule.gate()
            for _ in range(2 if action is Action.REPEAT_REQUEST else 1):
                owed = self._owed.setdefault(request.correlation_id, collections.deque())
                owed.append(rule)
                if not await _write(self._broker_writer, frame):
                    return
            if action is Action.HOLD_BACK:
                return

    async def _hand_answers_on(self) -> None:
        while (frame := await _read(self._broker_reader)) is not None:
            (correlation,) = struct.unpack_from(">i", frame)
            self._proxy.answered[self._port] += len(frame)
            owed = self._owed.get(correlation, collections.deque([None]))
            rule = owed.popleft()
            if not owed:
                self._owed.pop(correlation, None)
            if rule is not None:
                rule.note(answer=True)
                if rule.action is Action.DROP_RESPONSE:
                    continue
                if rule.action is Action.REPEAT_REQUEST and owed:
                    await _write(self._client_writer, frame)
                    continue
                if rule.action is Action.REPEAT_REQUEST:
                    continue  # the answer to the repetition
                if rule.action is Action.CLOSE_AFTER:
                    return
                if rule.action is Action.DELAY_RESPONSE:
                    await rule.gate()
            # A client that has gone loses its answers, not those that the rules wait for.
            await _write(self._client_writer, frame)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """Return one frame without its length, None at the end of the stream."""
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> bool:
    """Write one frame; False when the other side is gone."""
    try:
        writer.write(struct.pack(">i", len(frame)) + frame)
        await writer.drain()
    except (OSError, RuntimeError):
        return False
    return True
