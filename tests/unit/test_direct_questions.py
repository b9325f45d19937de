"""Questions on the asking thread, beside connections that fail in every way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors

from connectors.wire import direct_questions, partition_leaders
from connectors.wire.direct_connection import DirectConnection
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.partition_leaders import Leaders
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import AuthenticationError, BrokerUnavailableError, SparkOnceError

SOON_S = 10.0
NOT_LEADER, NONE = 6, 0


class Connection:
    """Answers with what it was asked, or fails."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.closed = False
        self.interrupted = threading.Event()
        self.waits: Callable[[], object] = lambda: None

    def send(self, requests: list[Any], until: float) -> list[Any]:
        return list(requests)

    def receive(self, sent: list[Any]) -> list[Any]:
        self.waits()
        if self.failure is not None:
            raise self.failure
        return [f"answer to {one}" for one in sent]

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.closed = True


class Wire:
    """Knows these brokers."""

    def __init__(self, **brokers: Connection | BaseException) -> None:
        self.brokers = {int(name.removeprefix("b")): one for name, one in brokers.items()}
        self.connected: list[int] = []

    def direct_connection(self, node: int, timeout_s: float) -> Connection:
        self.connected.append(node)
        found = self.brokers[node]
        if isinstance(found, BaseException):
            raise found
        return found

    def unavailable(self, cause: str) -> BrokerUnavailableError:
        return BrokerUnavailableError("No broker answered.", where="brokers", cause=cause)


def beside(step: Callable[..., Any], *args: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step, *args).result(SOON_S)


def asked(direct: DirectQuestions, *nodes: int) -> Any:
    return beside(direct.ask, {node: ["?"] for node in nodes}, Deadline(SOON_S))


ERRORS = (
    OSError("reset"),
    kafka_errors.KafkaConnectionError(),
    SparkOnceError("no token", where="here"),
    ValueError("a broken answer"),
    KeyError(3),
)


@pytest.mark.parametrize("failure", ERRORS, ids=lambda one: type(one).__name__)
def test_a_broker_that_fails_in_any_way_is_asked_the_other_way(failure: Exception):
    for wire in (Wire(b1=Connection(failure), b2=Connection()), Wire(b1=failure, b2=Connection())):
        direct = DirectQuestions(wire)
        assert asked(direct, 1, 2) == {2: ["answer to ?"]}
        assert asked(direct, 1, 2) == {2: ["answer to ?"]}
        assert wire.connected == [1, 2], "the first one is left alone"
        if isinstance(wire.brokers[1], Connection):
            assert wire.brokers[1].closed


@pytest.mark.parametrize(
    ("failure", "pause_s"),
    [
        (OSError("reset"), direct_questions._LEFT_ALONE_S),
        (kafka_errors.SaslAuthenticationFailedError(), direct_questions._REFUSED_S),
        (AuthenticationError("refused", where="here"), direct_questions._REFUSED_S),
    ],
)
def test_a_refused_login_is_not_repeated_soon(failure: Exception, pause_s: float):
    direct = DirectQuestions(Wire(b1=failure))
    began = direct_questions.time.monotonic()
    assert asked(direct, 1) == {}
    assert direct._left_alone[1] - began == pytest.approx(pause_s, abs=1.0)


def test_a_question_under_way_fails_when_the_connections_are_closed():
    connection = Connection(ConnectionError("closed"))
    direct = DirectQuestions(Wire(b1=connection, b2=Connection()))
    connection.waits = lambda: connection.interrupted.wait(SOON_S)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(direct.ask, {1: ["?"]}, Deadline(SOON_S))
        until(lambda: 1 in direct._connections, SOON_S)
        direct.close()
        with pytest.raises(BrokerUnavailableError, match="closed meanwhile"):
            asking.result(SOON_S)
    assert asked(direct, 2) == {2: ["answer to ?"]}, "later it connects again"


def test_while_one_thread_asks_another_one_asks_the_other_way():
    connection, goes_on = Connection(), threading.Event()
    direct = DirectQuestions(Wire(b1=connection))
    connection.waits = lambda: goes_on.wait(SOON_S)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(direct.ask, {1: ["?"]}, Deadline(SOON_S))
        until(direct._asking.locked, SOON_S)
        assert asked(direct, 1) == {}
        goes_on.set()
        assert asking.result(SOON_S) == {1: ["answer to ?"]}


def test_nothing_is_asked_behind_the_deadline():
    wire = Wire(b1=Connection())
    assert beside(DirectQuestions(wire).ask, {1: ["?"]}, Deadline(0.0)) == {}
    assert wire.connected == []


def test_a_step_that_cancels_the_next_due_one():
    connection = DirectConnection.__new__(DirectConnection)
    connection._timers, connection._numbers = {}, iter(range(9))
    done: list[str] = []
    later = connection.call_at(2.0, lambda: done.append("second"))
    connection.call_at(1.0, lambda: (done.append("first"), connection.cancel(later))[0])
    connection.call_at(1.5, lambda: done.append("between"))
    far = connection.call_later(1000.0, lambda: done.append("far"))
    connection._run_timers()
    assert done == ["first", "between"], "by their time"
    assert [*connection._timers] == [far]


def rows(**codes: int) -> SimpleNamespace:
    """The rows of an answer: error code by partition."""
    partitions = [
        SimpleNamespace(partition_index=int(name[1:]), error_code=code, active_producers=[])
        for name, code in codes.items()
    ]
    return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=partitions)])


def test_a_partition_without_both_answers_is_not_read():
    class Direct:
        def ask(self, questions: Any, deadline: Deadline) -> Any:
            offsets = rows(p0=NONE, p1=NOT_LEADER, p2=NONE)
            return {1: [offsets, rows(p0=NONE, p1=NONE, p3=NONE)]}

    names = [f"t-{number}" for number in range(4)]
    leaders = Leaders(dict.fromkeys(names, 1), set(names))
    unended, unread = partition_leaders.find_unended_directly(Direct(), Deadline(1.0), leaders)
    assert unended == []
    assert {name: str(answer) for name, answer in unread.items()}.keys() == {"t-1", "t-2", "t-3"}
    assert unread["t-2"] is None
    assert unread["t-3"] is None, "nobody has said that it leads there"


def test_readers_are_compared_with_an_end_that_was_asked_for_before():
    """Else a commit between the two answers looks held back; and what is written on, ahead."""

    class Direct:
        def ask(self, questions: Any, deadline: Deadline) -> Any:
            ((first, second),) = questions.values()
            assert (first.isolation_level, second.isolation_level) == (0, 1)
            ends = offsets(p0=(NONE, 9), p1=(NONE, 9), p2=(NOT_LEADER, -1), p3=(NONE, 9))
            return {1: [ends, offsets(p0=(NONE, 7), p1=(NONE, 12), p2=(NONE, 5))]}

    names = [f"t-{number}" for number in range(4)]
    leaders = Leaders(dict.fromkeys(names, 1), set(names))
    lags = partition_leaders.stable_lags_directly(Direct(), Deadline(1.0), leaders)
    assert lags == {"t-0": 2, "t-1": 0}, "a partition without both answers is missing"


def offsets(**answers: tuple[int, int]) -> SimpleNamespace:
    """The rows of an answer to ListOffsets: error code and offset by partition."""
    made = rows(**{name: code for name, (code, _) in answers.items()})
    for row in made.topics[0].partitions:
        row.offset = answers[f"p{row.partition_index}"][1]
    return made
