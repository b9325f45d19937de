"""librdkafka with tokens: both kinds of client take them without a poll, and say why none came."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from connectors import KafkaSink, KafkaSource
from connectors.bench.bench_topics import BenchTopics
from connectors.bench.end_watcher import EndWatcher
from connectors.clients import client_settings, token_source
from connectors.clients.client_errors import ErrorWatch
from connectors.clients.client_settings import (
    admin_client,
    check_login,
    kafka_python_settings,
    librdkafka_settings,
    settings_checked,
)
from connectors.doctor.facts import Wanted
from connectors.doctor.preflight import check_clusters
from connectors.doctor.probe import gather
from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source import source_questions
from connectors.kafka.source.group_offsets import GroupOffsets
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.native.producer_client import ProducerClient
from connectors.operations.bounded_scan import TopicEnds
from connectors.wal.kafka_group_committer import KafkaGroupCheckpointCommitter
from tests.simulation.virtual_clock import VirtualClock
from tests.token_endpoint import TokenEndpoint, unsigned
from tests.waiting import until
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    ConfigurationError,
    DeliveryError,
    SparkOnceError,
    TokenUnavailableError,
)
from transactions.restart_strategy import is_retried

NOWHERE = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
}
QUIET = {"log_level": 0}


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as made:
        yield made


def provider(endpoint: TokenEndpoint) -> dict[str, str]:
    return NOWHERE | {
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "sasl.oauthbearer.client.credentials.client.id": "flights",
        "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
        "sasl.oauthbearer.scope": "kafka read&write",
    }


# -- an identity provider --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Producer, ProducerClient])
def test_librdkafka_asks_and_renews_while_nobody_polls(kind: Any, endpoint: TokenEndpoint):
    endpoint.lifetime_s = 3.0
    began = time.monotonic()
    client = kind(librdkafka_settings(provider(endpoint)) | QUIET)
    assert time.monotonic() - began < 0.9  # confluent-kafka waits for a callback's token only
    until(lambda: len(endpoint.requests) == 2)
    assert time.monotonic() - began > 2.0
    _, headers, parameters = endpoint.requests[0]
    assert parameters == {"grant_type": ["client_credentials"], "scope": ["kafka read&write"]}
    assert headers["Authorization"].startswith("Basic ")
    del client


def test_without_http_in_librdkafka_a_token_source_asks(endpoint: TokenEndpoint, monkeypatch):
    monkeypatch.setattr("connectors.clients.login_oauth.library_lacks", lambda feature: feature)
    settings = librdkafka_settings(provider(endpoint))
    assert not any(name.startswith("sasl.oauthbearer") for name in settings)
    client = ProducerClient(settings | QUIET)
    until(lambda: len(endpoint.given) == 1)
    assert settings["oauth_cb"]("")[0] == endpoint.given[0]
    del client


def source_of(kafka: dict[str, str], patience_ms: int = 1000) -> KafkaSource:
    rest = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
    address = kafka["bootstrap.servers"]
    return KafkaSource(
        bootstrap_servers=address, subscribe="in", kafka=rest, poll_timeout_ms=patience_ms
    )


def ask_source(kafka: dict[str, str]) -> None:
    SourcePlanner(source_of(kafka)).latest_offsets()


def ask_sink(kafka: dict[str, str]) -> None:
    rest = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
    sink = KafkaSink(bootstrap_servers=kafka["bootstrap.servers"], topic="out", kafka=rest)
    check_clusters([sink], Wanted(application_id="app"), Deadline(1))


def ask_ends(kafka: dict[str, str]) -> None:
    TopicEnds(kafka).committed(["in"], Deadline(1))


def ask_doctor(kafka: dict[str, str]) -> None:
    gather(kafka, Wanted(application_id="app", inputs=("in",), outputs=("out",)), Deadline(1))


def ask_groups(kafka: dict[str, str]) -> None:
    GroupOffsets(source_of(kafka), "app")


def ask_marks(kafka: dict[str, str]) -> None:
    rest = {name: value for name, value in kafka.items() if name != "bootstrap.servers"}
    servers = kafka["bootstrap.servers"]
    marks = KafkaGroupCheckpointCommitter(servers, "marks", kafka=rest, timeout_s=1)
    marks.set_job_id("app")
    marks.is_checkpoint_committed(0, 1)


def ask_bench(kafka: dict[str, str]) -> None:
    BenchTopics(kafka)


def ask_end(kafka: dict[str, str]) -> None:
    EndWatcher(kafka, "out", 1)


STARTS = [ask_source, ask_sink, ask_ends, ask_doctor, ask_groups, ask_marks, ask_bench, ask_end]


@pytest.mark.parametrize("start", STARTS)
def test_a_refused_client_is_told_at_once_after_one_request(start, endpoint: TokenEndpoint):
    """Else librdkafka would ask every ten seconds, and say nothing but that no broker answers."""
    endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
    for _ in range(2):
        with pytest.raises(SparkOnceError) as caught:
            start(provider(endpoint))
        assert type(caught.value) is AuthenticationError
        assert caught.value.where == endpoint.url
        assert "invalid_client" in caught.value.cause
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("start", STARTS)
def test_an_endpoint_that_is_away_is_named(start, endpoint: TokenEndpoint, monkeypatch):
    monkeypatch.setattr(client_settings, "PATIENCE_S", 0.0)
    endpoint.status = 503
    with pytest.raises(SparkOnceError) as caught:
        start(provider(endpoint))
    assert type(caught.value) is TokenUnavailableError
    assert caught.value.where == endpoint.url


def test_a_restart_asks_again_also_if_the_last_token_is_good(endpoint: TokenEndpoint, monkeypatch):
    """The tokens of librdkafka's clients end at other times, and a secret can be over meanwhile."""
    endpoint.lifetime_s = 3600.0
    kafka = provider(endpoint)
    check_login(kafka)
    check_login(kafka)
    assert len(endpoint.requests) == 1
    source, clock = kafka_python_settings(kafka)["sasl_oauth_token_provider"], Clock()
    monkeypatch.setattr(source, "_clock", clock)
    endpoint.status = 401
    clock.sleep(61)
    with pytest.raises(AuthenticationError):
        check_login(kafka)
    assert len(endpoint.requests) == 2


def test_a_question_that_misses_a_token_asks_whether_it_is_refused(
    endpoint: TokenEndpoint, monkeypatch
):
    """Also if librdkafka has said so before the question is sent: it says each reason once."""

    def late(*arguments: Any, **named: Any) -> AdminClient:
        client = admin_client(*arguments, **named)
        until(lambda: len(client) > 0)
        return client

    monkeypatch.setattr(source_questions, "admin_client", late)
    check_login(provider(endpoint))
    endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
    with pytest.raises(AuthenticationError, match="invalid_client"):
        SourcePlanner(source_of(provider(endpoint), 20_000)).latest_offsets()
    assert len(endpoint.requests) == 3  # the check, librdkafka, and the check again


def test_a_sink_says_that_its_login_has_no_token(endpoint: TokenEndpoint):
    endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
    settings = librdkafka_settings(provider(endpoint)) | QUIET
    producer = TransactionalProducer(settings, "one", timeout_ms=60_000)
    with pytest.raises(SparkOnceError, match="invalid_client") as caught:
        producer.init(Deadline(2))
    assert type(caught.value) is TokenUnavailableError
    assert "token.endpoint.url" in caught.value.option
    plain = PlainProducer(settings, "two", strict=True)
    plain.produce(pa.RecordBatch.from_pydict({"value": [b"a"]}), "out", Deadline(1))
    with pytest.raises(DeliveryError, match="invalid_client"):
        plain.flush(Deadline(2))


# -- a function ------------------------------------------------------------------------------------

calls: list[threading.Thread] = []
fails: list[Exception] = []


def tokens(config: str) -> tuple[Any, ...]:
    calls.append(threading.current_thread())
    if fails:
        raise fails[0]
    return unsigned("flights", 2.0), time.time() + 2.0, "flights", {"pool": config}


@pytest.fixture
def function(request: pytest.FixtureRequest) -> dict[str, str]:
    calls.clear(), fails.clear()
    name = {"sasl.oauthbearer.token.callback": f"{__name__}:tokens"}
    # Each login has its own tokens, so that no test sees those of another one.
    return NOWHERE | name | {"sasl.oauthbearer.config": request.node.name}


@pytest.mark.parametrize("kind", [Producer, ProducerClient])
def test_a_function_is_asked_and_asked_again_while_nobody_polls(kind: Any, function):
    client = kind(librdkafka_settings(function) | QUIET)
    until(lambda: len(calls) >= 2)
    assert threading.main_thread() not in calls
    del client


class Clock(VirtualClock):
    """The time of this machine, and nobody waits."""

    def now_ms(self) -> int:
        return int(time.time() * 1000 + self.time * 1000)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OSError("no route"), TokenUnavailableError),
        (AuthenticationError("No.", where="a", cause="closed", option="c"), AuthenticationError),
    ],
)
@pytest.mark.parametrize("how", ["settings_checked", "record_producer"])
def test_a_client_is_not_made_without_a_token(failure, kind, how, function, monkeypatch):
    """confluent-kafka would wait for ten seconds, and say only that none came."""
    clock = Clock()
    monkeypatch.setattr(token_source, "Deadline", lambda seconds: Deadline(seconds, clock))
    fails.append(failure)
    settings = librdkafka_settings(function) | QUIET
    monkeypatch.setattr(settings["oauth_cb"], "_clock", clock)
    made: list[Any] = []
    with pytest.raises(kind) as caught:
        if how == "settings_checked":
            with settings_checked(function, "producer"):
                made.append(Producer(settings))
        else:
            PlainProducer(settings, "a sink", strict=True)
    assert made == []
    assert type(caught.value) is kind
    assert caught.value.where
    assert is_retried(caught.value) is (kind is TokenUnavailableError)


def hour(_config: str) -> tuple[str, float]:
    if fails:
        raise fails[0]
    return unsigned("flights", 3600.0), time.time() + 3600.0


def test_a_client_is_made_while_a_renewal_fails_and_the_token_is_good(monkeypatch):
    fails.clear()
    function = NOWHERE | {"sasl.oauthbearer.token.callback": f"{__name__}:hour"}
    settings = librdkafka_settings(function) | QUIET
    source, clock = settings["oauth_cb"], Clock()
    monkeypatch.setattr(source, "_clock", clock)
    source.usable(Deadline(5))
    clock.sleep(0.9 * 3600)
    fails.append(OSError("no route"))
    with settings_checked(function, "producer"):
        client = Producer(settings)
    del client


def test_what_librdkafka_really_says_without_a_token(endpoint: TokenEndpoint):
    endpoint.status, endpoint.answer = 401, b'{"error": "invalid_client"}'
    told: list[str] = []
    watch = ErrorWatch()

    def note(error: KafkaError) -> None:
        watch(error)
        told.append(error.str())

    client = Producer(librdkafka_settings(provider(endpoint)) | QUIET | {"error_cb": note})
    until(lambda: client.poll(0.01) >= 0 and any("invalid_client" in one for one in told))
    assert watch.final is None


@pytest.mark.parametrize("name", ["no_such_module:f", f"{__name__}:NOWHERE"])
def test_a_function_that_is_not_there_is_found_before_anything_connects(name: str):
    with pytest.raises(ConfigurationError, match="The function that gives tokens"):
        librdkafka_settings(NOWHERE | {"sasl.oauthbearer.token.callback": name})
