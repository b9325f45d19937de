"""Questions on the asking thread: the same answers, with every login, and the other way if not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from connectors.kafka.sink.visibility import CommitVisibility
from connectors.wire import partition_leaders, wire_requests
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.wire_client import WireClient
from tests.certificates import self_signed
from tests.chaos.kafka_proxy import Action, Rule
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.integration.wire_helpers import begin, committable, open_producer, soon
from tests.locked_broker import JAAS, locked_broker, speaks_tls, wants_password
from transactions.committable import Outcome

T = TypeVar("T")

TOPIC = "asked"
PARTITION = f"{TOPIC}-0"
DESCRIBE_TRANSACTIONS = 65
#: Kafka lets a login end after this time; kafka-python repeats it before.
SESSION_S = 4.0


def beside(step: Callable[..., T], *args: Any) -> T:
    """Do this on a thread that is not the main thread: nobody else asks directly."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step, *args).result(timeout=60)


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """The client settings of each kind of login, for one broker."""
    broker = self_signed(tmp_path_factory.mktemp("tls"), "broker")
    listeners = {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
    made, (plain, *servers) = locked_broker(
        listeners,
        wants_password("login", root="right"),
        wants_password("both", root="right"),
        speaks_tls("tls", broker),
        speaks_tls("both", broker),
        {"connections.max.reauth.ms": str(int(SESSION_S * 1000))},
    )
    login = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(user="root", password="right"),
    }
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.path)}
    said = {"SASL_PLAINTEXT": login, "SSL": trust, "SASL_SSL": login | trust}
    with made as cluster:
        cluster.create_topic(TOPIC)
        yield {
            "PLAINTEXT": {"bootstrap.servers": plain},
            **{
                protocol: {"bootstrap.servers": at, "security.protocol": protocol, **said[protocol]}
                for protocol, at in zip(listeners.values(), servers, strict=True)
            },
        }


class Asking:
    """A wire and the questions that it lets its caller ask directly."""

    def __init__(self, kafka: dict[str, str], ids: list[str]) -> None:
        self.ids = ids
        self.coordinators = CoordinatorWire(kafka)
        self.known = self.coordinators.describe(ids, soon())  # and who the coordinators are
        self.wire = self.coordinators._wire
        self.direct = self.coordinators._direct

    def ask(self) -> dict[int, list[Any]]:
        """Ask what is asked before each decision, directly and in no other way."""
        nodes = self.wire.known_coordinators(1, self.ids)
        request = wire_requests.describe_transactions(self.ids)
        return self.direct.ask({node: [request] for node in nodes.values()}, soon())

    def states(self) -> list[str]:
        answers = beside(self.ask)
        return [
            row.transaction_state for (one,) in answers.values() for row in one.transaction_states
        ]


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"])
def test_each_login_gives_the_same_answer(logins: dict[str, dict[str, str]], protocol: str):
    name = f"app.{protocol}.1.a.0"
    begin(open_producer(logins["PLAINTEXT"]["bootstrap.servers"], name), TOPIC, ["a", "b"])
    asking = Asking(logins[protocol], [name])
    with asking.coordinators as wire:
        assert asking.states() == ["Ongoing"]
        assert beside(wire.describe, [name], soon()) == asking.known
        assert asking.known[name].partitions == {PARTITION}
        committed = committable(wire, name)
        visibility = CommitVisibility(logins[protocol], wire)
        visibility._others_write = True
        assert wire.commit([committed], soon()) == {name: Outcome.COMMITTED}
        assert beside(visibility.hidden, [committed], soon(), [PARTITION]) == []
        assert {*asking.states()} < {"PrepareCommit", "CompleteCommit"}
        visibility.close()


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_login_is_repeated_before_it_ends(logins: dict[str, dict[str, str]], protocol: str):
    name = f"app.again.{protocol}.1.a.0"
    begin(open_producer(logins["PLAINTEXT"]["bootstrap.servers"], name), TOPIC, ["a"])
    asking = Asking(logins[protocol], [name])
    with asking.coordinators:
        assert asking.states() == ["Ongoing"]
        first = asking.direct._connections.copy()
        logins_until = time.monotonic() + 2.5 * SESSION_S
        while time.monotonic() < logins_until:
            assert asking.states() == ["Ongoing"]
        assert asking.direct._connections == first, "the same connection, logged in again"


def test_the_end_of_an_unended_transaction_is_seen_directly(logins: dict[str, dict[str, str]]):
    kafka, name = logins["PLAINTEXT"], f"app.unended.{uuid.uuid4().hex}"
    begin(open_producer(kafka["bootstrap.servers"], name), TOPIC, ["a"])
    with CoordinatorWire(kafka) as coordinators:
        mine = coordinators.describe([name], soon())[name]
        wire = coordinators._wire
        leaders = wire.run(partition_leaders.leaders_of, wire, [PARTITION], soon(), deadline=soon())
        direct = DirectQuestions(wire)
        for _ in range(2):
            found, unread = beside(partition_leaders.find_unended_directly, direct, soon(), leaders)
            other = wire.run(
                partition_leaders.find_unended, wire, [PARTITION], soon(), deadline=soon()
            )
            assert (found, unread) == other
            assert unread == {}
            ours = [one for one in found if one.producer_id == mine.producer_id]
            assert len(ours) == (mine.state == "Ongoing")
            coordinators.fence(name, 60_000, soon())
            mine = coordinators.describe([name], soon())[name]
        direct.close()


def test_on_the_main_thread_nobody_asks_directly(logins: dict[str, dict[str, str]]):
    asking = Asking(logins["PLAINTEXT"], ["app.main.1.a.0"])
    with asking.coordinators:
        assert asking.ask() == {}
        assert asking.direct._connections == {}


@pytest.fixture(scope="module")
def proxied() -> Iterator[ProxiedCluster]:
    with ProxiedCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def topic(proxied: ProxiedCluster) -> str:
    """A new one: what other tests leave open would hold readers back."""
    name = f"asked-{uuid.uuid4().hex}"
    proxied.create_topic(name)
    return name


def test_how_far_readers_stay_behind_is_seen_directly(proxied: ProxiedCluster, topic: str):
    name, partition = f"app.{topic}", f"{topic}-0"
    begin(open_producer(proxied.bootstrap_servers, name), topic, ["a", "b"])
    with CoordinatorWire({"bootstrap.servers": proxied.bootstrap_servers}) as coordinators:
        coordinators.describe([name], soon())
        wire = coordinators._wire
        leaders = wire.run(partition_leaders.leaders_of, wire, [partition], soon(), deadline=soon())
        direct = DirectQuestions(wire)
        for lag in (2, 0):
            found = beside(partition_leaders.stable_lags_directly, direct, soon(), leaders)
            other = wire.run(
                partition_leaders.stable_lags, wire, [partition], soon(), deadline=soon()
            )
            assert found == other == {partition: lag}
            coordinators.fence(name, 60_000, soon())
        direct.close()


@pytest.mark.parametrize("others_write", [False, True])
def test_the_look_for_markers_needs_no_other_thread(
    proxied: ProxiedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, others_write: bool
):
    kafka = {"bootstrap.servers": proxied.bootstrap_servers}
    partitions = [f"{topic}-0"]
    with CoordinatorWire(kafka) as wire:
        visibility = CommitVisibility(kafka, wire)

        if others_write:
            other = open_producer(proxied.bootstrap_servers, f"app.{topic}.other")
            begin(other, topic, ["b"])
        name = f"app.{topic}.ours"
        begin(open_producer(proxied.bootstrap_servers, name), topic, ["a"])
        committed = [committable(wire, name)]
        assert wire.commit(committed, soon()) == {name: Outcome.COMMITTED}
        assert beside(visibility.hidden, committed, soon(), partitions) == []
        # From now on the leaders are known, and the markers are there.
        with monkeypatch.context() as patched:
            patched.setattr(visibility._wire, "run", refuse)
            assert beside(visibility.hidden, committed, soon(), partitions) == []
        assert visibility._others_write == others_write
        visibility.close()


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("the other way")


@pytest.mark.parametrize(
    "fault", [Action.DROP_REQUEST, Action.DROP_RESPONSE, Action.CLOSE_BEFORE, Action.CLOSE_AFTER]
)
def test_a_lost_answer_is_asked_for_in_the_other_way(proxied: ProxiedCluster, fault: Action):
    name = f"app.lost.{uuid.uuid4().hex}"
    begin(open_producer(proxied.bootstrap_servers, name), TOPIC, ["a"])
    asking = Asking({"bootstrap.servers": proxied.proxied_servers}, [name])
    with asking.coordinators as wire:
        assert asking.states() == ["Ongoing"]
        rule = proxied.proxy.add(Rule(DESCRIBE_TRANSACTIONS, fault, times=1))
        assert beside(wire.describe, [name], soon()) == asking.known
        rule.wait_for_hits()
        assert asking.direct._connections == {}, "an answer may still come on it"
        assert asking.states() == [], "the broker is left alone for a while"
        asking.direct._left_alone.clear()
        assert asking.states() == ["Ongoing"]
        proxied.proxy.clear()


def test_a_broker_that_is_away_is_no_error(proxied: ProxiedCluster):
    wire = WireClient({"bootstrap.servers": proxied.proxied_servers}, 5.0)
    direct = DirectQuestions(wire)
    request = wire_requests.describe_transactions(["app.away"])
    assert beside(direct.ask, {1: [request]}, soon()) == {}, "no broker is known yet"
    wire.connect(soon())
    direct._left_alone.clear()
    assert list(beside(direct.ask, {1: [request], 99: [request]}, soon())) == [1]
    direct.close()
    wire.close()
