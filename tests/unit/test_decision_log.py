"""The decision log: dense, fenced, the newest wins, and every doubt is read until known."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import orjson
import pytest

from tests.unit.s3_server import S3Server
from tests.unit.samples import committable, decision
from transactions import decision_log, log_backend
from transactions.decision_log import COMPACT_EVERY, DecisionLog, entry_name, read_log
from transactions.errors import (
    ConfigurationError,
    DecisionLogError,
    FencedError,
    IdentityMismatchError,
    LogCorruptedError,
    LogVersionError,
)
from transactions.log_backend import LocalFileBackend, MemoryBackend
from transactions.log_entries import (
    ACCEPT_LOSS,
    REPLAY,
    Healed,
    Resolved,
    Settled,
    Start,
    _checksum,
)
from transactions.object_store_backend import ObjectStoreBackend
from transactions.restart_strategy import is_retried

IDENTITY = {"sinks": "out"}


def open_log(backend, **fields):
    return DecisionLog.open(backend, **{"application_id": "app", "identity": IDENTITY, **fields})


@pytest.fixture(params=["memory", "s3"])
def backend(request):
    if request.param == "memory":
        yield MemoryBackend()
        return
    with S3Server() as server:
        yield ObjectStoreBackend("s3://bucket/app/log", **server.options())


@pytest.fixture
def memory():
    """Return the backend for what needs thousands of operations."""
    return MemoryBackend()


def test_the_run_epoch_is_the_number_of_the_fence(backend):
    first = open_log(backend)
    first.decide(decision(0))
    second = open_log(backend)
    assert (first.run_epoch, second.run_epoch) == (1, 3)
    assert second.log_id == first.log_id


def test_a_new_run_reads_the_last_decision(backend):
    log = open_log(backend)
    log.decide(decision(0))
    log.decide(decision(1))
    assert open_log(backend).state.decision == decision(1)


def test_x15_an_older_run_can_not_decide_any_more(backend):
    older = open_log(backend)
    newer = open_log(backend)
    with pytest.raises(FencedError, match="newest wins"):
        older.decide(decision(0))
    newer.decide(decision(0))
    assert read_log(backend).decision == decision(0)


class SlowToRead(MemoryBackend):
    """Another driver decides whenever ten entries were read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.older = 0, None

    def get(self, name: str) -> bytes | None:
        self.reads += 1
        if self.older is not None and self.reads % 10 == 0:
            self.older.decide(decision(self.older.state.decision.checkpoint_id + 1))
        return super().get(name)


def test_a_driver_that_decides_while_the_log_is_read_is_fenced():
    """As in a store: a hundred reads there take longer than a checkpoint."""
    backend = SlowToRead()
    older = open_log(backend)
    for number in range(50):
        older.decide(decision(number))
    backend.older, backend.reads = older, 0
    newer = open_log(backend)
    assert backend.reads < 70
    backend.older = None
    assert newer.state == read_log(backend)
    with pytest.raises(FencedError):
        older.check_newest()


def test_of_a_log_that_is_known_only_what_is_new_is_read():
    backend = SlowToRead()
    log = open_log(backend)
    for number in range(5):
        log.decide(decision(number))
    known = read_log(backend)
    log.decide(decision(5))
    backend.reads = 0
    assert read_log(backend, known) == log.state
    assert backend.reads == 1
    for number in range(6, COMPACT_EVERY + 5):
        log.decide(decision(number))
        log.compact_if_due()
    assert read_log(backend, known) == log.state  # what came next is gone: from the floor


def test_x15_an_older_run_sees_the_fence_without_writing(backend):
    older = open_log(backend)
    older.check_newest()
    open_log(backend)
    with pytest.raises(FencedError):
        older.check_newest()


def test_another_application_is_refused_and_changes_nothing(backend):
    open_log(backend)
    before = backend.list()
    with pytest.raises(IdentityMismatchError, match="app_id=other"):
        open_log(backend, application_id="other")
    assert backend.list() == before


def test_a_changed_identity_option_is_named(backend):
    open_log(backend)
    with pytest.raises(IdentityMismatchError, match="sinks=out2"):
        open_log(backend, identity={"sinks": "out2"})


def test_a_healed_committable_takes_the_place_of_the_lost_one(backend):
    log = open_log(backend)
    log.decide(decision(0))
    healed = committable(checkpoint_id=0, token="0.0.healed", transactional_id="app.log.1.p.9")
    log.healed(Healed(checkpoint_id=0, subtask=0, committable=healed))
    assert open_log(backend).state.decision.committables == (healed,)


def test_what_a_person_resolved_is_read_until_the_next_decision(memory):
    log = open_log(memory)
    log.decide(decision(0))
    tokens = tuple(one.token for one in decision(0).committables)
    log.resolve(Resolved(checkpoint_id=0, verdict=REPLAY, tokens=tokens))
    log.resolve(Resolved(checkpoint_id=0, verdict=ACCEPT_LOSS, tokens=tokens[:1], note="ok"))
    expected = {**dict.fromkeys(tokens, REPLAY), tokens[0]: ACCEPT_LOSS}
    assert read_log(memory).resolved == expected
    for _ in range(COMPACT_EVERY + 1):
        log = open_log(memory)  # a snapshot is written on the way
    assert log.state.resolved == expected
    log.decide(decision(1))
    assert read_log(memory).resolved == {}


def test_what_is_settled_has_nothing_left_to_prove(backend):
    """Neither for the next run nor behind a compaction; and one entry says it."""
    log = open_log(backend)
    log.settle()
    log.decide(decision(0))
    log.settle()
    tail = log.state.tail
    log.settle()
    assert log.state.tail == tail == 3
    settled = dataclasses.replace(decision(0), committables=())
    again = open_log(backend)
    assert again.state.decision == settled
    for _ in range(COMPACT_EVERY):
        again = open_log(backend)
    assert again.state.decision == settled
    again.decide(decision(1))
    assert again.state.decision == decision(1)


def test_a_settlement_is_of_one_decision_only(memory):
    log = open_log(memory)
    log.decide(decision(1))
    log._append(Settled(checkpoint_id=0))
    assert read_log(memory).decision == decision(1)


def test_what_an_older_reader_does_not_know_has_a_newer_format(memory):
    """Older software says that the format is newer, and does not take it for corruption."""

    def formats() -> set[tuple[str, int]]:
        return {
            (fields["kind"], fields["format"])
            for name in memory.list()
            if not name.startswith("floor-")
            for fields in [orjson.loads(memory.get(name))]
        }

    log = open_log(memory)
    log.decide(decision(0))
    assert formats() == {("fence", 1), ("decision", 1)}
    log.settle()
    assert formats() == {("fence", 1), ("decision", 1), ("settled", 2)}
    while log.state.tail <= COMPACT_EVERY:
        log.decide(decision(log.state.tail))
    log.compact_if_due()
    assert formats() == {("snapshot", 3)}  # it says which run decided


def test_who_made_the_last_decision_is_known_behind_a_compaction(memory):
    """Its producers, and those of later runs, may have written what the log does not know."""
    log = open_log(memory)
    first = log.run_epoch
    assert log.state.decided_in == 0
    log.decide(decision(0))
    for _ in range(COMPACT_EVERY):
        log = open_log(memory)
    log.compact_if_due()
    assert log.run_epoch > first
    assert read_log(memory).decided_in == first
    log.decide(decision(1))
    assert read_log(memory).decided_in == log.run_epoch


@pytest.mark.parametrize(("checkpoint", "token"), [(0, "nobody's"), (7, "")])
def test_only_the_last_decision_can_be_resolved(backend, checkpoint, token):
    log = open_log(backend)
    log.decide(decision(0))
    tokens = (token,) if token else ()
    with pytest.raises(ConfigurationError, match="last decision"):
        log.resolve(Resolved(checkpoint_id=checkpoint, verdict=ACCEPT_LOSS, tokens=tokens))
    assert read_log(backend).resolved == {}


def test_a_missing_entry_is_corruption(backend):
    log = open_log(backend)
    log.decide(decision(0))
    log.decide(decision(1))
    backend.delete(entry_name(2))
    with pytest.raises(LogCorruptedError, match="gap"):
        read_log(backend)


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_torn_entry_is_corruption(backend, cut):
    open_log(backend).decide(decision(0))
    data = backend.get(entry_name(2))
    backend.delete(entry_name(2))
    backend.put_if_absent(entry_name(2), data[:cut])
    with pytest.raises(LogCorruptedError, match="entry 2"):
        read_log(backend)


def test_an_altered_entry_is_corruption(backend):
    open_log(backend).decide(decision(0))
    data = backend.get(entry_name(2)).replace(b'"checkpoint_id":0', b'"checkpoint_id":9')
    backend.delete(entry_name(2))
    backend.put_if_absent(entry_name(2), data)
    with pytest.raises(LogCorruptedError, match="checksum"):
        read_log(backend)


def test_a_newer_entry_is_refused(backend):
    open_log(backend)
    entry = {**orjson.loads(backend.get(entry_name(1))), "format": 99}
    backend.delete(entry_name(1))
    backend.put_if_absent(entry_name(1), orjson.dumps(entry))
    with pytest.raises(LogVersionError, match="format 99"):
        open_log(backend)


def test_a_newer_committable_and_a_wrong_type_in_an_entry_are_refused(backend):
    """Under a good checksum: what is written there is what a writer wanted to write."""
    open_log(backend).decide(decision(0))
    entry = orjson.loads(backend.get(entry_name(2)))

    def written(**changed: object) -> None:
        body = {**entry["body"], **changed}
        fields = {name: one for name, one in entry.items() if name != "checksum"} | {"body": body}
        backend.delete(entry_name(2))
        checked = {**fields, "checksum": _checksum(fields)}
        backend.put_if_absent(entry_name(2), orjson.dumps(checked))

    written(committables=[{**one, "format": 2} for one in entry["body"]["committables"]])
    with pytest.raises(LogVersionError, match="committable in the decision log"):
        read_log(backend)
    written(checkpoint_id="0")
    with pytest.raises(LogCorruptedError, match="entry 2") as caught:
        read_log(backend)
    assert "checkpoint_id" in caught.value.cause
    written()
    assert read_log(backend).decision == decision(0)


def test_where_reading_begins_outlives_a_compaction_and_an_older_log_has_none(backend):
    log = open_log(backend)
    log.decide(decision(0))
    formats = [orjson.loads(backend.get(entry_name(number)))["format"] for number in (1, 2)]
    assert (read_log(backend).start, formats) == ((), [1, 1])  # as an older version writes it

    log.begin(Start(sources=("one", "two")))
    assert orjson.loads(backend.get(entry_name(3)))["format"] == 2  # which that refuses by number
    for number in range(1, COMPACT_EVERY + 1):
        log.decide(decision(number))
        log.compact_if_due()

    assert backend.get(entry_name(3)) is None
    assert read_log(backend).start == ("one", "two")


def test_entries_of_two_logs_are_not_mixed(backend):
    open_log(backend).decide(decision(0))
    other = MemoryBackend()
    open_log(other).decide(decision(0))
    backend.delete(entry_name(2))
    backend.put_if_absent(entry_name(2), other.get(entry_name(2)))
    with pytest.raises(LogCorruptedError, match="mixed"):
        read_log(backend)


class DoubtfulBackend(MemoryBackend):
    """Its next put raises, before or after it has stored the entry."""

    def __init__(self):
        super().__init__()
        self.doubt = ""
        self.reads_fail = 0

    def put_if_absent(self, name, data):
        doubt, self.doubt = self.doubt, ""
        if doubt == "before":
            raise OSError("no answer")
        stored = super().put_if_absent(name, data)
        if doubt == "after":
            raise OSError("no answer")
        return False if doubt == "own exists" else stored

    def get(self, name):
        if self.reads_fail:
            self.reads_fail -= 1
            raise OSError("no answer")
        return super().get(name)


@pytest.mark.parametrize("doubt", ["after", "own exists"])
def test_a_put_of_unknown_result_that_was_ours_succeeded(doubt):
    """The nonce tells our own entry from another's: aborting here would lose a decision."""
    backend = DoubtfulBackend()
    log = open_log(backend)
    backend.doubt = doubt
    log.decide(decision(0))
    assert read_log(backend).decision == decision(0)


def test_a_put_of_unknown_result_is_read_until_known():
    backend = DoubtfulBackend()
    log = open_log(backend)
    backend.doubt, backend.reads_fail = "after", 2
    log.decide(decision(0))
    assert log.state.decision == decision(0)


def test_a_put_that_did_not_happen_is_an_error_and_no_decision():
    backend = DoubtfulBackend()
    log = open_log(backend)
    backend.doubt = "before"
    with pytest.raises(DecisionLogError, match="not decided"):
        log.decide(decision(0))
    assert read_log(backend).decision is None


class FailsOnce(LocalFileBackend):
    """A local folder; the next fsync of it fails after the entry has got its name."""

    fails = False

    def put_if_absent(self, name, data):
        real = log_backend.sync_folder

        def sync(folder):
            if self.fails:
                self.fails = False
                raise OSError(5, "Input/output error")
            real(folder)

        with mock.patch.object(log_backend, "sync_folder", sync):
            return super().put_if_absent(name, data)


def in_doubt(tmp_path):
    """Return a log whose last decision is in the page cache, and perhaps nowhere else."""
    backend = FailsOnce(tmp_path / "log")
    log = open_log(backend)
    backend.fails = True
    with pytest.raises(DecisionLogError, match="not known; nothing was aborted"):
        log.decide(decision(0))
    assert backend.get(entry_name(2)) is not None
    return log


def test_b2_a_decision_whose_fsync_failed_is_no_decision_yet(tmp_path):
    """A read shows our bytes: they come from the page cache, and a power cut takes them away."""
    log = in_doubt(tmp_path)
    assert log.state.decision is None
    for append in (log.compact_if_due, lambda: log.decide(decision(1))):
        with (
            mock.patch.object(decision_log, "COMPACT_EVERY", 0),
            pytest.raises(DecisionLogError, match="in doubt"),
        ):
            append()


def test_b2_an_entry_in_doubt_is_no_newer_run(tmp_path):
    """A restart asks whether another driver has taken over; our own entry is not one."""
    log = in_doubt(tmp_path)
    log.check_newest()
    open_log(LocalFileBackend(tmp_path / "log"))
    with pytest.raises(FencedError):
        log.check_newest()


def test_b2_the_next_run_syncs_what_it_finds_and_goes_on_from_it(tmp_path, monkeypatch):
    in_doubt(tmp_path)
    synced, real = [], log_backend.sync_folder
    backend = LocalFileBackend(tmp_path / "log")
    monkeypatch.setattr(log_backend, "sync_folder", lambda one: (synced.append(one), real(one)))
    assert read_log(backend).decision == decision(0)
    assert synced == [tmp_path / "log"]
    assert open_log(backend).state.decision == decision(0)


def test_b2_a_name_that_is_taken_is_durable_when_the_put_returns(tmp_path, monkeypatch):
    """A server of a network file system repeats a link() that it has carried out."""
    backend = LocalFileBackend(tmp_path / "log")
    log, real = open_log(backend), os.link

    def link(source, target):
        real(source, target)
        raise FileExistsError(17, "File exists")

    synced, sync = [], log_backend.sync_folder
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(log_backend, "sync_folder", lambda one: (synced.append(one), sync(one)))
    log.decide(decision(0))
    assert synced == [tmp_path / "log"]
    assert read_log(backend).decision == decision(0)


class Unlisted(MemoryBackend):
    """Some of the next looks at the floor fail: the listing is away, or the disk is."""

    def __init__(self):
        super().__init__()
        self.away: list[bool] = []

    def list(self, *, durable=True):
        if not durable and self.away and self.away.pop(0):
            raise OSError(5, "Input/output error")
        return super().list(durable=durable)


def test_b2_an_entry_is_in_doubt_until_the_floor_was_looked_at():
    """It is stored: a restart must not take it for another run's, nor may anything follow it."""
    backend = Unlisted()
    log = open_log(backend)
    backend.away = [True]
    with pytest.raises(DecisionLogError, match="does not answer"):
        log.decide(decision(0))
    log.check_newest()
    with pytest.raises(DecisionLogError, match="in doubt"):
        log.decide(decision(1))
    again = open_log(backend)
    assert again.state.decision == decision(0)
    for _ in range(2):
        with pytest.raises(FencedError):
            log.check_newest()


def test_b2_who_was_fenced_in_a_put_is_told_so_again():
    """It is no doubt: the number has another run's entry."""
    backend = MemoryBackend()
    log = open_log(backend)
    open_log(backend)
    for _ in range(2):
        with pytest.raises(FencedError):
            log.decide(decision(0))


@pytest.mark.parametrize(
    "away",
    [[True], [False, True], [False, False, True]],
    ids=["behind the fence", "behind a snapshot", "behind a new floor"],
)
def test_b8_the_fence_of_a_start_that_failed_is_no_newer_run(away):
    """Only the log that has put it can tell; so its caller keeps that log for the next try."""
    backend, kept = Unlisted(), []
    older = open_log(backend)
    backend.away = [*away]
    with (
        mock.patch.object(decision_log, "COMPACT_EVERY", 0),
        pytest.raises(DecisionLogError, match="does not answer"),
    ):
        open_log(backend, keep=kept.append)
    (tried,) = kept
    tried.check_newest()
    with pytest.raises(FencedError):
        older.check_newest()
    newer = open_log(backend)
    for one in (tried, older):
        with pytest.raises(FencedError):
            one.check_newest()
    newer.check_newest()


@pytest.mark.parametrize("call", ["get", "list"])
def test_b8_a_log_that_does_not_answer_is_asked_again_by_a_restart(tmp_path, monkeypatch, call):
    log = open_log(LocalFileBackend(tmp_path / "log"))

    def away(*_args, **_options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalFileBackend, call, away)
    with pytest.raises(DecisionLogError, match="does not answer") as raised:
        log.check_newest()
    assert is_retried(raised.value)
    with pytest.raises(DecisionLogError, match="does not answer"):
        open_log(LocalFileBackend(tmp_path / "log"))


def test_compaction_bounds_what_a_restart_reads(memory):
    log = open_log(memory)
    for number in range(10 * COMPACT_EVERY):
        log.decide(decision(number))
        log.compact_if_due()
    assert len(memory.list()) <= COMPACT_EVERY + 3
    state = read_log(memory)
    assert state == log.state
    assert state.run_epoch == 1


def test_restarts_alone_are_compacted_too(memory):
    for _ in range(3 * COMPACT_EVERY):
        open_log(memory)
    assert len(memory.list()) <= COMPACT_EVERY + 3


def test_a_freed_number_does_not_bring_a_zombie_back(backend):
    """The zombie slept while a newer run fenced it and compacted its next number away."""
    zombie = open_log(backend)
    newer = open_log(backend)
    for number in range(2 * COMPACT_EVERY):
        newer.decide(decision(number))
        newer.compact_if_due()
    assert backend.get(entry_name(zombie.state.tail + 1)) is None
    with pytest.raises(FencedError, match="compacted"):
        zombie.decide(decision(0))
    with pytest.raises(FencedError):
        zombie.check_newest()
    assert read_log(backend) == newer.state


def test_a_look_beside_an_append_takes_our_own_entry_for_nobody_elses(memory, monkeypatch):
    """A savepoint looks from the driver's thread while the loop of the continuous mode decides."""
    log = open_log(memory)
    stored, go_on = threading.Event(), threading.Event()
    put = memory.put_if_absent

    def slow_put(name, data):
        done = put(name, data)
        stored.set()
        assert go_on.wait(10)
        return done

    monkeypatch.setattr(memory, "put_if_absent", slow_put)
    with ThreadPoolExecutor(2) as threads:
        deciding = threads.submit(log.decide, decision(0))
        assert stored.wait(10)
        looking = threads.submit(log.check_newest)
        try:
            with pytest.raises(TimeoutError):
                looking.result(0.1)
        finally:
            go_on.set()
        deciding.result(10)
        looking.result(10)


def test_a_slow_zombie_can_not_lower_the_floor(backend):
    log = open_log(backend)
    for number in range(2 * COMPACT_EVERY):
        log.decide(decision(number))
        log.compact_if_due()
    backend.put_if_absent(f"floor-{5:020d}", b"")
    assert read_log(backend) == log.state


def test_a_reader_beside_a_compacting_writer_starts_again(backend):
    log = open_log(backend)
    for number in range(COMPACT_EVERY - 1):
        log.decide(decision(number))
    real, done = backend.get, []

    def get(name):
        if not done:
            done.append(True)
            log.decide(decision(COMPACT_EVERY))
            log.compact_if_due()
        return real(name)

    backend.get = get
    assert read_log(backend) == log.state


def test_f42_the_local_file_log_survives_its_writer(tmp_path):
    log = open_log(LocalFileBackend(tmp_path / "d"))
    log.decide(decision(0, committables=()))
    state = read_log(LocalFileBackend(tmp_path / "d"))
    assert state == dataclasses.replace(log.state)


@pytest.mark.parametrize("name", ["notes.txt", "floor-x", "00000000000000000001 (copy)"])
def test_what_is_no_entry_is_named(backend, name):
    open_log(backend).decide(decision(0))
    backend.put_if_absent(name, b"")
    with pytest.raises(LogCorruptedError, match="does not belong to it") as caught:
        read_log(backend)
    assert name in caught.value.where
