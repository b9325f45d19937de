"""The simulation's broker is held against a real one: the same requests, the same answers.

One suite, run twice: over `tests/simulation/fake_cluster.py` and over the shared broker, both
through the product's own `WireClient` and `CoordinatorWire`. Rows that nobody can provoke on a
real broker are in `NOT_PROVOKED`, each with its reason; a test demands that the two lists
together are the whole table.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import GROUP, TRANSACTION, WireClient
from connectors.wire.wire_requests import TransactionDescription
from tests.simulation import end_txn_table as table
from tests.simulation.end_txn_table import Epoch, State
from tests.simulation.fake_cluster import FakeCluster
from tests.simulation.fake_wire import FakeWire
from tests.simulation.virtual_clock import VirtualClock
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import ConfigurationError, OutcomeUnknownError

PROVOKED = (State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
#: Rows of the table without a real broker's word, and why.
NOT_PROVOKED = {
    State.PREPARE_COMMIT: "lasts for the milliseconds until the markers are written",
    State.PREPARE_ABORT: "lasts for the milliseconds until the markers are written",
}
OFFSETS = {-2: Epoch.SMALLER, -1: Epoch.RETRY, 0: Epoch.EQUAL, 1: Epoch.LARGER}


class Side:
    """One of the two brokers, as a test drives it: raw requests, one at a time."""

    def __init__(self, wire: WireClient, clock: Clock, topic: str, name: str) -> None:
        self.wire, self.clock, self.topic, self.name = wire, clock, topic, name
        self.verbs = CoordinatorWire({"bootstrap.servers": "unused"})
        self.verbs._wire = wire
        self.pid, self.epoch = -1, -1

    def deadline(self, seconds: float = 20.0) -> Deadline:
        return Deadline(seconds, self.clock)

    def send(self, request: Any, *, kind: int = TRANSACTION, key: str | None = None) -> Any:
        """Send to a coordinator; what is only too early is asked again, as the product does."""
        deadline = self.deadline()
        name = self.name if key is None else key

        async def once() -> Any:
            nodes = await self.wire.coordinators(kind, [name], deadline)
            return await self.wire.send(nodes[name], request, deadline) if nodes else None

        while True:
            response = self.wire.run(once, deadline=deadline)
            if response is not None and _code(response) not in (*table.NOT_NOW, table.CONCURRENT):
                return response
            assert not deadline.expired()
            self.wire.forget(kind, [name])
            self.clock.sleep(0.02)

    def init(self, timeout_ms: int = 60_000) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        response = self.send(request)
        if not response.error_code:
            self.pid, self.epoch = response.producer_id, response.producer_epoch
        return response.error_code

    def add(self, *, pid: int | None = None, epoch: int | None = None) -> int:
        """AddPartitionsToTxn, which opens a transaction."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.pid if pid is None else pid,
            v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=self.topic, partitions=[0])
            ],
            max_version=3,
        )
        return _code(self.send(request))

    def end(
        self,
        *,
        commit: bool,
        version: int = 4,
        name: str | None = None,
        pid: int | None = None,
        epoch: int | None = None,
    ) -> int:
        request = EndTxnRequest(
            transactional_id=self.name if name is None else name,
            producer_id=self.pid if pid is None else pid,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commit,
            min_version=version,
            max_version=version,
        )
        return self.send(request, key=name).error_code

    def offsets(self, group: str, offset: int, token: str) -> int:
        ids = {"producer_id": self.pid, "producer_epoch": self.epoch, "group_id": group}
        added = AddOffsetsToTxnRequest(transactional_id=self.name, max_version=3, **ids)
        assert self.send(added).error_code == table.NONE
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = row.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=token
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self.name,
            topics=[row(name=self.topic, partitions=[part])],
            max_version=3,
            **ids,
        )
        return _code(self.send(commit, kind=GROUP, key=group))

    def describe(self) -> TransactionDescription:
        """Describe when the markers of an end are written."""
        deadline = self.deadline()
        while True:
            found = self.verbs.describe([self.name], deadline)[self.name]
            if not found.state.startswith("Prepare"):
                return found
            self.clock.sleep(0.01)

    def facts(self) -> tuple[str, int, bool, frozenset[str]]:
        """State, epoch since the first init, whether a start is known, what is written to."""
        now = self.describe()
        assert now.producer_id == self.pid or now.error
        named = frozenset(
            part.replace(self.topic, "topic")
            if part.startswith(self.topic)
            else part.rpartition("-")[0]
            for part in now.partitions
        )
        return now.state or now.error, now.producer_epoch, now.start_time_ms > 0, named

    def committable(self) -> Committable:
        now = self.describe()
        return Committable(
            sink="s",
            transactional_id=self.name,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            start_time_ms=now.start_time_ms,
            timeout_ms=60_000,
            checkpoint_id=0,
            subtask=0,
            attempt="1.0",
            token="token",
            record_count=0,
            fingerprint="",
        )


def _code(response: Any) -> int:
    """The one error code of an answer, wherever its kind keeps it."""
    if hasattr(response, "results_by_topic_v3_and_below"):
        rows = response.results_by_topic_v3_and_below[0].results_by_partition
        return rows[0].partition_error_code
    if hasattr(response, "topics") and not hasattr(response, "error_code"):
        return response.topics[0].partitions[0].error_code
    code: int = response.error_code
    return code


# -- how to bring an id into a state ---------------------------------------------------------


def empty(side: Side) -> None:
    """Two epochs are below the present one, so that "smaller" and "retry" differ."""
    for _ in range(3):
        assert side.init() == table.NONE


def ongoing(side: Side) -> None:
    empty(side)
    assert side.add() == table.NONE


def complete_commit(side: Side) -> None:
    ongoing(side)
    assert side.end(commit=True) == table.NONE
    side.describe()


def complete_abort(side: Side) -> None:
    ongoing(side)
    assert side.end(commit=False) == table.NONE
    side.describe()


INTO: dict[State, Callable[[Side], None]] = {
    State.EMPTY: empty,
    State.ONGOING: ongoing,
    State.COMPLETE_COMMIT: complete_commit,
    State.COMPLETE_ABORT: complete_abort,
}


def test_the_whole_table_is_provoked_or_has_its_reason():
    assert {*PROVOKED, *NOT_PROVOKED} == set(State) == set(table.UP_TO_4) == set(table.VERSION_5)
    assert set(OFFSETS.values()) == set(Epoch)
    assert set(INTO) == set(PROVOKED)


class Suite:
    """Every test here runs over both brokers."""

    @pytest.mark.parametrize("version", [1, 4, 5])
    @pytest.mark.parametrize("state", PROVOKED, ids=lambda one: one.value)
    def test_end_txn_answers_by_the_table(self, side, state, version):
        """Every row of a state: commit or abort, an epoch that is smaller, equal or larger."""
        INTO[state](side)
        rows = sorted(itertools.product(OFFSETS, (True, False)), key=lambda row: row[0] == 0)
        for offset, commit in rows:
            expected = table.end_txn(
                version,
                known=True,
                same_producer=True,
                pending=False,
                state=state,
                commit=commit,
                epoch=OFFSETS[offset],
            )
            before = side.describe().producer_epoch
            said = side.end(commit=commit, version=version, epoch=side.epoch + offset)
            assert said == expected.code, (offset, commit)
            bumped = side.describe().producer_epoch - before
            bumps = expected.effect in (table.Effect.END_AND_BUMP, table.Effect.EMPTY_ABORT)
            assert bumped == int(bumps), (offset, commit)
            if expected.effect is not table.Effect.NOTHING:
                side.init()
                INTO[state](side)

    @pytest.mark.parametrize("version", [1, 4, 5])
    def test_end_txn_of_another_producer_or_an_unknown_id(self, side, version):
        ongoing(side)
        for commit in (True, False):
            other = side.end(commit=commit, version=version, pid=side.pid + 1_000_000)
            unknown = side.end(commit=commit, version=version, name=f"{side.name}9")
            assert (other, unknown) == (table.INVALID_PRODUCER_ID_MAPPING,) * 2
        assert side.facts()[0] == "Ongoing"

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (4, 5, table.INVALID_TXN_STATE),  # committed, and yet it looks lost
            (5, 4, table.FENCED),  # committed, and yet it looks lost
            (4, 4, table.NONE),
            (5, 5, table.NONE),
        ],
    )
    def test_a_repeated_commit_with_the_same_or_another_version(
        self, side, first, second, expected
    ):
        ongoing(side)
        epoch = side.epoch
        assert side.end(commit=True, version=first, epoch=epoch) == table.NONE
        side.describe()
        assert side.end(commit=True, version=second, epoch=epoch) == expected

    def test_x7_a_late_commit_at_version_4_ends_the_next_transaction_of_the_id(self, side):
        """The hole that rules 3 and 5 close: the fake must have it too."""
        complete_commit(side)
        assert side.add() == table.NONE
        assert side.end(commit=True) == table.NONE
        assert side.facts()[0] == "CompleteCommit"

    # -- InitProducerId, AddPartitionsToTxn and the broker's own timeout

    @pytest.mark.parametrize("state", PROVOKED, ids=lambda one: one.value)
    def test_init_producer_id_bumps_and_aborts_what_is_open(self, side, state):
        INTO[state](side)
        before = side.epoch
        old = side.committable()
        assert side.init() == table.NONE
        assert side.epoch - before == (2 if state is State.ONGOING else 1)
        assert side.facts() == ("Empty", side.epoch, False, frozenset())
        assert side.end(commit=True, epoch=before) == table.FENCED
        assert side.verbs.commit([old], side.deadline()) == {side.name: Outcome.UNKNOWN}

    def test_init_producer_id_of_a_new_id_and_with_a_timeout_that_is_refused(self, side):
        assert side.init(2_000_000_000) == 50
        assert side.facts()[0] == "TRANSACTIONAL_ID_NOT_FOUND"
        assert side.init() == table.NONE
        assert side.facts() == ("Empty", 0, False, frozenset())
        with pytest.raises(ConfigurationError):
            side.verbs.fence(side.name, 2_000_000_000, side.deadline())

    def test_init_producer_id_by_who_holds_the_id_and_by_who_held_it(self, side):
        """What keeps the owner's id from its expiry, and tells that it is another's (KIP-360)."""
        first = side.verbs.fence(side.name, 60_000, side.deadline())
        kept = side.verbs.fence(side.name, 60_000, side.deadline(), held=first)
        assert kept == (first[0], first[1] + 1)
        again = side.verbs.fence(side.name, 60_000, side.deadline(), held=first)
        assert again == kept, "the answer to the first one may have been lost"
        newer = side.verbs.fence(side.name, 60_000, side.deadline())
        assert newer == (first[0], first[1] + 2)
        for held in (first, kept):
            assert side.verbs.fence(side.name, 60_000, side.deadline(), held=held) is None
        now = side.describe()
        assert (now.state, now.producer_id, now.producer_epoch) == ("Empty", *newer)

    def test_all_ids_are_listed_whatever_their_state(self, side):
        application_id = side.name.partition(".")[0]
        assert side.verbs.list_open(application_id, None, side.deadline(), ()) == []
        complete_commit(side)
        (row,) = side.verbs.list_open(application_id, None, side.deadline(), ())
        assert (row.transactional_id, row.state) == (side.name, "CompleteCommit")
        assert side.verbs.cluster_id

    def test_groups_are_read_whole_and_those_without_offsets_are_empty(self, side):
        none = side.verbs.read_groups([side.name, "nobody"], side.deadline())
        assert none == {side.name: {}, "nobody": {}}

    @pytest.mark.parametrize("state", PROVOKED, ids=lambda one: one.value)
    def test_add_partitions_opens_only_for_the_same_producer_and_epoch(self, side, state):
        INTO[state](side)
        before = side.describe()
        assert side.add(epoch=side.epoch - 1) == table.FENCED
        assert side.add(epoch=side.epoch + 1) == table.FENCED
        assert side.add(pid=side.pid + 1_000_000) == table.INVALID_PRODUCER_ID_MAPPING
        assert side.describe() == before
        assert side.add() == table.NONE
        now = side.describe()
        assert side.facts() == ("Ongoing", side.epoch, True, frozenset({"topic-0"}))
        assert (now.start_time_ms == before.start_time_ms) is (state is State.ONGOING)

    @pytest.mark.parametrize("commit", [True, False])
    def test_start_time_and_producer_survive_the_end(self, side, commit):
        """The proof of the recovery table."""
        ongoing(side)
        before = side.describe()
        assert side.end(commit=commit) == table.NONE
        after = side.describe()
        assert after.start_time_ms == before.start_time_ms > 0
        assert (after.producer_id, after.producer_epoch) == (
            before.producer_id,
            before.producer_epoch,
        )
        assert after.state == ("CompleteCommit" if commit else "CompleteAbort")
        assert after.partitions == frozenset()

    def test_after_the_brokers_own_timeout(self, side):
        """Aborted with one epoch more; the start time stays; the old epoch is fenced."""
        side.init(5_000)
        assert side.add() == table.NONE
        before = side.describe()
        deadline = side.deadline(30.0)
        while side.describe().state == "Ongoing":
            assert not deadline.expired()
            side.clock.sleep(0.2)
        after = side.describe()
        assert after.state == "CompleteAbort"
        assert after.producer_epoch == before.producer_epoch + 1
        assert after.start_time_ms == before.start_time_ms
        assert side.end(commit=True) == side.end(commit=False) == table.FENCED
        assert side.end(commit=True, version=5) == table.INVALID_TXN_STATE
        assert side.add() == table.FENCED

    # -- offsets, describe and list

    @pytest.mark.parametrize("commit", [True, False])
    def test_offsets_of_a_transaction(self, side, commit):
        group, key = f"{side.name}-group", f"{side.topic}-0"
        ongoing(side)
        assert side.offsets(group, 42, "token") == table.NONE
        assert side.facts()[3] == {"topic-0", "__consumer_offsets"}
        assert side.verbs.read_markers(group, [key], side.deadline(), stable=False) == {}
        with pytest.raises(OutcomeUnknownError, match="UNSTABLE_OFFSET_COMMIT"):
            side.verbs.read_markers(group, [key], side.deadline(3.0))
        assert side.end(commit=commit) == table.NONE
        side.describe()
        found = side.verbs.read_markers(group, [key], side.deadline())
        assert found == ({key: (42, "token")} if commit else {})

    def test_list_filters_and_describe_of_an_unknown_id(self, side):
        ongoing(side)
        application = side.name.partition(".")[0]
        found = side.verbs.list_open(application, "log", side.deadline())
        assert [(one.transactional_id, one.producer_id, one.state) for one in found] == [
            (side.name, side.pid, "Ongoing")
        ]
        for stranger, log in ((application[:-1], "log"), (application, "lo"), (application, "l.g")):
            assert side.verbs.list_open(stranger, log, side.deadline()) == []
        both = side.verbs.describe([f"{side.name}9", side.name], side.deadline())
        assert both[f"{side.name}9"].error == "TRANSACTIONAL_ID_NOT_FOUND"
        assert both[side.name].state == "Ongoing"
        assert side.end(commit=False) == table.NONE
        side.describe()
        assert side.verbs.list_open(application, "log", side.deadline()) == []


class TestFake(Suite):
    @pytest.fixture
    def side(self) -> Iterator[Side]:
        clock = VirtualClock()
        clock.sleep(1_000.0)
        cluster = FakeCluster(clock.now_ms)

        def exchange(request: Any) -> Any:
            clock.sleep(0.002)
            cluster.abort_timed_out()
            return cluster.handle(request)

        yield from ending(Side(FakeWire(exchange, clock), clock, "t", new_name()))


class TestReal(Suite):
    @pytest.fixture
    def side(self, bootstrap: str, topic: Callable[..., str]) -> Iterator[Side]:
        wire = WireClient({"bootstrap.servers": bootstrap}, 20.0)
        yield from ending(Side(wire, SYSTEM_CLOCK, topic(), new_name()))


def new_name() -> str:
    return f"conformance-{uuid.uuid4().hex[:10]}.log.1.a.0"


def ending(side: Side) -> Iterator[Side]:
    """Leave nothing open behind."""
    yield side
    if side.describe().state == "Ongoing":
        side.verbs.fence(side.name, 60_000, side.deadline())
    side.verbs.close()
