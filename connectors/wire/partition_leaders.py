"""Asks partition leaders where readers stand, and which transactions hold readers back.

CompleteCommit from a coordinator does not yet mean that readers see the records: every partition
needs a marker for that. Since KRaft's metadata cache was rewritten (KAFKA-20734, seen in Kafka
4.4.0) a coordinator treats a partition *without a leader at that moment* as deleted: it writes no
marker to it, and completes the transaction. The records stay behind an open transaction that
nothing will ever end. Only the partition's leader knows this, so we ask the leader.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from connectors.wire import broker_answers
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.wire_client import AnswerLostError, NotSentError, WireClient
from connectors.wire.wire_rounds import by_node
from transactions.clock import Deadline

_LATEST: Final = -1
_UNCOMMITTED, _COMMITTED = 0, 1

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Unended:
    """A transaction without an end in one partition, as the partition's leader sees it.

    Attributes:
        partition: ``topic-partition``.
        producer_id: of the transaction's producer.
        producer_epoch: likewise.
        coordinator_epoch: of the last marker of this producer here, -1 before the first.
        start_offset: of its first record; readers of committed records stop there.
    """

    partition: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int

    def __str__(self) -> str:
        """Return the text for an error."""
        return (
            f"{self.partition} from offset {self.start_offset}, "
            f"producer {self.producer_id}/{self.producer_epoch}"
        )


@dataclasses.dataclass(slots=True)
class Leaders:
    """The leaders of partitions, according to the metadata.

    Attributes:
        nodes: partition -> broker; partitions without a leader are missing.
        existing: every partition of the requested topics that we may see.
    """

    nodes: dict[str, int] = dataclasses.field(default_factory=dict)
    existing: set[str] = dataclasses.field(default_factory=set)

    def only(self, partitions: Collection[str]) -> Leaders:
        """Return the leaders of some partitions only."""
        nodes = {name: self.nodes[name] for name in partitions if name in self.nodes}
        return Leaders(nodes, self.existing.intersection(partitions))

    def learn(self, now: Leaders, partitions: Collection[str]) -> None:
        """Replace what is known about some partitions."""
        self.forget(partitions)
        self.nodes.update(now.nodes)
        self.existing |= now.existing

    def forget(self, partitions: Collection[str]) -> None:
        """Drop what is known about some partitions."""
        for name in partitions:
            self.nodes.pop(name, None)
        self.existing.difference_update(partitions)


async def find_leaders(wire: WireClient, topics: Iterable[str], deadline: Deadline) -> Leaders:
    """Ask one broker's metadata.

    Raises:
        NotSentError, AnswerLostError: no broker answered.
    """
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))],
        allow_auto_topic_creation=False,
        min_version=4,
        max_version=8,
    )
    response = await wire.send(await wire.any_broker(), request, deadline)
    found = Leaders()
    for name, row in _rows(response):
        found.existing.add(name)
        if row.leader_id >= 0:
            found.nodes[name] = row.leader_id
    return found


async def leaders_of(wire: WireClient, partitions: Iterable[str], deadline: Deadline) -> Leaders:
    """Ask one broker's metadata for some partitions only.

    Raises:
        NotSentError, AnswerLostError: no broker answered.
    """
    wanted = set(partitions)
    all_of_them = await find_leaders(wire, _by_topic(wanted), deadline)
    return all_of_them.only(wanted)


async def stable_lags(
    wire: WireClient, partitions: Sequence[str], deadline: Deadline
) -> dict[str, int]:
    """Return how far readers of committed records stay behind each partition's end.

    Needs DESCRIBE on the topics. 0 means that everything written there so far is decided *and*
    visible. A partition that does not exist counts as 0. A partition is missing if its leader gives
    no answer now.
    """
    leaders = await leaders_of(wire, partitions, deadline)

    async def ends(isolation: int) -> dict[str, int]:
        async def ask(node: int, names: Sequence[str]) -> dict[str, int]:
            return _offsets_in(await wire.send(node, _list_offsets(names, isolation), deadline))

        return await _of_all(wire, leaders.nodes, ask)

    # The end first: a commit between the two answers must not look held back.
    ends_of_log, ends_of_readers = await ends(_UNCOMMITTED), await ends(_COMMITTED)
    absent = dict.fromkeys(set(partitions) - leaders.existing, 0)
    return absent | _lags(ends_of_log, ends_of_readers)


def stable_lags_directly(
    direct: DirectQuestions, deadline: Deadline, leaders: Leaders
) -> dict[str, int]:
    """Do what `stable_lags` does for partitions that exist, on this thread. A partition is missing
    if its leader does not answer at once.
    """
    names = by_node(leaders.nodes)
    # A broker answers one connection in order. The end first, as above.
    questions = {
        node: [_list_offsets(names[node], isolation) for isolation in (_UNCOMMITTED, _COMMITTED)]
        for node in names
    }
    lags: dict[str, int] = {}
    for of_log, of_readers in direct.ask(questions, deadline).values():
        lags |= _lags(_offsets_in(of_log), _offsets_in(of_readers))
    return lags


def _offsets_in(response: Any) -> dict[str, int]:
    return {
        name: row.offset
        for name, row in _rows(response)
        if _is_done(broker_answers.read(Request.LIST_OFFSETS, row.error_code))
    }


def _lags(ends_of_log: Mapping[str, int], ends_of_readers: Mapping[str, int]) -> dict[str, int]:
    return {
        name: max(0, ends_of_log[name] - ends_of_readers[name])
        for name in ends_of_log.keys() & ends_of_readers.keys()
    }


async def find_unended(
    wire: WireClient,
    partitions: Sequence[str],
    deadline: Deadline,
    leaders: Leaders | None = None,
) -> tuple[list[Unended], dict[str, Answer | None]]:
    """Return every transaction without an end in the partitions, and the unread partitions: the
    leader's answer, or None if there was none.

    Needs READ and DESCRIBE on the topics (that is Kafka's rule for DescribeProducers). The answer
    has a row per producer that wrote within `producer.id.expiration.ms` (a day): 3200 rows take
    4 ms to read.

    Args:
        wire: the connections.
        partitions: ``topic-partition``.
        deadline: when to give up.
        leaders: of these partitions, if already known; then no metadata is requested.
    """
    if leaders is None:
        leaders = await leaders_of(wire, partitions, deadline)

    async def ask(node: int, names: Sequence[str]) -> dict[str, _State]:
        answers = [await wire.send(node, one, deadline) for one in _questions(names)]
        return _states(*answers)

    return _unended_of(await _of_all(wire, leaders.nodes, ask), leaders)


def find_unended_directly(
    direct: DirectQuestions, deadline: Deadline, leaders: Leaders
) -> tuple[list[Unended], dict[str, Answer | None]]:
    """Do what `find_unended` does, on this thread; a leader that does not answer at once counts as
    one without an answer.
    """
    names = by_node(leaders.nodes)
    answers = direct.ask({node: _questions(names[node]) for node in names}, deadline)
    states = {name: one for both in answers.values() for name, one in _states(*both).items()}
    return _unended_of(states, leaders)


#: The transactions without an end in a partition, or what its leader answered in their place.
_State: TypeAlias = "list[Unended] | Answer"


def _questions(names: Sequence[str]) -> list[Any]:
    """Return what a leader is asked. Every replica answers DescribeProducers, even one that lags;
    only a leader answers ListOffsets. A recent leader has all acknowledged data. So ListOffsets is
    answered first.
    """
    return [_list_offsets(names, _COMMITTED), _describe_producers(names)]


def _states(offsets: Any, producers: Any) -> dict[str, _State]:
    """Read both answers of one node; a partition that it does not lead is never believed."""
    found: dict[str, _State] = {
        name: broker_answers.read(Request.LIST_OFFSETS, row.error_code)
        for name, row in _rows(offsets)
    }
    led = {name for name, answer in found.items() if _is_done(answer)}
    for name, row in _rows(producers):
        answer = broker_answers.read(Request.DESCRIBE_PRODUCERS, row.error_code)
        if name in led:
            rows = [_unended(name, one) for one in row.active_producers]
            found[name] = rows if _is_done(answer) else answer
    # The answer about the producers may lack a partition, too.
    return {name: state for name, state in found.items() if not _is_done(state)}


def _is_done(state: _State) -> bool:
    return isinstance(state, Answer) and state.meaning is Meaning.DONE


def _unended_of(
    states: Mapping[str, _State], leaders: Leaders
) -> tuple[list[Unended], dict[str, Answer | None]]:
    unread: dict[str, Answer | None] = dict.fromkeys(leaders.existing - states.keys())
    unended: list[Unended] = []
    for name, state in states.items():
        if isinstance(state, Answer):
            unread[name] = state
        else:
            unended += [one for one in state if one.start_offset >= 0]
    return sorted(unended), unread


async def write_marker(
    wire: WireClient, one: Unended, deadline: Deadline, *, committed: bool
) -> Answer:
    """Write the end of a transaction to one partition, past its coordinator.

    Needs ALTER or CLUSTER_ACTION on the cluster. Precondition: the end is decided and known, and
    nobody writes under that producer id any more. The leader compares only the epoch.

    Raises:
        NotSentError, AnswerLostError: not confirmed; look at the partition again.
    """
    leaders = await leaders_of(wire, [one.partition], deadline)
    if one.partition not in leaders.nodes:
        raise NotSentError(f"{one.partition} has no leader now")
    topic, number = _split(one.partition)
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                transaction_result=committed,
                topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
                # As in kafka-transactions.sh: an epoch below the last one here would be fenced.
                coordinator_epoch=max(0, one.coordinator_epoch),
            )
        ],
        max_version=1,  # version 2 adds the transaction version; librdkafka's is 0, the default
    )
    response = await wire.send(leaders.nodes[one.partition], request, deadline)
    row = response.markers[0].topics[0].partitions[0]
    return broker_answers.read(Request.WRITE_TXN_MARKERS, row.error_code)


async def _of_all(
    wire: WireClient,
    nodes: Mapping[str, int],
    ask: Callable[[int, Sequence[str]], Awaitable[dict[str, T]]],
) -> dict[str, T]:
    """Ask every leader for its partitions; the result lacks those of a leader without answer."""

    async def guarded(item: tuple[int, list[str]]) -> dict[str, T]:
        try:
            return await ask(*item)
        except (NotSentError, AnswerLostError):
            return {}

    parts = await wire.together(guarded, list(by_node(nodes).items()))
    return {name: value for part in parts for name, value in part.items()}


def _rows(response: Any) -> Iterator[tuple[str, Any]]:
    """Yield an answer's row of each partition, with the partition's name."""
    for topic in response.topics:
        for row in topic.partitions:
            yield f"{topic.name}-{row.partition_index}", row


def _split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def _by_topic(names: Iterable[str]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = collections.defaultdict(list)
    for name in names:
        topic, number = _split(name)
        topics[topic].append(number)
    return topics


def _unended(name: str, row: Any) -> Unended:
    return Unended(
        partition=name,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        coordinator_epoch=row.coordinator_epoch,
        start_offset=row.current_txn_start_offset,
    )


def _list_offsets(names: Sequence[str], isolation: int) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            topic_class(
                name=topic,
                partitions=[
                    topic_class.ListOffsetsPartition(partition_index=number, timestamp=_LATEST)
                    for number in numbers
                ],
            )
            for topic, numbers in _by_topic(names).items()
        ],
        min_version=2,
        max_version=5,
    )


def _describe_producers(names: Sequence[str]) -> Any:
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
            for topic, numbers in _by_topic(names).items()
        ]
    )
