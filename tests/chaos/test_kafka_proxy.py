"""The proxy itself, between a plain socket and a broker that only counts and echoes."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from connectors.cluster.broker_settings import choose_addresses
from tests.chaos.kafka_proxy import (
    END_TXN,
    INIT_PRODUCER_ID,
    METADATA,
    Action,
    KafkaProxy,
    Rule,
)


class Echo:
    """Answers every request with its correlation id and a running number."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while (frame := read(connection)) is not None:
                (correlation,) = struct.unpack_from(">i", frame, 4)
                self.got.append(correlation)
                connection.sendall(struct.pack(">iii", 8, correlation, len(self.got)))


def read(connection: socket.socket) -> bytes | None:
    def exactly(count: int) -> bytes:
        found = b""
        while len(found) < count:
            chunk = connection.recv(count - len(found))
            if not chunk:
                raise EOFError
            found += chunk
        return found

    try:
        (length,) = struct.unpack(">i", exactly(4))
        return exactly(length)
    except (EOFError, OSError):
        return None


class Client:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10.0)

    def send(self, api_key: int, correlation: int, client: str = "driver-1") -> None:
        frame = struct.pack(">hhih", api_key, 4, correlation, len(client)) + client.encode()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def answer(self) -> int | None:
        """Return the correlation id of the next answer, None when the connection was closed."""
        frame = read(self._socket)
        return None if frame is None else int(struct.unpack_from(">i", frame)[0])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def broker() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def port() -> int:
    (address,) = choose_addresses(1, None)
    return address.port


@pytest.fixture
def proxy(broker: Echo, port: int) -> Iterator[KafkaProxy]:
    with KafkaProxy({port: broker.port}) as one:
        yield one


@pytest.fixture
def client(proxy: KafkaProxy, port: int) -> Iterator[Client]:
    one = Client(port)
    yield one
    one.close()


def test_without_rules_everything_goes_through(client: Client, proxy: KafkaProxy):
    for correlation in range(20):
        client.send(METADATA, correlation)
    assert [client.answer() for _ in range(20)] == list(range(20))
    assert proxy.seen[METADATA] == 20


def test_a_dropped_request_never_arrives(client: Client, proxy: KafkaProxy, broker: Echo):
    proxy.add(Rule(END_TXN, Action.DROP_REQUEST))
    client.send(END_TXN, 1)
    client.send(END_TXN, 2)  # `times` is 1
    assert client.answer() == 2
    assert broker.got == [2]


def test_a_dropped_answer_belongs_to_a_request_that_was_done(client, proxy, broker):
    rule = proxy.add(Rule(END_TXN, Action.DROP_RESPONSE))
    client.send(END_TXN, 1)
    client.send(METADATA, 2)
    assert client.answer() == 2
    assert broker.got == [1, 2]
    assert (rule.hits, rule.answers) == (1, 1)


def test_a_delayed_request_arrives_although_its_client_has_gone(client, proxy, broker, port):
    late = proxy.add(Rule(END_TXN, Action.DELAY_REQUEST))
    client.send(END_TXN, 1)
    late.wait_for_hits()
    client.close()
    other = Client(port)
    other.send(END_TXN, 2)
    assert other.answer() == 2
    assert broker.got == [2]
    late.release()
    late.wait_for_answers()
    assert broker.got == [2, 1]
    other.close()


def test_a_delay_holds_back_what_comes_behind_it_and_ends_by_itself(client, proxy, broker):
    proxy.add(Rule(END_TXN, Action.DELAY_REQUEST, seconds=0.1))
    client.send(END_TXN, 1)
    client.send(METADATA, 2)
    assert [client.answer(), client.answer()] == [1, 2]
    assert broker.got == [1, 2]


def test_a_delayed_answer_comes_after_the_release(client, proxy, broker):
    late = proxy.add(Rule(END_TXN, Action.DELAY_RESPONSE))
    client.send(END_TXN, 1)
    late.wait_for_answers()
    assert broker.got == [1]
    late.release()
    assert client.answer() == 1


def test_a_connection_is_closed_before_or_after_the_broker_has_done_it(client, proxy, broker, port):
    proxy.add(Rule(END_TXN, Action.CLOSE_AFTER))
    client.send(END_TXN, 1)
    assert client.answer() is None
    assert broker.got == [1]
    proxy.add(Rule(END_TXN, Action.CLOSE_BEFORE))
    other = Client(port)
    other.send(END_TXN, 2)
    assert other.answer() is None
    assert broker.got == [1]
    other.close()


def test_a_request_that_is_held_back_comes_behind_its_repetition(client, proxy, broker, port):
    """The client finds its connection closed, and makes another one; the first copy is late."""
    client.send(METADATA, 1)
    assert client.answer() == 1
    held = proxy.add(Rule((INIT_PRODUCER_ID, END_TXN), Action.HOLD_BACK))
    client.send(END_TXN, 2)
    assert client.answer() is None
    other = Client(port)
    other.send(END_TXN, 3)
    assert other.answer() == 3
    assert broker.got == [1, 3]
    held.release()
    held.wait_for_answers()
    assert broker.got == [1, 3, 2]
    other.close()


def test_a_share_of_the_requests_is_held_back_each_for_a_time_of_its_own(proxy, broker, port):
    chance = random.Random(3)
    half = Rule(END_TXN, Action.HOLD_BACK, None, 0.02, spread=0.2, share=0.5, chance=chance)
    proxy.add(half)
    for number in range(20):
        one = Client(port)
        one.send(END_TXN, number)
        assert one.answer() in (number, None)
        one.close()
    half.wait_for_answers(half.hits)
    assert 0 < half.hits < 20
    assert sorted(broker.got) == list(range(20))
    assert broker.got != list(range(20))


def test_a_repeated_request_is_answered_once(client, proxy, broker):
    proxy.add(Rule(END_TXN, Action.REPEAT_REQUEST))
    client.send(END_TXN, 1)
    client.send(METADATA, 2)
    assert [client.answer(), client.answer()] == [1, 2]
    assert broker.got == [1, 1, 2]


def test_a_rule_can_name_a_client_and_bytes(client, proxy, broker):
    proxy.add(Rule(END_TXN, Action.DROP_REQUEST, client="worker"))
    proxy.add(Rule(END_TXN, Action.DROP_REQUEST, contains=b"other"))
    client.send(END_TXN, 1)
    client.send(END_TXN, 2, client="worker-7")
    client.send(END_TXN, 3, client="another")
    client.send(END_TXN, 4)
    assert [client.answer(), client.answer()] == [1, 4]


def test_refusing_closes_what_is_open_and_what_comes(client, proxy, port):
    client.send(METADATA, 1)
    assert client.answer() == 1
    proxy.refuse(True)
    assert client.answer() is None
    other = Client(port)
    assert other.answer() is None
    proxy.refuse(False)
    last = Client(port)
    last.send(METADATA, 2)
    assert last.answer() == 2
