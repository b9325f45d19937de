"""Long transactions on slow brokers: librdkafka's own cluster, which answers late on demand."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from connectors.clients.client_settings import librdkafka_settings
from connectors.clients.transaction_timeout import (
    MOST_TIMEOUT_MS,
    check_request_timeout,
    request_timeout_ms,
)
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native.native_producer import NativeTransactionalProducer
from tests.mock_cluster import END_TXN, INIT_PRODUCER_ID, MockCluster
from transactions.clock import Deadline
from transactions.errors import ConfigurationError

MINUTES_15, HOUR = 900_000, 3_600_000
TIMEOUTS = (MINUTES_15, HOUR, MOST_TIMEOUT_MS)
#: librdkafka looks once a second for requests that took too long.
SLOW_MS = 1_500


def test_b4_a_slow_answer_breaks_no_producer_however_long_its_transactions_live():
    """Above 35 min 47 s every request of a second counted as timed out: no commit, no start."""
    kinds = (TransactionalProducer, NativeTransactionalProducer)
    tries = [(kind, timeout) for kind in kinds for timeout in TIMEOUTS]
    with MockCluster() as cluster, ThreadPoolExecutor(len(tries)) as threads:
        topic = cluster.topic("out")

        def commit(kind: type[TransactionalProducer], timeout_ms: int) -> TransactionalProducer:
            settings = {"bootstrap.servers": cluster.bootstrap}
            name = f"{kind.__name__}-{timeout_ms}"
            producer = kind(settings, name, timeout_ms=timeout_ms)
            producer.init(Deadline(20.0))
            producer.begin()
            producer.produce(pa.record_batch({"value": [b"v"]}), topic, Deadline(20.0))
            producer.flush(Deadline(20.0))
            producer.resync(Deadline(20.0))
            return producer

        for request in (INIT_PRODUCER_ID, END_TXN):
            cluster.slow(request, SLOW_MS, times=len(tries))
        for made in [threads.submit(commit, *one) for one in tries]:
            assert not made.result().spent


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What clients were made with."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(TransactionalProducer, "_make_client", lambda _, one: found.append(one))
    return found


@pytest.mark.parametrize("timeout_ms", [1_000, MINUTES_15, HOUR, MOST_TIMEOUT_MS])
def test_b4_silence_is_noticed_in_less_than_a_minute(given, timeout_ms):
    """Librdkafka's own choice would be the transaction's timeout: 15 minutes by default."""
    TransactionalProducer({}, "id", timeout_ms=timeout_ms)
    assert given[0]["socket.timeout.ms"] == min(45_000, timeout_ms)
    assert given[0]["transaction.timeout.ms"] == timeout_ms


def test_what_a_user_says_is_kept_or_refused(given):
    """Nothing that a sink takes is overridden in silence; a callback cannot be said in text."""
    TransactionalProducer({}, "id", timeout_ms=HOUR)
    TransactionalProducer(dict.fromkeys(given[0], "theirs"), "id", timeout_ms=HOUR)
    callbacks = {"stats_cb", "error_cb", "on_delivery", "logger"}
    overridden = {n for n, value in given[1].items() if "theirs" not in str(value)} - callbacks
    assert "transaction.timeout.ms" in overridden
    for name in overridden:
        refused = name not in {"message.timeout.ms", "transaction.timeout.ms"}
        with pytest.raises(ConfigurationError, match=re.escape(name)) if refused else nullcontext():
            sink = KafkaSink(bootstrap_servers="b:1", topic="t", kafka={name: "660000"})
            assert name not in librdkafka_settings(sink.settings), "named in the log, or taken over"


def test_b4_the_users_own_time_is_kept(given):
    TransactionalProducer({"socket.timeout.ms": "20000"}, "id", timeout_ms=HOUR)
    assert given[0]["socket.timeout.ms"] == "20000"


@pytest.mark.parametrize("name", ["request.timeout.ms", "socket.timeout.ms"])
@pytest.mark.parametrize(
    ("value", "timeout_ms"),
    [("999", HOUR), ("300001", HOUR), ("10001", 10_000), ("soon", HOUR), ("-1", HOUR)],
)
def test_b4_a_time_for_requests_that_cannot_work_is_refused(name, value, timeout_ms):
    with pytest.raises(ConfigurationError) as caught:
        check_request_timeout({name: value}, timeout_ms, where="sink 'out'")
    assert caught.value.option.startswith(f"kafka.{name}={value}")
    assert (caught.value.where, bool(caught.value.cause)) == ("sink 'out'", True)


@pytest.mark.parametrize("timeout_ms", TIMEOUTS)
@pytest.mark.parametrize(
    "kafka", [{}, {"socket.timeout.ms": "1000"}, {"request.timeout.ms": "300000"}]
)
def test_b4_a_time_for_requests_that_works_is_not(kafka, timeout_ms):
    check_request_timeout(kafka, timeout_ms, where="")


def test_a_default_fits_into_the_shortest_transaction():
    check_request_timeout({}, 1_000, where="")
    assert request_timeout_ms(1_000) == 1_000
