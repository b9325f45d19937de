"""Finds a partition without its marker, so that readers really see what was committed.

EndTxn and DescribeTransactions speak for the coordinator. Records become visible by a marker in
each partition, and a broker can leave one out for good (see `connectors.wire.partition_leaders`).
Until somebody writes it, an *abort* under the same producer id would also abort the committed
records. So this check comes before the next transaction begins.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.wire import partition_leaders
from connectors.wire.broker_answers import Answer, Meaning, Request
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.direct_questions import DirectQuestions
from connectors.wire.partition_leaders import Leaders, Unended
from connectors.wire.wire_client import WireClient
from connectors.wire.wire_requests import TransactionDescription
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import BrokerUnavailableError

_ANSWER_S: Final = 5.0
#: Markers follow a commit within milliseconds. We look this many times, with growing pauses, before
#: we also ask the coordinators.
_EARLY_LOOKS: Final = 5
#: After that, a leader that knows nothing of its end could hold up the look.
_LOOKS_WITH_KNOWN_LEADERS: Final = 3
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.25
_ON_ITS_WAY: Final = frozenset({"Ongoing", "PrepareCommit"})
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class CommitVisibility:
    """Looks at the output of one cluster. On the driver; it has connections of its own, since a
    slow answer must not close the connection on which an EndTxn is under way.

    Args:
        kafka: client settings without prefix.
        coordinators: the connection to the coordinators of the same cluster.
    """

    def __init__(self, kafka: Mapping[str, str], coordinators: CoordinatorWire) -> None:
        self._wire = WireClient(kafka, _ANSWER_S)
        self._direct = DirectQuestions(self._wire)
        self._coordinators = coordinators
        self._leaders = Leaders()
        #: From the last look; if true, the ends of the partitions show nothing.
        self._others_write = False

    def close(self) -> None:
        """Close the connections."""
        self._direct.close()
        self._wire.close()

    def hidden(
        self, committed: Sequence[Committable], deadline: Deadline, more: Collection[str] = ()
    ) -> list[Unended]:
        """Return what hides transactions that are proven committed from readers; usually nothing.

        Open transactions of others in the same partitions are not a finding. Without READ on a
        topic they look like ours (see `find_unended`), so that is not a finding either. Once the
        markers are there and the leaders are known, the check takes one round trip to the leaders;
        two where others have begun to write.

        A marker counts even if its leader has not replicated it yet. It takes two failures within
        milliseconds to lose it with its leader and to leave out its repetition as well.

        Args:
            committed: transactions under whose ids no task may write now.
            deadline: until then we wait for markers that are under way, and for missing leaders.
            more: partitions to which they may have written, beside those in the committables.

        Raises:
            BrokerUnavailableError: no leader of a partition answered before the deadline.
        """
        left = sorted({name for one in committed for name in one.partitions} | set(more))
        looks = 0
        while left:
            looks += 1
            held = left
            if looks > _LOOKS_WITH_KNOWN_LEADERS:
                self._leaders.forget(left)
            if not self._others_write:
                lags = self._lags(left, deadline)
                left = [name for name in left if lags.get(name) != 0]
                held = [name for name in left if name in lags]
            clear: set[str] = set()
            if held and looks > _EARLY_LOOKS:
                found, clear = self._look(held, committed, deadline)
                if found:
                    return found
            elif held:
                clear = self._free_of(committed, held, deadline)
            left = [name for name in left if name not in clear]
            if left and deadline.expired():
                raise self._wire.unavailable(f"{', '.join(left[:5])}: no leader, or no marker yet")
            if left:
                deadline.pause(min(_FIRST_PAUSE_S * 2 ** (looks - 1), _LONGEST_PAUSE_S))
        return []

    def offsets_partitions(self, deadline: Deadline) -> set[str]:
        """Return the partitions that keep the offsets of groups. The set is empty if we may not see
        them, or if the cluster is new.

        Raises:
            BrokerUnavailableError: no answer.
        """
        topics = [OFFSETS_TOPIC]
        while (leaders := self._ask(partition_leaders.find_leaders, topics, deadline)) is None:
            if deadline.expired():
                raise self._wire.unavailable(f"{OFFSETS_TOPIC}: no answer")
            deadline.pause(_LONGEST_PAUSE_S)
        existing: set[str] = leaders.existing
        return existing

    def write_commit(self, one: Unended, deadline: Deadline) -> None:
        """Ask the leader for the missing marker. Only for a person's command: see `write_marker`.
        Call `hidden` to see the result.

        Raises:
            AuthenticationError: ALTER or CLUSTER_ACTION on the cluster is missing.
            BrokerUnavailableError: the leader did not confirm it.
        """
        write = functools.partial(partition_leaders.write_marker, committed=True)
        answer: Answer = self._wire.run(write, self._wire, one, deadline, deadline=deadline)
        if answer.meaning is Meaning.AUTHORIZATION:
            self._wire.raise_permanent(Request.WRITE_TXN_MARKERS, answer, one.partition)

    def _lags(self, partitions: Sequence[str], deadline: Deadline) -> dict[str, int]:
        """Do what `stable_lags` does, directly where the leader answers so."""
        leaders = self._leaders_of(partitions, deadline)
        if leaders is None:
            return {}
        lags = dict.fromkeys(set(partitions) - leaders.existing, 0)
        lags |= partition_leaders.stable_lags_directly(self._direct, deadline, leaders)
        if unread := leaders.nodes.keys() - lags.keys():
            self._leaders.forget(unread)
            lags |= self._ask(partition_leaders.stable_lags, sorted(unread), deadline) or {}
        return lags

    def _leaders_of(self, partitions: Sequence[str], deadline: Deadline) -> Leaders | None:
        """Return the leaders; ask for those that are not known. None if nobody answered."""
        # Leaders move: one that leads no more says so, and is forgotten.
        if not self._leaders.nodes.keys() >= set(partitions):
            now = self._ask(partition_leaders.leaders_of, partitions, deadline)
            if now is None:
                return None
            self._leaders.learn(now, partitions)
        return self._leaders.only(partitions)

    def _free_of(
        self, committed: Sequence[Committable], held: Sequence[str], deadline: Deadline
    ) -> set[str]:
        """Return the partitions in which each of the committed transactions has its end."""
        leaders = self._leaders_of(held, deadline)
        if leaders is None:
            return set()
        unended: list[Unended]
        unread: dict[str, Answer | None]
        unended, unread = partition_leaders.find_unended_directly(self._direct, deadline, leaders)
        if any(unread[name] is None for name in leaders.nodes.keys() & unread.keys()):
            question = functools.partial(partition_leaders.find_unended, leaders=leaders)
            answer = self._ask(question, held, deadline)
            if answer is None:
                return set()
            unended, unread = answer
        self._leaders.forget(unread.keys() - _refused(unread))
        ours = {(one.producer_id, one.producer_epoch) for one in committed}
        of_us = [one for one in unended if (one.producer_id, one.producer_epoch) in ours]
        if not unread:
            self._others_write = len(unended) > len(of_us)
        return (set(held) - unread.keys() - {one.partition for one in of_us}) | _refused(unread)

    def _look(
        self, held: Sequence[str], committed: Sequence[Committable], deadline: Deadline
    ) -> tuple[list[Unended], set[str]]:
        """Return (committed but without a marker, partitions that only others hold back)."""
        ids = [one.transactional_id for one in committed]
        before = self._coordinators.describe(ids, deadline)
        answer = self._ask(partition_leaders.find_unended, held, deadline)
        if answer is None:
            return [], set()
        unended, unread = answer
        ours = {(one.producer_id, one.producer_epoch): one for one in committed}
        hidden: list[Unended] = []
        waited_for: set[str] = set()
        for one in unended:
            owner = ours.get((one.producer_id, one.producer_epoch))
            if owner is None:
                continue
            now = before[owner.transactional_id]
            if _is_of(owner, now) and now.state in _ON_ITS_WAY:
                waited_for.add(one.partition)
            elif now.state not in _ON_ITS_WAY | _ABORTED:  # the coordinator has nothing left to do
                hidden.append(one)
        after = self._coordinators.describe(ids, deadline) if hidden else before
        if after != before:
            return [], set()  # meanwhile a transaction began on one of the ids: look again
        return hidden, (set(held) - unread.keys() - waited_for) | _refused(unread)

    def _ask(self, question: Any, partitions: Sequence[str], deadline: Deadline) -> Any:
        """Return the answer, or None if there was none."""
        try:
            return self._wire.run(question, self._wire, partitions, deadline, deadline=deadline)
        except BrokerUnavailableError:
            return None


def _is_of(one: Committable, now: TransactionDescription) -> bool:
    return (now.producer_id, now.start_time_ms) == (one.producer_id, one.start_time_ms)


def _refused(unread: Mapping[str, Answer | None]) -> set[str]:
    """Return the partitions that we may not read."""
    return {
        name
        for name, answer in unread.items()
        if answer is not None and answer.meaning is Meaning.AUTHORIZATION
    }
