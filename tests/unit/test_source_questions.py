"""What brokers answer to the source, on librdkafka's mock cluster: late, wrong, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from connectors import KafkaSource
from connectors.clients.client_errors import is_final
from connectors.kafka.source.offsets import split_key
from connectors.kafka.source.source_planner import _NO_ID, SourcePlanner
from connectors.kafka.source.source_questions import SourceQuestions
from tests.mock_cluster import LIST_OFFSETS, MockCluster
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import AuthenticationError, BrokerUnavailableError, MissingTopicError


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as one:
        one.topic("in", 2)
        yield one


class Planner(SourcePlanner):
    """The mock cluster has no controller, which describes topics. Only one topic exists."""

    there = ("in-0", "in-1")

    def _describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
        if [*topics] != ["in"]:
            raise MissingTopicError("A topic or partition to read does not exist.", where="gone")
        partitions = [SimpleNamespace(id=split_key(key)[1]) for key in self.there]
        return {"in": SimpleNamespace(partitions=partitions, topic_id=_NO_ID)}


def planner(cluster: MockCluster, subscribe: str = "in", **options: int) -> Planner:
    return Planner(KafkaSource(bootstrap_servers=cluster.bootstrap, subscribe=subscribe, **options))


def test_a_leader_that_does_not_answer_is_asked_again(cluster):
    """Librdkafka calls its partitions answered then, with the offset -1001 and no error."""
    cluster.slow(LIST_OFFSETS, 4000)
    assert planner(cluster)._list(["in-0", "in-1"], OffsetSpec.latest(), "read_committed") == {
        "in-0": 0,
        "in-1": 0,
    }


def test_a_leader_that_never_answers_is_no_offset(cluster):
    cluster.slow(LIST_OFFSETS, 4000, times=20)
    with pytest.raises(BrokerUnavailableError, match="did not answer"):
        planner(cluster, poll_timeout_ms=3000)._first_since({"in-0": 5}, "read_committed")


def test_no_record_since_a_time_is_an_answer(cluster):
    assert planner(cluster)._first_since({"in-0": 5}, "read_committed") == {"in-0": -1}


def test_a_leader_that_does_not_know_its_new_partition_yet_is_asked_again(cluster):
    """It was described just now: the news of a new partition reaches its leader later."""
    cluster.refuse(LIST_OFFSETS, KafkaError.UNKNOWN_TOPIC_OR_PART, times=3)
    assert planner(cluster).latest_offsets() == {"in-0": 0, "in-1": 0}


def test_a_deleted_topic_ends_no_patience_with_the_new_leader_of_another_one(cluster):
    cluster.refuse(LIST_OFFSETS, KafkaError.UNKNOWN_TOPIC_OR_PART, times=3)
    lenient = planner(cluster, "in,gone", fail_on_data_loss=False)
    start = {"in-0": 0, "in-1": 0, "gone-0": 4}
    assert lenient.next_end(start) == start


def test_a_partition_that_is_described_no_more_is_missing(cluster):
    gone = planner(cluster)
    assert gone.partitions() == ["in-0", "in-1"]
    gone.there = ("in-0",)
    cluster.refuse(LIST_OFFSETS, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(MissingTopicError):
        gone.latest_offsets()


class Admin:
    """A client; what it has met waits until it is polled."""

    def __init__(self, questions: SourceQuestions, *met: KafkaError) -> None:
        self._watch = questions._trouble
        self.met = [*met]

    def poll(self, _timeout: float) -> None:
        while self.met:
            self._watch(self.met.pop())


def done(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future


def test_an_error_from_before_a_question_says_nothing_about_it():
    """Nobody polls a client between two questions."""
    questions = SourceQuestions(KafkaSource(bootstrap_servers="b:1", subscribe="in"), SYSTEM_CLOCK)
    refused = KafkaError(KafkaError._SSL, "handshake failed")
    answers = [KafkaError(KafkaError._TIMED_OUT), "good"]
    questions._admin = Admin(questions, refused)
    found = questions.ask("it", lambda _admin, _timeout: {"": done(answers.pop(0))})
    assert found == {"": "good"}

    def meets(admin: Any, _timeout: float) -> dict[str, Any]:
        admin.met.append(refused)
        return {"": done(KafkaError(KafkaError._TIMED_OUT))}

    questions._admin = Admin(questions)
    with pytest.raises(AuthenticationError, match="handshake failed"):
        questions.ask("it", meets)


def test_a_right_on_a_topic_that_is_missing_is_named(cluster):
    cluster.refuse(LIST_OFFSETS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthenticationError) as caught:
        planner(cluster).latest_offsets()
    error = caught.value
    assert error.where == "in-0, in-1"
    assert "authorization failed" in error.cause
    assert error.option.startswith("an ACL: READ on the topic")


#: A broker's answer to the second login of a connection within a second.
AGAIN = (
    "SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL state: "
    "broker's supported mechanisms:  (after 29ms in state AUTH_HANDSHAKE)"
)


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's", False),
        ("SASL PLAIN mechanism handshake failed: Local: Timed out: broker's supported", False),
        ("SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: ", True),
        ("SASL PLAIN mechanism handshake failed: Broker: Request not valid in current SASL", True),
        (AGAIN, False),
        ("SASL authentication error: Authentication failed: Invalid username", True),
    ],
)
def test_a_connection_that_breaks_in_a_login_is_no_wrong_password(text, final):
    """Librdkafka gives any error of the handshake the code of refused credentials."""
    assert is_final(KafkaError(KafkaError._AUTHENTICATION, text)) == final
