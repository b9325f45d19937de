"""The producer's own waits, on a client that does as it is told: flush, and offsets beside it."""

import gc
import threading
import weakref
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from connectors.kafka.sink import transactional_producer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native.client_handle import RefusedRecord
from transactions.clock import Deadline
from transactions.errors import DeliveryError, PhaseOneError

OFFSETS = {"in-0": 7}


class Client:
    """librdkafka's verbs; a flush is done after `looks` of them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.on_delivery = settings["on_delivery"]
        self.error_cb = settings["error_cb"]
        self.error: KafkaError | None = None
        self.fatal = False
        self.log = settings["logger"]
        self.line = (10, "%s [%s] %s", "WAKEUP", "rdkafka#producer-1", "Wake-up")
        self.debug = settings["debug"]
        self.looks = 1
        self.served = 0
        self.waits: list[float] = []
        self.calls: list[str] = []
        self.offsets_may_end = threading.Event()
        self.offsets_may_end.set()
        self.refuse_while_sending = False

    def flush(self, timeout: float) -> int:
        self.waits.append(timeout)
        self.looks -= 1
        return max(0, self.looks)

    def produce(self, *_arguments: Any, **_options: Any) -> None:
        self.calls.append("produce")

    def poll(self, _timeout: float) -> int:
        self.served += 1
        if self.fatal:
            raise SystemError("an exception is set")
        return 0

    def send_offsets_to_transaction(self, *_arguments: Any) -> None:
        assert self.offsets_may_end.wait(10.0)
        if self.refuse_while_sending:
            self.on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), RefusedRecord("out", 0))
        self.calls.append("offsets")

    def commit_transaction(self, _timeout: float) -> None:
        self.log.log(*self.line)
        if self.error is not None:
            self.error_cb(self.error)

    def init_transactions(self, _timeout: float) -> None:
        self.log.log(*self.line)

    def purge(self, **_options: bool) -> None:
        self.calls.append("purge")

    def abort_transaction(self, _timeout: float) -> None:
        self.calls.append("abort")


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    monkeypatch.setattr(TransactionalProducer, "_make_client", lambda _, given: Client(given))
    monkeypatch.setattr(transactional_producer, "_group_metadata", str.encode)
    return TransactionalProducer({}, "id", timeout_ms=60_000)


def client_of(producer: TransactionalProducer) -> Client:
    client = producer._producer
    assert isinstance(client, Client)
    return client


def test_callbacks_are_served_while_a_task_produces(producer):
    """Else statistics fill the memory, 170 KB a second, and a refused record is known at last."""
    producer.produce(pa.record_batch([pa.array([b"1", b"2"])], names=["value"]), "out", Deadline(1))
    assert client_of(producer).calls == ["produce", "produce"]
    assert client_of(producer).served == 1


def test_a_flush_looks_soon_then_less_often(producer):
    """rd_kafka_flush itself would look every 10 ms: most of a small transaction's time."""
    client = client_of(producer)
    client.looks = 30
    producer.flush(Deadline(60.0))
    assert len(client.waits) == 30
    assert client.waits[0] <= 0.001
    assert client.waits == sorted(client.waits)
    assert client.waits[-1] == 0.01


def test_a_line_of_the_log_is_a_doubt_about_the_call_that_is_under_way(producer):
    """The error callback is not told of a connection that the other end has closed."""
    client = client_of(producer)
    producer.resync(Deadline(1.0))
    client.line = (20, "%s [%s] %s", "FAIL", "rdkafka#producer-1", "Disconnected: closed")
    client.log.log(*client.line)  # before the call: what it has sent is not meant
    for _ in range(3):
        with pytest.raises(PhaseOneError, match="A connection broke"):
            producer.resync(Deadline(1.0))
    assert producer.spent


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_an_attempt_to_connect_that_was_refused_is_no_doubt(producer, code):
    """The error callback is told of it, while the call gets its only answer from another broker."""
    client_of(producer).error = KafkaError(code, "Connect to ipv4#127.0.0.1:9 failed: refused")
    producer.resync(Deadline(1.0))
    assert not producer.spent


def test_a_fatal_error_while_callbacks_are_served_is_a_doubt(producer):
    client_of(producer).fatal = True
    assert producer._connections_broke()


AFTER = "(after 9ms in state {})"


@pytest.mark.parametrize(
    ("level", "line", "doubt"),
    [
        # as 2.16 writes them: at the debug level always, above it unless it was idle or said before
        (10, f"[thrd:b:1/1]: b:1/1: Disconnected: closed {AFTER.format('UP')} (_TRANSPORT)", False),
        (20, f"[thrd:b:1/1]: b:1/1: Disconnected: closed {AFTER.format('UP')}", True),
        (
            10,
            f"[thrd:b:1/1]: b:1/1: Disconnected: closed {AFTER.format('UP')} (_TRANSPORT): "
            "identical to last error: error log suppressed",
            True,
        ),
        (
            10,
            "[thrd:TxnCoordinator]: TxnCoordinator/1: b:1: Closing connection due to nodename "
            f"change {AFTER.format('UP')} (_TRANSPORT)",
            True,
        ),
        (40, f"[thrd:b:1/1]: b:1/1: Connect failed: refused {AFTER.format('CONNECT')}", False),
        (40, "[thrd:b:1/1]: b:1/1: Receive failed: reset", True),
    ],
)
def test_only_a_connection_that_may_have_carried_a_request_is_a_doubt(producer, level, line, doubt):
    client_of(producer).log.log(level, "%s [%s] %s", "FAIL", "rdkafka#producer-1", line)
    assert producer._connections_broke() == doubt


@pytest.mark.parametrize(("where", "doubt"), [("TxnCoordinator", True), ("b:1/bootstrap", False)])
def test_a_first_request_that_was_repeated_is_a_doubt_too(producer, where, doubt):
    """The late copy would fence the producer: any time, also after its decision."""
    client = client_of(producer)
    line = f"[thrd:{where}]: {where}: Decommissioning {AFTER.format('UP')} (_DESTROY_BROKER)"
    producer.producer_id = 7
    client.line = (10, "%s [%s] %s", "FAIL", "rdkafka#producer-1", line)
    if doubt:
        with pytest.raises(PhaseOneError, match="during init_transactions"):
            producer.init(Deadline(1.0))
    else:
        producer.init(Deadline(1.0))


@pytest.mark.parametrize(("given", "shown"), [({}, 0), ({"debug": "msg"}, 1)])
def test_a_debug_context_of_the_users_own_is_shown(monkeypatch, caplog, given, shown):
    monkeypatch.setattr(TransactionalProducer, "_make_client", lambda _, given: Client(given))
    client = client_of(TransactionalProducer(given, "id", timeout_ms=60_000))
    assert client.debug == ("broker,msg" if given else "broker")
    with caplog.at_level("DEBUG"):
        client.log.log(10, "%s [%s] %s", "TOPPAR", "rdkafka#producer-1", "1 message")
    assert caplog.messages == ["TOPPAR [rdkafka#producer-1] 1 message"] * shown


def test_a_flush_that_is_not_done_in_time_is_told(producer):
    client_of(producer).looks = 10**9
    with pytest.raises(DeliveryError, match="not acknowledged in time"):
        producer.flush(Deadline(0.0))


def test_offsets_are_sent_beside_the_flush_and_waited_for(producer):
    client = client_of(producer)
    client.offsets_may_end.clear()
    producer.send_offsets("app", OFFSETS, "token", Deadline(60.0))
    producer.flush(Deadline(60.0))
    assert client.calls == []
    threading.Timer(0.05, client.offsets_may_end.set).start()
    producer.await_offsets()
    assert client.calls == ["offsets"]


def test_a_refusal_that_is_told_to_the_offsets_thread_is_not_missed(producer):
    """Its thread serves callbacks: after the flush has looked, the transaction must fail still."""
    client = client_of(producer)
    client.refuse_while_sending = True
    client.offsets_may_end.clear()
    producer.send_offsets("app", OFFSETS, "token", Deadline(60.0))
    producer.flush(Deadline(60.0))
    client.offsets_may_end.set()
    with pytest.raises(DeliveryError):
        producer.await_offsets()


def test_offsets_that_never_return_fail_the_attempt(producer, monkeypatch):
    """The issue 5456 of librdkafka: the thread is left behind, the task is not."""
    monkeypatch.setattr(transactional_producer, "_GRACE_S", 0.01)
    client = client_of(producer)
    client.offsets_may_end.clear()
    producer.send_offsets("app", OFFSETS, "token", Deadline(0.05))
    with pytest.raises(PhaseOneError, match="did not return within"):
        producer.await_offsets()
    client.offsets_may_end.set()


def test_an_abort_waits_for_offsets_under_way(producer):
    """A client refuses a second call of a transaction beside the first."""
    client = client_of(producer)
    client.offsets_may_end.clear()
    producer.send_offsets("app", OFFSETS, "token", Deadline(60.0))
    threading.Timer(0.05, client.offsets_may_end.set).start()
    producer.abort(Deadline(60.0))
    assert client.calls == ["offsets", "purge", "abort"]


def test_a_producer_that_is_dropped_after_a_failed_flush_goes_at_once(monkeypatch):
    """Nobody waits for its offsets then; it must not need a garbage collection to go."""
    monkeypatch.setattr(TransactionalProducer, "_make_client", lambda _, given: Client(given))
    monkeypatch.setattr(transactional_producer, "_group_metadata", str.encode)
    producer = TransactionalProducer({}, "id", timeout_ms=60_000)
    producer.send_offsets("app", OFFSETS, "token", Deadline(60.0))
    call = producer._offsets_call
    assert call is not None
    assert call.ended()
    del call
    gone = weakref.ref(producer)
    gc.disable()
    try:
        del producer
        assert gone() is None
    finally:
        gc.enable()
