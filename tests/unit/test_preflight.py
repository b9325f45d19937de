"""What a driver refuses before it asks a broker; the rest is in test_doctor_verdicts.py."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Uuid
from confluent_kafka.admin import AclOperation, TopicDescription

from connectors import KafkaSource
from connectors.clients.transaction_timeout import MOST_TIMEOUT_MS
from connectors.doctor import preflight
from connectors.doctor.facts import ClusterFacts, Topic, Wanted
from connectors.doctor.preflight import check_clusters, check_source
from connectors.kafka.sink.kafka_sink import KafkaSink, transaction_timeout_ms
from connectors.kafka.source import source_questions
from transactions.clock import Deadline
from transactions.errors import AuthenticationError, ConfigurationError

WRITABLE = frozenset({"READ", "WRITE", "DESCRIBE"})


def test_a_setting_that_no_producer_knows_is_found_on_the_driver():
    sink = KafkaSink(bootstrap_servers="127.0.0.1:1", topic="out", kafka={"linger.no.such": "5"})
    deadline = Deadline(60.0)
    with pytest.raises(ConfigurationError, match=r"linger\.no\.such") as caught:
        check_clusters([sink], Wanted(application_id="app"), deadline)
    assert caught.value.option == "kafka.linger.no.such=5"
    assert deadline.remaining() > 50.0


class Described:
    """An admin client that knows the rights on each topic; what a real one says is in test_acls.py.

    Args:
        rights: None where the brokers do not tell them.
    """

    def __init__(self, rights: dict[str, list[AclOperation] | None]) -> None:
        self._rights = rights

    def poll(self, _seconds: float) -> None:
        pass

    def describe_topics(self, asked: Any, **how: Any) -> dict[str, Future[Any]]:
        tells = how.get("include_authorized_operations", False)
        return {
            name: answered(
                TopicDescription(
                    *(name, Uuid(0, 0), False, [SimpleNamespace(id=0)]),
                    self._rights[name] if tells else None,
                )
            )
            for name in asked.topic_names
        }

    def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
        return {one: answered(SimpleNamespace(offset=0)) for one in asked}


def answered(what: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(what)
    return done


MAY = AclOperation


@pytest.mark.parametrize(
    ("rights", "refused"),
    [
        ({"a": [MAY.DESCRIBE, MAY.READ], "b": [MAY.DESCRIBE, MAY.WRITE]}, "b"),
        ({"a": [MAY.DESCRIBE], "b": [MAY.WRITE]}, "a, b"),
        ({"a": [MAY.READ, MAY.DESCRIBE], "b": None}, ""),
    ],
    ids=["one is closed", "both are closed", "not told"],
)
def test_an_input_that_may_not_be_read_is_refused_before_a_record_waits_in_it(
    monkeypatch, rights, refused
):
    """ListOffsets and DescribeTopics need DESCRIBE only: the first fetch would be the first no."""
    monkeypatch.setattr(source_questions, "admin_client", lambda *_, **__: Described(rights))
    source = KafkaSource(bootstrap_servers="b:1", subscribe="a,b")
    if not refused:
        check_source(source, Deadline(5.0))
        return
    with pytest.raises(AuthenticationError) as caught:
        check_source(source, Deadline(5.0))
    assert caught.value.where == refused
    assert caught.value.option == "an ACL: READ on the topic"


class Broker:
    """Answers with its one setting; what a real one says is in test_doctor.py."""

    def __init__(self, allowed: int = 900_000) -> None:
        self._allowed = allowed

    def broker_setting(self, name: str, deadline: Deadline) -> str:
        assert name == "transaction.max.timeout.ms"
        return str(self._allowed)


@pytest.mark.parametrize(("given", "used"), [(None, 900_000), (660_000, 660_000)])
def test_rule_14_as_much_as_the_broker_allows(given, used):
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", transaction_timeout_ms=given)
    answer = transaction_timeout_ms(sink, Broker(), at_least_s=660, deadline=Deadline(1.0))
    assert answer == used


@pytest.mark.parametrize("given", [900_001, 659_999])
def test_rule_14_a_transaction_that_a_checkpoint_and_a_restart_outlive_is_refused(given):
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", transaction_timeout_ms=given)
    with pytest.raises(ConfigurationError) as caught:
        transaction_timeout_ms(sink, Broker(), at_least_s=660, deadline=Deadline(1.0))
    assert f"transactionTimeoutMs={given}" in caught.value.option


def test_b4_no_more_than_the_client_can_compute_with():
    """A broker without a limit is the advice for long downtimes."""
    endless = Broker(2**31 - 1)
    sink = KafkaSink(bootstrap_servers="b:1", topic="out")
    answer = transaction_timeout_ms(sink, endless, at_least_s=660, deadline=Deadline(1.0))
    assert answer == MOST_TIMEOUT_MS == 2_147_483_547
    more = KafkaSink(bootstrap_servers="b:1", topic="out", transaction_timeout_ms=answer + 1)
    with pytest.raises(ConfigurationError, match="at most 2147483547 ms") as caught:
        transaction_timeout_ms(more, endless, at_least_s=660, deadline=Deadline(1.0))
    assert "librdkafka" in caught.value.cause


def test_b4_a_time_for_requests_that_cannot_work_is_refused_at_start():
    kafka = {"request.timeout.ms": "999"}
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", kafka=kafka)
    with pytest.raises(ConfigurationError, match=r"kafka\.request\.timeout\.ms=999"):
        transaction_timeout_ms(sink, Broker(), at_least_s=660, deadline=Deadline(1.0))


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
def test_without_transactions_nothing_is_asked_about_them(monkeypatch, guarantee):
    """No probe of a transactional id, no budget against the transaction timeout."""
    asked: list[Wanted] = []

    def gather(settings: Any, wanted: Wanted, deadline: Deadline) -> ClusterFacts:
        asked.append(wanted)
        topic = Topic(name="out", replicas=3, in_sync=3, min_in_sync=2, operations=WRITABLE)
        return ClusterFacts(bootstrap="b:1", brokers={0: "4.x"}, topics={"out": topic})

    monkeypatch.setattr(preflight, "gather", gather)
    plain = KafkaSink(bootstrap_servers="b:1", topic="out", guarantee=guarantee)
    wanted = Wanted(application_id="app", checkpoint_timeout_s=1e6, strangers=False)
    check_clusters([plain], wanted, Deadline(5.0))
    assert [(one.application_id, one.transactions, one.outputs) for one in asked] == [
        ("", False, ("out",))
    ]
    exactly = KafkaSink(bootstrap_servers="b:1", topic="out", name="exactly")
    with pytest.raises(AuthenticationError):  # no setting was shown, so no timeout is known
        check_clusters([plain, exactly], wanted, Deadline(5.0))
    assert (asked[-1].application_id, asked[-1].transactions) == ("app", True)
