"""The newest run of an application owns it on the cluster; a log that knows less is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.clients.transactional_id import TransactionalId
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.ownership import Ownership
from connectors.pipeline import run as run_module
from connectors.pipeline.run import Run
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.takeover import Takeover
from connectors.pipeline.witness import CommittedToken, await_ends, newer_than
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.wire_client import AnswerLostError
from tests.both_halves import KafkaBothHalves
from tests.simulation.end_txn_table import LARGEST_EPOCH, State
from tests.simulation.fake_cluster import FakeCluster, Transaction
from tests.simulation.fake_wire import FakeWire
from tests.simulation.virtual_clock import VirtualClock
from tests.unit.samples import committable, decision
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DecisionLogError,
    FencedError,
    IdentityMismatchError,
    PhaseOneError,
)
from transactions.events import Event, subscribe
from transactions.log_backend import LocalFileBackend, MemoryBackend
from transactions.log_location import LogLocation
from transactions.log_state import LogState

HOUR_S = 3600.0
OWNER = "app.owner"


class Cluster:
    """A cluster without faults, and the requests that it was sent."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fake = FakeCluster(self.clock.now_ms)
        self.asked: list[str] = []
        self.lose = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def wire(self) -> CoordinatorWire:
        made = CoordinatorWire({"bootstrap.servers": "fake:9092"})
        made._wire = FakeWire(self._exchange, self.clock)
        return made

    def _exchange(self, request: Any) -> Any:
        self.asked.append(type(request).__name__)
        if self.asked[-1] == "ListTransactionsRequest":
            self.meanwhile()
        answer = self.fake.handle(request)
        if self.lose and type(request).__name__ == "InitProducerIdRequest":
            self.lose -= 1
            self.clock.sleep(10)
            raise AnswerLostError("injected")
        return answer

    def opened(self, name: str, state: State = State.ONGOING) -> None:
        self.fake.transactions[name] = Transaction(name, 99, 0, 60_000, state)

    def deadline(self) -> Deadline:
        return Deadline(30, self.clock)

    def owned(self) -> tuple[Ownership, CoordinatorWire]:
        made, wire = Ownership("app", self.clock), self.wire()
        made.claim(wire, 60_000, self.deadline())
        return made, wire

    def sink(self, name: str = "out") -> KafkaBothHalves:
        options = KafkaSink(bootstrap_servers="fake:9092", topic=name, name=name)
        made = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=10)
        made._wire = self.wire()
        return made


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def take_over(cluster: Cluster, backend: MemoryBackend) -> Takeover:
    """Return the takeover of a run that has claimed the application."""
    made = Takeover("app", "folder", clock=cluster.clock)
    made.write_to({"out": cluster.sink()})
    log = DecisionLog.open(backend, application_id="app", identity={}, clock=cluster.clock)
    made.claim(log, cluster.deadline())
    return made


def check(cluster: Cluster, run: tuple[Ownership, CoordinatorWire]) -> None:
    run[0].check_now(run[1], 60_000, cluster.deadline())


def test_a_commit_that_does_not_end_is_told_with_the_wait_for_it(cluster: Cluster):
    name = "app.10gaaaa1.1.p.0"
    cluster.opened(name, State.PREPARE_COMMIT)
    with pytest.raises(BrokerUnavailableError, match="still being committed") as refused:
        await_ends(cluster.wire(), "app", LogState(log_id="10gaaaa1"), cluster.deadline())
    assert refused.value.where == name
    assert refused.value.cause
    assert "checkpoint_timeout=30 s" in refused.value.option


# -- who owns an application -----------------------------------------------------------------------


def test_the_newest_start_owns_the_application(cluster):
    older = cluster.owned()
    check(cluster, older)
    newer = cluster.owned()
    with pytest.raises(FencedError) as raised:
        check(cluster, older)
    assert OWNER in raised.value.where
    assert "app_id" in raised.value.option
    check(cluster, newer)


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    yield found
    unsubscribe()


def test_the_older_run_says_once_that_it_was_stopped(cluster, heard):
    """Nothing in its log does: the newer run is on another folder."""
    older, newer = (take_over(cluster, MemoryBackend()) for _ in range(2))
    for _ in range(2):
        with pytest.raises(FencedError):
            older.check_newest(cluster.deadline())
    newer.check_newest(cluster.deadline())
    (event,) = heard
    assert (event.kind, event.fields["app"], event.fields["by"]) == ("fenced", "app", OWNER)


def test_a_newer_run_on_the_same_log_is_told_once_by_the_log(cluster, heard):
    """The log knows who it is."""
    backend = MemoryBackend()
    older, newer = (take_over(cluster, backend) for _ in range(2))
    for _ in range(2):
        with pytest.raises(FencedError, match="owns this checkpoint"):
            older.check_newest(cluster.deadline())
    newer.check_newest(cluster.deadline())
    (event,) = heard
    assert (event.kind, event.fields["run"], event.fields["entry"]) == ("fenced", 1, 2)


def test_it_is_described_beside_the_prepared_transactions(cluster):
    """A checkpoint costs no round trip for it."""
    sink = cluster.sink()
    sink.ownership, _ = cluster.owned()
    sink.check_prepared([], cluster.deadline())
    cluster.asked.clear()
    sink.check_prepared([], cluster.deadline())
    assert cluster.asked == ["DescribeTransactionsRequest"]
    cluster.owned()
    with pytest.raises(FencedError):
        sink.check_prepared([committable()], cluster.deadline())


def test_a_run_that_is_not_the_newest_sweeps_nothing(cluster):
    sink = cluster.sink()
    sink.ownership, _ = cluster.owned()
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={}, clock=cluster.clock)
    name = f"app.{log.log_id}.1.w0.0"
    cluster.opened(name)
    assert sink.lingering(log.owner, cluster.deadline()) == [name]
    cluster.owned()
    with pytest.raises(FencedError):
        sink.lingering(log.owner, cluster.deadline())


def test_an_awake_run_keeps_its_id_for_years(cluster):
    """The broker forgets an id that nobody has initialised for a week."""
    cluster.opened(OWNER, State.EMPTY)
    cluster.fake.transactions[OWNER].producer_epoch = LARGEST_EPOCH - 50
    one = cluster.owned()
    for _ in range(200):  # more than an epoch can count
        cluster.clock.sleep(HOUR_S)
        before = cluster.fake.transactions[OWNER].producer_epoch
        check(cluster, one)
        assert cluster.fake.transactions[OWNER].producer_epoch != before
    cluster.owned()
    with pytest.raises(FencedError):
        check(cluster, one)


def test_a_run_that_slept_through_the_expiry_does_not_go_on_by_itself(cluster):
    """Another run may have come and gone: only a start compares the log with the cluster."""
    one = cluster.owned()
    cluster.clock.sleep(8 * 24 * HOUR_S)
    cluster.fake.expire(OWNER)
    for _ in range(2):
        with pytest.raises(PhaseOneError, match="no longer knows"):
            check(cluster, one)
    assert OWNER not in cluster.fake.transactions, "it must not make the id its own again"
    one[0].claim(one[1], 60_000, cluster.deadline())
    check(cluster, one)


def test_a_refresh_whose_answer_is_lost_is_repeated(cluster):
    one = cluster.owned()
    cluster.clock.sleep(HOUR_S)
    cluster.lose = 100
    with pytest.raises(BrokerUnavailableError):
        check(cluster, one)
    description = one[1].describe([OWNER], cluster.deadline())[OWNER]
    with pytest.raises(PhaseOneError):  # ours, or a newer run's: nobody can tell
        one[0].check(description)
    cluster.lose = 0
    check(cluster, one)
    check(cluster, one)


def test_a_refresh_does_not_take_an_application_back(cluster):
    one = cluster.owned()
    cluster.clock.sleep(HOUR_S)
    cluster.lose = 100
    with pytest.raises(BrokerUnavailableError):
        check(cluster, one)
    cluster.lose = 0
    newer = cluster.owned()
    with pytest.raises(FencedError):
        check(cluster, one)
    check(cluster, newer)


def test_two_sinks_on_one_cluster_have_one_owner(cluster):
    takeover = Takeover("app", "folder", clock=cluster.clock)
    sinks = {name: cluster.sink(name) for name in ("left", "right")}
    takeover.write_to(sinks)
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={}, clock=cluster.clock)
    takeover.claim(log, cluster.deadline())
    for sink in sinks.values():
        sink.check_prepared([], cluster.deadline())


def test_a_restart_yields_to_a_newer_run_on_another_folder(cluster):
    """Its tasks failed because the newer run swept them: a restart must not sweep back."""
    first = Takeover("app", "folder", clock=cluster.clock)
    first.write_to({"out": cluster.sink()})
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={}, clock=cluster.clock)
    first.claim(log, cluster.deadline())
    newer = cluster.owned()
    restart = Takeover("app", "folder", before=first, clock=cluster.clock)
    restart.write_to({"out": cluster.sink()})
    with pytest.raises(FencedError):
        restart.check(log.state, cluster.deadline())
    check(cluster, newer)


def restarted(cluster: Cluster, backend: MemoryBackend, before: Takeover) -> Takeover:
    """Return the takeover of the driver's next run."""
    made = Takeover("app", "folder", before=before, clock=cluster.clock)
    made.write_to({"out": cluster.sink()})
    made.check(read_log(backend), cluster.deadline())
    log = DecisionLog.open(backend, application_id="app", identity={}, clock=cluster.clock)
    made.claim(log, cluster.deadline())
    return made


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_claim_without_an_answer_does_not_fence_the_driver_itself(cluster, heard, is_forgotten):
    """The broker has carried it out, and stays away until the restart has failed."""
    backend = MemoryBackend()
    run = take_over(cluster, backend)
    if is_forgotten:
        cluster.fake.expire(OWNER)
    cluster.lose = 100
    with contextlib.suppress(BrokerUnavailableError):
        restarted(cluster, backend, run)
    cluster.lose = 0
    run = restarted(cluster, backend, run)
    run.check_newest(cluster.deadline())
    assert heard == []
    newer = cluster.owned()
    with pytest.raises(FencedError):
        restarted(cluster, backend, run)
    check(cluster, newer)


def test_a_restart_yields_to_a_newer_run_that_begins_beside_it(cluster):
    """It begins between the look of the restart and its claim."""
    backend = MemoryBackend()
    first = take_over(cluster, backend)
    restart = Takeover("app", "folder", before=first, clock=cluster.clock)
    restart.write_to({"out": cluster.sink()})
    restart.check(read_log(backend), cluster.deadline())
    newer = cluster.owned()
    log = DecisionLog.open(backend, application_id="app", identity={}, clock=cluster.clock)
    with pytest.raises(FencedError) as raised:
        restart.claim(log, cluster.deadline())
    assert OWNER in raised.value.where, "the log would say that this process is the newer run"
    check(cluster, newer)


def test_a_start_reads_the_cluster_twice_and_claims_it_once(cluster):
    takeover = Takeover("app", "folder", clock=cluster.clock)
    takeover.write_to({"out": cluster.sink()})
    takeover.check(LogState(), cluster.deadline())
    assert cluster.asked == [
        "ListTransactionsRequest",
        "FindCoordinatorRequest",
        "OffsetFetchRequest",
    ]


@pytest.mark.parametrize("of_the_run", [4, 5], ids=["that decided", "later"])
def test_a3_half_of_a_transaction_that_was_never_decided_is_refused(cluster, of_the_run: int):
    """A late EndTxn has made it visible: its marker is in it, its source offsets are not."""
    name = f"app.0123abcd.{of_the_run}.w0.0"
    cluster.opened(name, State.COMPLETE_COMMIT)
    cluster.fake.groups[name, "in-0"] = (8, f"8.0.{'ef' * 8}")
    log = dataclasses.replace(LOG, log_id="0123abcd", run_epoch=5, decided_in=4)
    cluster.fake.groups["app", "in-0"] = (60, OWN)
    takeover = Takeover("app", "folder", clock=cluster.clock)
    takeover.write_to({"out": cluster.sink()})
    assert takeover.check(log, cluster.deadline()) is None, "a driver may have written it since"
    with pytest.raises(IdentityMismatchError) as raised:
        takeover.check(log, cluster.deadline())
    assert f"checkpoint 8 in group {name}" in raised.value.where


class Busy:
    """A driver that decides and commits one checkpoint before each look at the cluster."""

    def __init__(self, cluster: Cluster, backend: MemoryBackend, most: int) -> None:
        self._cluster, self._left, self._number = cluster, most, 0
        self.log = DecisionLog.open(backend, application_id="app", identity={}, clock=cluster.clock)
        self.commit()
        cluster.meanwhile = self.write

    def write(self) -> None:
        if self._left:
            self._left -= 1
            self.commit()

    def commit(self) -> None:
        number = self._number = self._number + 1
        token = f"{number}.0.{number:016x}"
        one = committable(checkpoint_id=number, token=token)
        self.log.decide(decision(number, committables=(one,)))
        self._cluster.fake.groups["app", "in-0"] = (number, token)


def started(
    cluster: Cluster, backend: MemoryBackend, **options: bool
) -> tuple[Takeover, DecisionLog]:
    takeover = Takeover("app", "folder", clock=cluster.clock, **options)
    takeover.write_to({"out": cluster.sink()})
    log = DecisionLog.open(
        backend,
        application_id="app",
        identity={},
        check=lambda state: takeover.check(state, cluster.deadline()),
        clock=cluster.clock,
    )
    return takeover, log


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3, 1000])
def test_x15_a_driver_that_commits_all_the_time_is_fenced_by_the_newest(
    cluster, most: int, accepts: bool
):
    """What it commits between the read of the log and the look is no output of a newer log."""
    backend = MemoryBackend()
    busy = Busy(cluster, backend, most)
    takeover, log = started(cluster, backend, accept_duplicates=accepts)
    with pytest.raises(FencedError):
        busy.commit()
    cluster.meanwhile = lambda: None
    takeover.check_again(log, cluster.deadline())
    assert read_log(backend).accepted == ()


def test_a_backup_that_somebody_writes_is_refused_behind_the_fence(cluster):
    """Its driver knows as little of the newer output as it does."""
    backend = MemoryBackend()
    Busy(cluster, backend, 1000)
    name = "app.0123abcd.4.w0.0"
    cluster.opened(name, State.COMPLETE_COMMIT)
    cluster.fake.groups[name, "in-0"] = (1000, f"1000.0.{'ef' * 8}")
    takeover, log = started(cluster, backend)
    cluster.meanwhile = lambda: None
    with pytest.raises(IdentityMismatchError, match="does not know"):
        takeover.check_again(log, cluster.deadline())


def test_a_backup_is_refused_and_has_no_fence(cluster):
    backend = MemoryBackend()
    busy = Busy(cluster, backend, 0)
    cluster.fake.groups["app", "in-0"] = (8, f"8.0.{'ef' * 8}")
    before = backend.list()
    with pytest.raises(IdentityMismatchError, match="does not know"):
        started(cluster, backend)
    assert backend.list() == before
    busy.commit()


# -- what another client's ids are not -------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "app.something",
        "app.owner",
        "app.doctor",
        "app.0123abcd.1.w0",
        "app.0123abcd.one.w0.0",
        "app.0123abcd.1.w0.0.more",
        "app.report.2024.q3.final",
        "app-2.0123abcd.1.w0.0",
        "another.0123abcd.1.w0.0",
    ],
)
def test_b6_an_open_transaction_of_another_client_is_no_other_log(cluster, name: str):
    assert TransactionalId.of("app", name) is None
    cluster.opened(name)
    takeover = Takeover("app", "folder", clock=cluster.clock)
    takeover.write_to({"out": cluster.sink()})
    assert takeover.check(LogState(application_id="app"), cluster.deadline()) == ()


def test_open_transactions_of_another_log_are_refused(cluster):
    cluster.opened("app.0123abcd.1.w0.0")
    takeover = Takeover("app", "folder", clock=cluster.clock)
    takeover.write_to({"out": cluster.sink()})
    takeover.check(LogState(application_id="app", log_id="0123abcd"), cluster.deadline())
    with pytest.raises(ConfigurationError, match="Another decision log"):
        takeover.check(LogState(application_id="app", log_id="89abcdef"), cluster.deadline())


def test_one_that_another_log_begins_until_the_claim_is_refused_as_well(cluster):
    """Two pipelines were restored from one savepoint. The other one decided before our claim: it
    can commit at any moment, and no sweep of ours takes transactions of its log.
    """
    takeover = Takeover("app", "folder", clock=cluster.clock)
    takeover.write_to({"out": cluster.sink()})
    takeover.check(LogState(), cluster.deadline())
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity={}, clock=cluster.clock)
    takeover.claim(log, cluster.deadline())
    cluster.opened(f"app.{log.log_id}.{log.run_epoch}.w0.0")
    takeover.check_again(log, cluster.deadline())
    cluster.opened("app.0123abcd.1.w0.0")
    with pytest.raises(ConfigurationError, match="Another decision log") as raised:
        takeover.check_again(log, cluster.deadline())
    assert f"logs ['0123abcd'], ours is {log.log_id}" in raised.value.where
    cluster.owned()  # it is of a newer run: that one goes on
    with pytest.raises(FencedError):
        takeover.check_again(log, cluster.deadline())


def test_after_that_either_of_the_two_can_go_on(cluster):
    """Each has stopped: the refused start has claimed the application."""
    theirs, other = take_over(cluster, MemoryBackend()), "app.0123abcd.1.w0.0"
    cluster.opened(other)
    backend = MemoryBackend()
    ours = take_over(cluster, backend)
    log = DecisionLog.open(backend, application_id="app", identity={}, clock=cluster.clock)
    with pytest.raises(ConfigurationError) as raised:
        ours.check_again(log, cluster.deadline())
    with pytest.raises(FencedError):
        theirs.check_newest(cluster.deadline())
    assert "start it again if it has stopped" in raised.value.option
    assert "sparkonce transactions abort with its folder" in raised.value.option

    def starts(log_id: str) -> Takeover:
        made = Takeover("app", "folder", clock=cluster.clock)
        made.write_to({"out": cluster.sink()})
        made.check(LogState(application_id="app", log_id=log_id), cluster.deadline())
        return made

    starts("0123abcd").claim(log, cluster.deadline())
    with pytest.raises(ConfigurationError):
        starts(log.log_id)
    cluster.sink().recover_and_abort([other], cluster.deadline())
    starts(log.log_id).claim(log, cluster.deadline())


# -- a wrong address, and a start that failed ------------------------------------------------------


def options(folder: Path, **where: LogLocation) -> RunOptions:
    return RunOptions(
        app_id="app",
        checkpoint=CheckpointLocation(folder),
        sources=[],
        sinks=[],
        checkpoint_timeout_s=10,
        restart_budget_s=1,
        **where,
    )


def test_b5_a_wrong_decision_log_does_not_stop_the_driver_that_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_module, "check_clusters", lambda *_: None)

    running = Run(options(tmp_path / "first"))
    running.open()
    other = Run(options(tmp_path / "second"))
    other.open()
    other.close()
    first = LogLocation(tmp_path / "first" / "decisions")
    wrong = Run(options(tmp_path / "second", decision_log=first))
    looked = Run._check_one_checkpoint

    def busy(self: Run, log: LogState, finished: int) -> None:
        running.log.decide(decision(1))  # a log that moves is no right one for that
        looked(self, log, finished)

    with monkeypatch.context() as beside:
        beside.setattr(Run, "_check_one_checkpoint", busy)
        with pytest.raises(IdentityMismatchError, match="belongs to the log"):
            wrong.open()
    running.check_newest()
    running.log.decide(decision(2))
    running.close()
    folder = LocalFileBackend(tmp_path / "first" / "decisions")
    assert len([name for name in folder.list() if name.isdigit()]) == 3  # a Fence, two decisions


@pytest.mark.parametrize("fails", ["the put", "the look behind it"])
def test_b8_the_fence_of_a_restart_that_failed_is_no_newer_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
):
    """The next restart asks whether a newer driver has come: what it finds is its own."""
    monkeypatch.setattr(run_module, "check_clusters", lambda *_: None)
    before = Run(options(tmp_path))
    before.open()
    before.close()
    before.check_newest()
    restart = Run(options(tmp_path), before)
    put = LocalFileBackend.put_if_absent

    def unsaid(self: LocalFileBackend, name: str, data: bytes) -> bool:
        put(self, name, data)
        raise OSError(5, "Input/output error")

    def away(_log: DecisionLog) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        if fails == "the put":
            disk.setattr(LocalFileBackend, "put_if_absent", unsaid)
        else:
            disk.setattr(DecisionLog, "_check_floor", away)
        with pytest.raises(DecisionLogError):
            restart.open()
    restart.check_newest()
    again = Run(options(tmp_path), restart)
    again.open()
    again.check_newest()
    for older in (before, restart):
        with pytest.raises(FencedError):
            older.check_newest()
    again.close()


# -- what is newer than a log ----------------------------------------------------------------------

OWN = "7.0.00112233aabbccdd"
LOG = LogState(
    application_id="app",
    decision=decision(
        7,
        start_offsets=('{"in":{"0":50}}',),
        end_offsets=('{"in":{"0":60}}',),
        committables=(committable(checkpoint_id=7, token=OWN),),
    ),
)
SETTLED = LogState(
    application_id="app",
    decision=decision(7, end_offsets=('{"in":{"0":60}}',), committables=()),
)


def token(checkpoint: int, offset: int, *, group: str = "app", text: str = "") -> CommittedToken:
    text = text or f"{checkpoint}.0.{'ef' * 8}"
    return CommittedToken(
        checkpoint_id=checkpoint, token=text, group=group, partition="in-0", offset=offset
    )


MARKERS = "app.0123abcd.1.w0.0"


@pytest.mark.parametrize(
    ("log", "seen", "newer"),
    [
        (LOG, token(7, 60, text=OWN), False),
        (LOG, token(6, 50), False),
        (LOG, token(8, 70), True),
        (LOG, token(7, 60), True),  # decided again, by another history
        (LOG, token(6, 51), True),  # fewer and larger checkpoints
        (LOG, token(3, 61), True),
        (LOG, token(6, 99, group=MARKERS), False),  # a marker's offset is a checkpoint
        (LOG, token(8, 8, group=MARKERS), True),
        (LogState(application_id="app"), token(0, 1), True),
        (dataclasses.replace(LOG, accepted=(token(8, 0).token,)), token(8, 70), False),
        (SETTLED, token(7, 60), False),  # its tokens are gone; its end is not
        (SETTLED, token(7, 61), True),
        (SETTLED, token(8, 60), True),
    ],
)
def test_what_is_newer_than_a_log(log: LogState, seen: CommittedToken, newer: bool):
    assert newer_than(log, [seen]) == ([seen] if newer else [])
