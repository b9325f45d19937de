"""librdkafka's producer, as far as the product uses it, on the fake cluster.

Without a transactional id it is an idempotent one, and its records belong to no transaction. It
repeats requests by itself, as librdkafka does, and is fatally broken by a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from connectors.wire.wire_client import AnswerLostError, NotSentError
from tests.simulation import end_txn_table as table
from tests.simulation.fake_cluster import Append

PARTITIONS = 2
_TRIES = 8
RETRY_BACKOFF_S = 0.1  # retry.backoff.ms
#: librdkafka repeats these by itself when a connection broke, and a copy can arrive in the next
#: transaction of the producer; its log alone tells, and the product uses such a producer no more.
END_TXN_TRIES = 8
TXN_OFFSETS_TRIES = 8
_TO_COORDINATOR = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    EndTxnRequest,
)
_RETRIED = {*table.NOT_NOW, table.CONCURRENT}


class FakeProducer:
    """One client object; lives as long as its process.

    Args:
        config: as librdkafka's.
        exchange: carries a request to the cluster.
        pause: waits between two tries.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        exchange: Callable[[Any], Any],
        pause: Callable[[float], None],
    ) -> None:
        self._config = config
        self._exchange = exchange
        self._pause = pause
        self._id = config.get("transactional.id", "")
        self._pid, self._epoch = -1, -1
        self._told = False
        self._fatal = False
        self._queue: list[tuple[str, str]] = []
        self._added: set[str] = set()
        self._sequences: dict[str, int] = {}

    def init_transactions(self, _timeout: float = -1) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id or None,
            transaction_timeout_ms=self._config.get("transaction.timeout.ms", 2**31 - 1),
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        answer = self._ask(request, lambda one: one.error_code)
        self._pid, self._epoch = answer.producer_id, answer.producer_epoch

    def poll(self, _timeout: float) -> int:
        if self._pid >= 0 and not self._told and self._id:
            self._told = True
            facts = {"producer_id": self._pid, "producer_epoch": self._epoch, "txn_state": "Ready"}
            self._config["stats_cb"](orjson.dumps({"eos": facts}).decode())
        return 0

    def begin_transaction(self) -> None:
        self._check()
        self._added = set()

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        self._check()
        text = value.decode()
        self._queue.append((f"{topic}-{int(text.rpartition(':')[2]) % PARTITIONS}", text))

    def flush(self, _timeout: float = -1) -> int:
        if self._pid < 0:  # as librdkafka does for an idempotent producer, before it first sends
            self.init_transactions()
        for partition in dict.fromkeys(name for name, _ in self._queue):
            if self._id and partition not in self._added:
                self._add(partition)
            values = tuple(text for name, text in self._queue if name == partition)
            first = self._sequences.get(partition, 0)
            append = Append(self._id, self._pid, self._epoch, partition, first, values)
            self._ask(append, lambda one: one.error_code)
            self._sequences[partition] = first + len(values)
        self._queue = []
        return 0

    def purge(self, **_options: bool) -> None:
        self._queue = []

    def send_offsets_to_transaction(
        self, positions: list[Any], group: bytes, _timeout: float
    ) -> None:
        ids = {
            "transactional_id": self._id,
            "producer_id": self._pid,
            "producer_epoch": self._epoch,
            "group_id": group.decode(),
        }
        self._ask(AddOffsetsToTxnRequest(max_version=3, **ids), lambda one: one.error_code)
        self._added.add("__consumer_offsets")
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        rows = [
            topic(
                name=one.topic,
                partitions=[
                    topic.TxnOffsetCommitRequestPartition(
                        partition_index=one.partition,
                        committed_offset=one.offset,
                        committed_metadata=one.metadata,
                    )
                ],
            )
            for one in positions
        ]
        request = TxnOffsetCommitRequest(topics=rows, max_version=3, **ids)
        self._ask(
            request, lambda one: one.topics[0].partitions[0].error_code, tries=TXN_OFFSETS_TRIES
        )

    def commit_transaction(self, _timeout: float) -> None:
        self.flush()
        self._end(commit=True)

    def abort_transaction(self, _timeout: float) -> None:
        self._queue = []
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        self._check()
        if self._added:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._pid,
                producer_epoch=self._epoch,
                committed=commit,
                max_version=1,
            )
            self._ask(request, lambda one: one.error_code, tries=END_TXN_TRIES)
        self._added = set()

    def _add(self, partition: str) -> None:
        name, _, number = partition.rpartition("-")
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._pid,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic(name=name, partitions=[int(number)])],
            max_version=3,
        )
        self._ask(
            request,
            lambda one: (
                one.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        self._added.add(partition)

    def _ask(self, request: Any, code_of: Callable[[Any], int], *, tries: int = _TRIES) -> Any:
        self._check()
        code = KafkaError._TIMED_OUT
        lost = 0
        for _ in range(_TRIES):
            try:
                answer = self._exchange(request)
            except NotSentError:
                self._pause(0.1)
                continue
            except AnswerLostError:
                lost += 1
                self._note_break(request)
                if lost >= tries:
                    break
                self._pause(RETRY_BACKOFF_S)
                continue
            code = code_of(answer)
            if code == table.NONE:
                return answer
            if code not in _RETRIED:
                self._fatal = True
                break
            self._pause(0.02)
        raise KafkaException(KafkaError(code, f"{type(request).__name__}: {code}"))

    def _note_break(self, request: Any) -> None:
        """Write what librdkafka writes when the other end has closed a connection."""
        if "logger" in self._config:
            thread = "TxnCoordinator" if isinstance(request, _TO_COORDINATOR) else "b:1/1"
            line = f"[thrd:{thread}]: {thread}: Disconnected (after 9ms in state UP)"
            self._config["logger"].log(20, "%s [%s] %s", "FAIL", self._id, line)

    def _check(self) -> None:
        if self._fatal:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fatal"))
