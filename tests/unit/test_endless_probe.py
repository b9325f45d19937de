"""What the doctor makes of the answers of leaders and coordinators about a held-back partition.

A real broker that hides a commit: integration/test_broker_restarts.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from connectors.doctor.endless_probe import find_endless
from connectors.doctor.facts import Endless
from connectors.wire.wire_client import AnswerLostError, NotSentError
from transactions.clock import Deadline

EPOCH = 5


class Cluster:
    """One broker: it leads out-0, which an open transaction of producer 12 holds back.

    Args:
        state: what the coordinator says.
        epoch: likewise.
        code: of the coordinator's answer.
        leader: of out-0, according to the metadata.
        errors: request -> code of its answers about out-0, None for no answer; each is used once.
    """

    def __init__(
        self,
        state: str = "CompleteCommit",
        epoch: int = EPOCH,
        *,
        code: int = 0,
        leader: int = 1,
        errors: Mapping[type, Sequence[int | None]] = MappingProxyType({}),
    ) -> None:
        self._leader = leader
        self._errors = {request: list(codes) for request, codes in errors.items()}
        self._owner = SimpleNamespace(
            error_code=code,
            transactional_id="x.1",
            transaction_state=state,
            producer_id=12,
            producer_epoch=epoch,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=1,
            topics=[],
        )

    def brokers(self) -> list[int]:
        return [1]

    async def any_broker(self) -> int:
        return 1

    async def together(self, step: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> Any:
        return [await step(item) for item in items]

    async def send(self, node: int, request: Any, deadline: Deadline) -> Any:
        answers = {
            MetadataRequest: self._metadata,
            ListOffsetsRequest: self._offsets,
            DescribeProducersRequest: self._producers,
            ListTransactionsRequest: self._listing,
            DescribeTransactionsRequest: self._described,
        }
        return answers[type(request)](request)

    def _code(self, request: Any) -> int:
        left = self._errors.get(type(request))
        code = left.pop(0) if left else 0
        if code is None:
            raise AnswerLostError("broker 1: timed out")
        return code

    def _metadata(self, request: MetadataRequest) -> Any:
        row = SimpleNamespace(partition_index=0, leader_id=self._leader)
        return SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=[row])])

    def _offsets(self, request: ListOffsetsRequest) -> Any:
        end = 7 if request.isolation_level else 9
        code = self._code(request)
        return _of_out(SimpleNamespace(partition_index=0, error_code=code, offset=end))

    def _producers(self, request: DescribeProducersRequest) -> Any:
        producer = SimpleNamespace(
            producer_id=12,
            producer_epoch=EPOCH,
            coordinator_epoch=0,
            current_txn_start_offset=7,
        )
        code = self._code(request)
        producers = [] if code else [producer]
        row = SimpleNamespace(partition_index=0, error_code=code, active_producers=producers)
        return _of_out(row)

    def _listing(self, request: ListTransactionsRequest) -> Any:
        return SimpleNamespace(error_code=0, transaction_states=[self._owner])

    def _described(self, request: DescribeTransactionsRequest) -> Any:
        return SimpleNamespace(transaction_states=[self._owner])


def _of_out(row: Any) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=[row])])


def found_in(cluster: Any) -> tuple[tuple[Endless, ...], dict[str, str]]:
    deadline = Deadline(1.0)

    async def ask(request: Any, node: int) -> Any:
        return await cluster.send(node, request, deadline)

    return asyncio.run(find_endless(cluster, ["out"], ask, deadline))


@pytest.mark.parametrize(
    ("state", "epoch", "fate"),
    [
        ("CompleteCommit", EPOCH, "CompleteCommit"),
        ("CompleteAbort", EPOCH, "CompleteAbort"),
        # KIP-890: the end of a transaction raises its producer's epoch by one
        ("CompleteCommit", EPOCH + 1, "CompleteCommit"),
        ("CompleteAbort", EPOCH + 1, "CompleteAbort"),
        # initialised again, or another transaction since then
        ("Empty", EPOCH + 1, ""),
        ("CompleteCommit", EPOCH + 2, ""),
        ("CompleteAbort", EPOCH + 2, ""),
        # it begins the next one only when the one before is over, and its producer goes on for ever
        ("Ongoing", EPOCH + 1, ""),
    ],
)
def test_the_coordinators_word_counts_only_for_the_transaction_that_it_is_about(state, epoch, fate):
    (one,), _ = found_in(Cluster(state, epoch))
    assert (one.partition, one.transactional_id, one.state) == ("out-0", "x.1", fate)


@pytest.mark.parametrize(
    ("code", "name"), [(14, "COORDINATOR_LOAD_IN_PROGRESS"), (16, "NOT_COORDINATOR")]
)
def test_a_coordinator_that_cannot_answer_now_leaves_nothing_to_judge(code, name):
    """Its transaction can be living or committed."""
    with pytest.raises(NotSentError, match=f"broker 1: x.1: {name}"):
        found_in(Cluster(code=code))


def test_an_id_that_was_forgotten_between_two_answers_has_no_owner():
    (one,), _ = found_in(Cluster(code=105))
    assert (one.transactional_id, one.state) == ("", "")


@pytest.mark.parametrize(
    ("state", "epoch"),
    [("Ongoing", EPOCH), ("PrepareCommit", EPOCH + 1), ("PrepareAbort", EPOCH + 1)],
)
def test_a_transaction_that_is_open_or_about_to_end_is_no_finding(state, epoch):
    assert found_in(Cluster(state, epoch)) == ((), {})


def test_a_partition_without_a_leader_is_not_taken_for_one_without_a_finding():
    assert found_in(Cluster(leader=-1)) == ((), {"leaders": "out: 0 (no answer)"})


@pytest.mark.parametrize(
    ("request_type", "codes", "why"),
    [
        (ListOffsetsRequest, [None], "no answer"),  # the end of the log
        (ListOffsetsRequest, [0, 6], "no answer"),  # the end of the readers
        (ListOffsetsRequest, [0, 0, 6], "NOT_LEADER_FOR_PARTITION"),  # before the first look
        (DescribeProducersRequest, [None], "no answer"),
        (DescribeProducersRequest, [6], "NOT_LEADER_FOR_PARTITION"),
        (DescribeProducersRequest, [0, None], "no answer"),  # the second look
    ],
)
def test_a_leader_that_gives_no_answer_is_not_taken_for_one_without_a_finding(
    request_type, codes, why
):
    found, unread = found_in(Cluster(errors={request_type: codes}))
    assert (found, unread) == ((), {"leaders": f"out: 0 ({why})"})


def test_a_right_that_is_missing_is_not_taken_for_a_leader_that_is_away():
    cluster = Cluster(errors={DescribeProducersRequest: [29]})
    assert found_in(cluster) == ((), {"producers": "out (TOPIC_AUTHORIZATION_FAILED)"})
