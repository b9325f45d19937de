"""An in-memory Kafka: transaction coordinator, group coordinator and partition logs.

It takes the request objects of kafka-python and returns objects with the fields of its responses,
so that everything above one `send` is the product's own code. EndTxn answers by
`end_txn_table.py`; the rest is held against a real broker by the same conformance suite. What a
partition holds is a list of entries in the order of the log; `log_reader.py` reads it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace as Answer
from typing import Any

from connectors.clients.offsets_topic import OFFSETS_TOPIC, offsets_partition
from tests.simulation import end_txn_table as table
from tests.simulation.end_txn_table import Effect, State

OFFSETS_PARTITIONS = 10
MAX_TIMEOUT_MS = 900_000
SETTINGS = {
    "offsets.retention.minutes": "10080",
    "transaction.max.timeout.ms": str(MAX_TIMEOUT_MS),
}

TRANSACTIONAL_ID_NOT_FOUND = 105
INVALID_TRANSACTION_TIMEOUT = 50
UNSTABLE_OFFSET_COMMIT = 88
_TO_LEADERS = frozenset(
    {
        "MetadataRequest",
        "ListOffsetsRequest",
        "DescribeProducersRequest",
        "WriteTxnMarkersRequest",
    }
)
OUT_OF_ORDER_SEQUENCE = 45


@dataclasses.dataclass(frozen=True, slots=True)
class LogEntry:
    """A record, or a control record that ends a producer's transaction."""

    kind: str  # data | commit | abort | plain: a record of no transaction
    producer_id: int
    producer_epoch: int
    value: str = ""


@dataclasses.dataclass(slots=True)
class Leader:
    """What a partition's leader remembers of one producer."""

    epoch: int
    next_sequence: int = 0
    open: bool = False
    start: int = -1  # offset of the first record of what is open


@dataclasses.dataclass(slots=True)
class Partition:
    """A log and its producers."""

    log: list[LogEntry] = dataclasses.field(default_factory=list)
    leaders: dict[int, Leader] = dataclasses.field(default_factory=dict)

    def stable_offset(self) -> int:
        """Return how far readers of committed records come."""
        return min([len(self.log), *(one.start for one in self.leaders.values() if one.open)])

    def end(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Write a marker: whatever this producer has open here has ended."""
        kind = "commit" if commit else "abort"
        self.log.append(LogEntry(kind, producer_id, producer_epoch))
        leader = self.leaders.setdefault(producer_id, Leader(producer_epoch))
        leader.open, leader.start = False, -1
        if producer_epoch > leader.epoch:
            leader.epoch, leader.next_sequence = producer_epoch, 0


@dataclasses.dataclass(slots=True)
class Transaction:
    """What the coordinator keeps per transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    start_ms: int = -1
    previous_producer_id: int = -1
    previous_epoch: int = -1  # that of which a repeated InitProducerId(held) may come
    partitions: set[str] = dataclasses.field(default_factory=set)
    offsets: dict[tuple[str, str], tuple[int, str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Append:
    """A Produce request to one partition; librdkafka sends it, our code never does. Without a
    transactional id its records belong to no transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: str
    first_sequence: int
    values: tuple[str, ...]


class FakeCluster:
    """One broker that is every coordinator and every leader.

    Args:
        now_ms: its wall clock.
        slow_markers: leave PrepareCommit and PrepareAbort standing until `write_markers`.
        on_begin: called with a transaction when it has been opened.
        on_end: called with a transaction, "commit" or "abort", and why, before it is ended.
        skips: says for a transaction and a partition that the partition has no leader at this
            moment: its marker is left out, for good (KAFKA-20734).
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        slow_markers: Callable[[], bool] = lambda: False,
        on_begin: Callable[[Transaction], None] = lambda _: None,
        on_end: Callable[[Transaction, str, str], None] = lambda *_: None,
        skips: Callable[[Transaction, str], bool] = lambda *_: False,
    ) -> None:
        self._now_ms = now_ms
        self._slow_markers = slow_markers
        self._on_begin = on_begin
        self._on_end = on_end
        self._skips = skips
        self._next_producer_id = 0
        self.transactions: dict[str, Transaction] = {}
        self.partitions: dict[str, Partition] = {}
        self.groups: dict[tuple[str, str], tuple[int, str]] = {}

    # -- requests -----------------------------------------------------------------------------

    def handle(self, request: Any, *, refuse_with: int = 0) -> Any:
        """Answer one request; `refuse_with` answers it with a code and does nothing.

        Every coordinator may answer so (`end_txn_table.NOT_NOW`), whatever the request is; what
        leaders are asked they never answer so.
        """
        name = type(request).__name__
        if refuse_with and name not in _TO_LEADERS:
            return _refusal(name, request, refuse_with)
        return getattr(self, f"_{_snake(name)}")(request)

    def _append(self, request: Append) -> Answer:
        partition = self.partitions.setdefault(request.partition, Partition())
        leader = partition.leaders.get(request.producer_id)
        if leader is not None and request.producer_epoch < leader.epoch:
            return Answer(error_code=table.INVALID_PRODUCER_EPOCH)
        if leader is None or request.producer_epoch > leader.epoch:
            leader = Leader(request.producer_epoch)
            partition.leaders[request.producer_id] = leader
        if request.first_sequence < leader.next_sequence:
            return Answer(error_code=table.NONE)  # a duplicate: it is in the log already
        if request.first_sequence > leader.next_sequence:
            return Answer(error_code=OUT_OF_ORDER_SEQUENCE)
        if request.transactional_id and not leader.open:
            if not self._writes_to(request, request.partition):
                return Answer(error_code=table.INVALID_TXN_STATE)  # verified with the coordinator
            leader.open, leader.start = True, len(partition.log)
        kind = "data" if request.transactional_id else "plain"
        leader.next_sequence += len(request.values)
        partition.log += [
            LogEntry(kind, request.producer_id, request.producer_epoch, value)
            for value in request.values
        ]
        return Answer(error_code=table.NONE)

    def _writes_to(self, request: Any, partition: str) -> bool:
        one = self.transactions.get(request.transactional_id)
        return (
            one is not None
            and one.state is State.ONGOING
            and (one.producer_id, one.producer_epoch)
            == (request.producer_id, request.producer_epoch)
            and partition in one.partitions
        )

    def _find_coordinator_request(self, request: Any) -> Answer:
        rows = [
            Answer(key=key, error_code=table.NONE, node_id=0) for key in request.coordinator_keys
        ]
        return Answer(coordinators=rows)

    def _init_producer_id_request(self, request: Any) -> Answer:
        name = request.transactional_id
        if not name:  # an idempotent producer
            return Answer(
                error_code=table.NONE, producer_id=self._new_producer_id(), producer_epoch=0
            )
        refused = Answer(error_code=table.NONE, producer_id=-1, producer_epoch=-1)
        if request.producer_id is not None and request.producer_id >= 0:
            return self._init_held(request, refused)
        if not 0 < request.transaction_timeout_ms <= MAX_TIMEOUT_MS:
            refused.error_code = INVALID_TRANSACTION_TIMEOUT
            return refused
        one = self.transactions.get(name)
        if one is None:
            one = Transaction(name, self._new_producer_id(), 0, request.transaction_timeout_ms)
            self.transactions[name] = one
        elif one.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            refused.error_code = table.CONCURRENT
            return refused
        elif one.state is State.ONGOING:
            self._fence(one, "InitProducerId")
            refused.error_code = table.CONCURRENT
            return refused
        else:
            one.timeout_ms = request.transaction_timeout_ms
            self._bump(one)
            one.previous_epoch = -1
            one.state, one.start_ms = State.EMPTY, -1
        return Answer(
            error_code=table.NONE, producer_id=one.producer_id, producer_epoch=one.producer_epoch
        )

    def _init_held(self, request: Any, refused: Answer) -> Answer:
        """Initialise an id again for who holds it (KIP-360); repeated, the answer is the same."""
        one = self.transactions.get(request.transactional_id)
        if one is None:
            one = Transaction(request.transactional_id, self._new_producer_id(), -1, 1)
            self.transactions[request.transactional_id] = one
        elif one.producer_id != request.producer_id:
            refused.error_code = table.FENCED
            return refused
        if one.producer_epoch in (-1, request.producer_epoch):
            self._bump(one)
            one.previous_epoch = one.producer_epoch - 1
        elif one.previous_epoch != request.producer_epoch:
            refused.error_code = table.FENCED
            return refused
        return Answer(
            error_code=table.NONE, producer_id=one.producer_id, producer_epoch=one.producer_epoch
        )

    def _add_partitions_to_txn_request(self, request: Any) -> Answer:
        one, code = self._own(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        names = [
            f"{topic.name}-{number}"
            for topic in request.v3_and_below_topics
            for number in topic.partitions
        ]
        if one is not None:
            self._add(one, names)
        rows = [Answer(partition_error_code=code) for _ in names]
        return Answer(results_by_topic_v3_and_below=[Answer(results_by_partition=rows)])

    def _add_offsets_to_txn_request(self, request: Any) -> Answer:
        one, code = self._own(request.transactional_id, request.producer_id, request.producer_epoch)
        if one is not None:
            self._add(one, [offsets_partition(request.group_id, OFFSETS_PARTITIONS)])
        return Answer(error_code=code)

    def _txn_offset_commit_request(self, request: Any) -> Answer:
        code = table.NONE
        kept_in = offsets_partition(request.group_id, OFFSETS_PARTITIONS)
        if self._writes_to(request, kept_in):
            one = self.transactions[request.transactional_id]
            for topic in request.topics:
                for row in topic.partitions:
                    key = (request.group_id, f"{topic.name}-{row.partition_index}")
                    one.offsets[key] = (row.committed_offset, row.committed_metadata or "")
        else:
            code = table.INVALID_TXN_STATE
        rows = [Answer(error_code=code) for topic in request.topics for _ in topic.partitions]
        return Answer(topics=[Answer(partitions=rows)])

    def _end_txn_request(self, request: Any) -> Answer:
        version = min(5, request._max_version or 5)
        one = self.transactions.get(request.transactional_id)
        row = table.end_txn(
            version,
            known=one is not None,
            same_producer=one is not None and one.producer_id == request.producer_id,
            pending=False,  # this fake changes state in one step
            state=State.EMPTY if one is None else one.state,
            commit=request.committed,
            epoch=table.epoch_relation(
                request.producer_epoch, -1 if one is None else one.producer_epoch
            ),
        )
        answer = Answer(error_code=row.code, producer_id=-1, producer_epoch=-1)
        if one is None or row.code != table.NONE:
            return answer
        if row.effect is Effect.EMPTY_ABORT:
            self._bump(one)
            one.state = State.COMPLETE_ABORT
        elif row.effect is not Effect.NOTHING:
            if row.effect is Effect.END_AND_BUMP:
                one.producer_epoch += 1
            self._prepare(one, "commit" if request.committed else "abort", "EndTxn")
        if version >= 5:
            answer.producer_id, answer.producer_epoch = one.producer_id, one.producer_epoch
        return answer

    def _describe_transactions_request(self, request: Any) -> Answer:
        return Answer(transaction_states=[self._describe(n) for n in request.transactional_ids])

    def _describe(self, name: str) -> Answer:
        one = self.transactions.get(name)
        if one is None:
            return Answer(transactional_id=name, error_code=TRANSACTIONAL_ID_NOT_FOUND)
        parts = [partition.rpartition("-") for partition in sorted(one.partitions)]
        return Answer(
            transactional_id=name,
            error_code=table.NONE,
            transaction_state=one.state.value,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            transaction_timeout_ms=one.timeout_ms,
            transaction_start_time_ms=one.start_ms,
            topics=[Answer(topic=topic, partitions=[int(n)]) for topic, _, n in parts],
        )

    def _list_transactions_request(self, request: Any) -> Answer:
        pattern = request.transactional_id_pattern
        version = min(2, request._max_version if request._max_version is not None else 2)
        rows = [
            Answer(
                transactional_id=name,
                producer_id=one.producer_id,
                transaction_state=one.state.value,
            )
            for name, one in sorted(self.transactions.items())
            if not request.state_filters or one.state.value in request.state_filters
            if not request.producer_id_filters or one.producer_id in request.producer_id_filters
            if version < 2 or not pattern or re.fullmatch(pattern, name)
        ]
        return Answer(error_code=table.NONE, transaction_states=rows)

    def _offset_fetch_request(self, request: Any) -> Answer:
        held = {
            key
            for one in self.transactions.values()
            if one.state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
            for key in one.offsets
        }

        def row(topic: str, number: int) -> Answer:
            key = (request.group_id, f"{topic}-{number}")
            if request.require_stable and key in held:
                return Answer(
                    partition_index=number,
                    error_code=UNSTABLE_OFFSET_COMMIT,
                    committed_offset=-1,
                    metadata="",
                )
            offset, metadata = self.groups.get(key, (-1, ""))
            return Answer(
                partition_index=number,
                error_code=table.NONE,
                committed_offset=offset,
                metadata=metadata,
            )

        wanted = {t.name: t.partition_indexes for t in request.topics or ()}
        if request.topics is None:  # all that the group has
            for group, name in self.groups:
                topic, _, number = name.rpartition("-")
                if group == request.group_id:
                    wanted.setdefault(topic, []).append(int(number))
        topics = [
            Answer(name=topic, partitions=[row(topic, n) for n in numbers])
            for topic, numbers in wanted.items()
        ]
        return Answer(error_code=table.NONE, topics=topics)

    def _describe_configs_request(self, request: Any) -> Answer:
        names = request.resources[0].configuration_keys
        configs = [Answer(name=name, value=SETTINGS[name]) for name in names]
        return Answer(results=[Answer(error_code=table.NONE, configs=configs)])

    # -- what leaders are asked ---------------------------------------------------------------

    def _metadata_request(self, request: Any) -> Answer:
        wanted = {topic.name for topic in request.topics}
        rows: dict[str, list[Answer]] = {name: [] for name in wanted}
        for name in sorted(self.partitions):
            topic, _, number = name.rpartition("-")
            if topic in wanted:
                rows[topic].append(Answer(partition_index=int(number), leader_id=0))
        return Answer(topics=[Answer(name=name, partitions=row) for name, row in rows.items()])

    def _list_offsets_request(self, request: Any) -> Answer:
        def offset(topic: str, number: int) -> int:
            one = self.partitions[f"{topic}-{number}"]
            return one.stable_offset() if request.isolation_level else len(one.log)

        topics = [
            Answer(
                name=topic.name,
                partitions=[
                    Answer(
                        partition_index=row.partition_index,
                        error_code=table.NONE,
                        offset=offset(topic.name, row.partition_index),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return Answer(topics=topics)

    def _describe_producers_request(self, request: Any) -> Answer:
        def producers(name: str) -> list[Answer]:
            return [
                Answer(
                    producer_id=producer_id,
                    producer_epoch=one.epoch,
                    coordinator_epoch=0,
                    current_txn_start_offset=one.start,
                )
                for producer_id, one in self.partitions[name].leaders.items()
            ]

        topics = [
            Answer(
                name=topic.name,
                partitions=[
                    Answer(
                        partition_index=number,
                        error_code=table.NONE,
                        active_producers=producers(f"{topic.name}-{number}"),
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
        return Answer(topics=topics)

    def _write_txn_markers_request(self, request: Any) -> Answer:
        (marker,) = request.markers
        (topic,) = marker.topics
        (number,) = topic.partition_indexes
        partition = self.partitions[f"{topic.name}-{number}"]
        fenced = marker.producer_epoch < partition.leaders[marker.producer_id].epoch
        if not fenced:
            partition.end(
                marker.producer_id, marker.producer_epoch, commit=marker.transaction_result
            )
        row = Answer(error_code=table.INVALID_PRODUCER_EPOCH if fenced else table.NONE)
        return Answer(markers=[Answer(topics=[Answer(partitions=[row])])])

    # -- what happens by itself ---------------------------------------------------------------

    def write_markers(self) -> None:
        """Complete what is prepared: markers to every partition, offsets to their groups."""
        for one in self.transactions.values():
            if one.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
                self._complete(one)

    def abort_timed_out(self) -> None:
        """The coordinator's own sweep: what is open for too long is fenced and aborted."""
        for one in self.transactions.values():
            if one.state is State.ONGOING and self._now_ms() >= one.start_ms + one.timeout_ms:
                self._fence(one, "timeout")

    def expire(self, name: str) -> None:
        """Forget an id, as after `transactional.id.expiration.ms`; an open one never expires."""
        if self.transactions[name].state in (
            State.EMPTY,
            State.COMPLETE_COMMIT,
            State.COMPLETE_ABORT,
        ):
            del self.transactions[name]

    def open_ids(self) -> list[str]:
        """Return what holds readers back."""
        over = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        return sorted(name for name, one in self.transactions.items() if one.state not in over)

    # -- inside -------------------------------------------------------------------------------

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def _own(self, name: str, pid: int, epoch: int) -> tuple[Transaction | None, int]:
        one = self.transactions.get(name)
        if one is None or one.producer_id != pid:
            return None, table.INVALID_PRODUCER_ID_MAPPING
        if one.producer_epoch != epoch:
            return None, table.FENCED
        if one.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            return None, table.CONCURRENT
        return one, table.NONE

    def _add(self, one: Transaction, partitions: Iterable[str]) -> None:
        if one.state is not State.ONGOING:
            one.state, one.start_ms = State.ONGOING, self._now_ms()
            one.partitions, one.offsets = set(), {}
            self._on_begin(one)
        one.partitions.update(partitions)

    def _bump(self, one: Transaction) -> None:
        if one.producer_epoch >= table.LARGEST_EPOCH:
            one.previous_producer_id = one.producer_id
            one.producer_id, one.producer_epoch = self._new_producer_id(), 0
        else:
            one.producer_epoch += 1

    def _fence(self, one: Transaction, why: str) -> None:
        one.producer_epoch += 1
        self._prepare(one, "abort", why)

    def _prepare(self, one: Transaction, how: str, why: str) -> None:
        self._on_end(one, how, why)
        one.state = State.PREPARE_COMMIT if how == "commit" else State.PREPARE_ABORT
        if not self._slow_markers():
            self._complete(one)

    def _complete(self, one: Transaction) -> None:
        commit = one.state is State.PREPARE_COMMIT
        for name in one.partitions:
            if name.startswith(f"{OFFSETS_TOPIC}-") or self._skips(one, name):
                continue
            partition = self.partitions.setdefault(name, Partition())
            partition.end(one.producer_id, one.producer_epoch, commit=commit)
        if commit:
            self.groups.update(one.offsets)
        one.state = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        one.partitions, one.offsets = set(), {}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _refusal(name: str, request: Any, code: int) -> Answer:
    """Return an answer of the right shape with a code everywhere."""
    answer = Answer(error_code=code, producer_id=-1, producer_epoch=-1, transaction_states=[])
    answer.results = [Answer(error_code=code, configs=[])]
    if name == "FindCoordinatorRequest":
        answer.coordinators = [
            Answer(key=key, error_code=code, node_id=-1) for key in request.coordinator_keys
        ]
    elif name == "DescribeTransactionsRequest":
        answer.transaction_states = [
            Answer(transactional_id=one, error_code=code) for one in request.transactional_ids
        ]
    elif name == "AddPartitionsToTxnRequest":
        rows = [
            Answer(partition_error_code=code)
            for topic in request.v3_and_below_topics
            for _ in topic.partitions
        ]
        answer.results_by_topic_v3_and_below = [Answer(results_by_partition=rows)]
    elif name in ("TxnOffsetCommitRequest", "OffsetFetchRequest"):
        answer.topics = []
        if name == "TxnOffsetCommitRequest":
            rows = [Answer(error_code=code) for topic in request.topics for _ in topic.partitions]
            answer.topics = [Answer(partitions=rows)]
    return answer
