"""Sinks with one fault each, and which tests of the contract find it.

    python -m pytest tests/unit/broken_sinks.py     red on purpose: test_sink_contract.py reads it

Each is the sink of examples/own_sink with a line or two changed. Those of `FAULTS` meet every test
that is neither slow nor a race, the rest only the tests that are named for them.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from examples.own_sink.folder_sink import FolderCommitter, FolderSink, FolderWriter
from transactions import OpenSink, Outcome
from transactions.testing import TwoPhaseCommitSinkContract


@dataclasses.dataclass(frozen=True)
class StallingSink(FolderSink, FolderWriter, FolderCommitter):
    """Correct; its folder can stop taking commits: then it waits, and never past its deadline.

    One object describes, writes and commits, so that a fault can break any of these.
    """

    def open(self, context):
        return OpenSink(self, self)

    def commit(self, committables, deadline):
        while (self.folder / "stalled").exists() and not self.is_over(deadline):
            deadline.pause(0.01)
        return super().commit(committables, deadline)

    def is_over(self, deadline):
        return deadline.expired()

    def recover_and_commit(self, committables, deadline):
        return self.commit(committables, deadline)


# --- the eight --------------------------------------------------------------------------------


class CommitsTwice(StallingSink):
    def commit(self, committables, deadline):
        outcomes = super().commit(committables, deadline)
        for one in committables:
            if outcomes[one.token] is Outcome.ALREADY_COMMITTED:
                shutil.copy(self._data(one), f"{self._data(one)}.{secrets.token_hex(4)}")
        return outcomes

    def recover_and_commit(self, committables, deadline):
        return super().commit(committables, deadline)


class VisibleBeforeCommit(StallingSink):
    def invoke(self, transaction, batch):
        super().invoke(transaction, batch)
        transaction.file.flush()
        shutil.copy(transaction.path, self._early(transaction.path.name))

    def abort(self, transaction):
        self.recover_and_abort([transaction.path.name], None)
        super().abort(transaction)

    def recover_and_abort(self, transaction_ids, deadline):
        super().recover_and_abort(transaction_ids, deadline)
        for one in transaction_ids:
            self._early(one).unlink(missing_ok=True)

    def commit(self, committables, deadline):
        outcomes = super().commit(committables, deadline)
        for token in [token for token, outcome in outcomes.items() if outcome.is_committed]:
            self._early(token).unlink(missing_ok=True)
        return outcomes

    def _early(self, token):
        return self.at("data") / f"early.{token}"


class AbortLeavesData(StallingSink):
    def abort(self, transaction):
        transaction.file.close()


_prepared: dict[str, bytes] = {}


class LivesInMemory(StallingSink):
    """What it has prepared is in its process only."""

    def pre_commit(self, transaction):
        one = super().pre_commit(transaction)
        if one is not None:
            _prepared[one.token] = transaction.path.read_bytes()
            transaction.path.unlink()
        return one

    def abort(self, transaction):
        _prepared.pop(transaction.path.name, None)
        super().abort(transaction)

    def check_prepared(self, committables, deadline):
        return list(committables)

    def commit(self, committables, deadline):
        for one in committables:
            if one.token in _prepared:
                (self.at("staged") / one.token).write_bytes(_prepared.pop(one.token))
        return super().commit(committables, deadline)


class CommitsEmptyOnes(StallingSink):
    def pre_commit(self, transaction):
        transaction.count += 1
        one = super().pre_commit(transaction)
        return dataclasses.replace(one, record_count=one.record_count - 1)


class OrdersNumbersAsWords(StallingSink):
    def _data(self, one):
        return self.at("data") / f"{one.checkpoint_id}.{one.subtask}.{one.token}"


class LeaksDescriptors(StallingSink):
    def sync(self, name):
        os.fsync(os.open(self.at(name), os.O_RDONLY | os.O_DIRECTORY))

    def abort(self, transaction):
        os.open(transaction.path, os.O_RDONLY)
        super().abort(transaction)


class HasNoDeadline(StallingSink):
    def is_over(self, deadline):
        return False


# --- and the rest -----------------------------------------------------------------------------


class LeaksThreads(StallingSink):
    def begin_transaction(self, attempt):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().begin_transaction(attempt)


class NamesByPrefix(StallingSink):
    def lingering(self, owner, deadline):
        names = [path.name for path in self.at("staged").iterdir()]
        return [name for name in names if name.startswith(owner.application_id)]


class NamesLogsByPrefix(StallingSink):
    def lingering(self, owner, deadline):
        start = f"{owner.application_id}.{owner.log_id}"
        names = [path.name for path in self.at("staged").iterdir()]
        return [name for name in names if name.startswith(start)]


class ComparesRunsAsWords(StallingSink):
    def lingering(self, owner, deadline):
        everything = super().lingering(dataclasses.replace(owner, run_epoch=10**9), deadline)
        return [name for name in everything if name.split(".")[2] <= str(owner.run_epoch)]


class NamesFiles(StallingSink):
    def lingering(self, owner, deadline):
        return [f"staged/{name}" for name in super().lingering(owner, deadline)]


class SweepsEverything(StallingSink):
    def recover_and_abort(self, transaction_ids, deadline):
        shutil.rmtree(self.at("staged"))


class SweepsNothing(StallingSink):
    def recover_and_abort(self, transaction_ids, deadline):
        pass


class CommitsEverything(StallingSink):
    def commit(self, committables, deadline):
        for path in self.at("staged").iterdir():
            path.rename(self.at("data") / path.name)
        return {one.token: Outcome.COMMITTED for one in committables}


class CommitsTheFirst(StallingSink):
    def commit(self, committables, deadline):
        return super().commit(committables[:1], deadline)


class RefusesNothing(StallingSink):
    def check_prepared(self, committables, deadline):
        return list(committables)


class ForgetsToReturn(StallingSink):
    def check_prepared(self, committables, deadline):
        super().check_prepared(committables, deadline)
        return []


class RecoversBlindly(StallingSink):
    def commit(self, committables, deadline):
        return {**super().commit(committables, deadline)} | {
            one.token: Outcome.COMMITTED for one in committables
        }


class CallsASecondCommitLost(StallingSink):
    def commit(self, committables, deadline):
        outcomes = super().commit(committables, deadline)
        done = Outcome.ALREADY_COMMITTED
        return {t: Outcome.ABORTED if one is done else one for t, one in outcomes.items()}


class HasOneSlotPerSubtask(StallingSink):
    """What a subtask has not committed when it begins again is gone."""

    def begin_transaction(self, attempt):
        slot = self.at("slots") / str(attempt.subtask)
        if slot.exists():
            (self.at("staged") / slot.read_text()).unlink(missing_ok=True)
        transaction = super().begin_transaction(attempt)
        slot.write_text(transaction.path.name)
        return transaction


class HoldsALock(StallingSink):
    def commit(self, committables, deadline):
        object.__setattr__(self, "lock", threading.Lock())
        return super().commit(committables, deadline)


@dataclasses.dataclass(frozen=True)
class HasARandomName(StallingSink):
    name: str = dataclasses.field(default_factory=lambda: secrets.token_hex(4))


class LooksThenCopies(StallingSink):
    """Two drivers can look at the same time."""

    def commit(self, committables, deadline):
        for one in committables:
            done = self.at("done") / one.token
            if not done.exists():
                deadline.pause(0.02)
                copy = f"{self._data(one)}.{secrets.token_hex(4)}"
                shutil.copy(self.at("staged") / one.token, copy)
                done.touch()
        return {one.token: Outcome.COMMITTED for one in committables}


class KeepsTheLastBatch(StallingSink):
    def invoke(self, transaction, batch):
        transaction.file.seek(0)
        transaction.file.truncate()
        super().invoke(transaction, batch)


class CountsBatches(StallingSink):
    def pre_commit(self, transaction):
        transaction.count = min(transaction.count, 1)
        return super().pre_commit(transaction)


class LosesOffsets(StallingSink):
    def pre_commit(self, transaction):
        one = super().pre_commit(transaction)
        return None if one is None else dataclasses.replace(one, source_offsets={})


class CountsAttemptsPerSubtask(StallingSink):
    """One token for all attempts of a subtask at a checkpoint."""

    def pre_commit(self, transaction):
        one = super().pre_commit(transaction)
        return None if one is None else dataclasses.replace(one, token=f"{one.checkpoint_id}")


#: A fault -> the tests that are about it. They are run, and all that are not `_WHERE_NAMED`.
FAULTS: dict[type[FolderSink], set[str]] = {
    StallingSink: set(),
    CommitsTwice: {
        "test_commit_again_changes_nothing",
        "test_commit_of_some_that_are_committed_already",
    },
    VisibleBeforeCommit: {
        "test_an_open_transaction_is_invisible",
        "test_a_prepared_transaction_is_invisible",
    },
    AbortLeavesData: {"test_abort_leaves_nothing"},
    LivesInMemory: {"test_a_prepared_transaction_outlives_its_killed_writer"},
    CommitsEmptyOnes: {"test_an_attempt_without_records_is_no_transaction"},
    OrdersNumbersAsWords: {"test_checkpoints_keep_their_order"},
    LeaksDescriptors: {
        "test_f50_a_hundred_checkpoints_leak_nothing",
        "test_f50_a_hundred_aborts_leak_nothing",
    },
    HasNoDeadline: {"test_a_commit_ends_with_its_deadline"},
}

#: A fault -> which others fail as well, because they meet it on their way.
CONSEQUENCES: dict[type[FolderSink], set[str]] = {
    VisibleBeforeCommit: {
        "test_check_prepared_passes_what_is_prepared",
        "test_commit_makes_nothing_else_visible",
        "test_f51_the_next_checkpoint_is_prepared_before_the_last_is_committed",
    },
    AbortLeavesData: {
        "test_an_attempt_without_records_is_no_transaction",  # its pre_commit calls its abort
        "test_f50_a_hundred_aborts_leak_nothing",
    },
    LivesInMemory: {
        "test_a_commit_ends_with_its_deadline",  # a restarted driver recovers
        "test_check_prepared_refuses_what_was_aborted",
        "test_commit_of_some_that_are_committed_already",
        "test_lingering_names_a_transaction_as_its_committable_does",
        "test_lingering_names_an_older_runs",
        "test_lingering_never_names_another_applications",
        "test_lingering_never_names_another_logs",
        "test_recover_and_commit_asks_the_target_first",
    },
}

#: A fault -> tests that find it; only these are run.
MORE_FAULTS: dict[type[FolderSink], set[str]] = {
    LeaksThreads: {
        "test_f50_a_hundred_checkpoints_leak_nothing",
        "test_f50_a_hundred_aborts_leak_nothing",
    },
    NamesByPrefix: {
        "test_lingering_never_names_another_applications",
        "test_lingering_never_names_another_logs",
        "test_lingering_never_names_a_newer_runs",
    },
    NamesLogsByPrefix: {"test_lingering_never_names_another_logs"},
    ComparesRunsAsWords: {"test_lingering_names_an_older_runs"},
    NamesFiles: {"test_lingering_names_a_transaction_as_its_committable_does"},
    SweepsEverything: {"test_the_sweep_leaves_the_others_alone"},
    SweepsNothing: {
        "test_a_swept_writer_is_fenced",
        "test_an_aborted_transaction_is_never_called_committed",
        "test_an_open_transaction_of_a_killed_writer_is_swept",
        "test_the_engine_is_exactly_once_when_its_driver_dies_at",
    },
    CommitsEverything: {"test_commit_makes_nothing_else_visible"},
    CommitsTheFirst: {"test_the_subtasks_of_a_checkpoint_are_committed_together"},
    RefusesNothing: {
        "test_check_prepared_refuses_what_was_aborted",
        "test_a_swept_writer_is_fenced",
    },
    ForgetsToReturn: {"test_check_prepared_passes_what_is_prepared"},
    RecoversBlindly: {
        "test_recover_and_commit_asks_the_target_first",
        "test_an_aborted_transaction_is_never_called_committed",
    },
    CallsASecondCommitLost: {"test_commit_again_changes_nothing"},
    HasOneSlotPerSubtask: {"test_f51_the_next_checkpoint_is_prepared_before_the_last_is_committed"},
    HoldsALock: {"test_the_sink_travels_also_after_it_was_used"},
    HasARandomName: {"test_the_name_is_stable"},
    LooksThenCopies: {"test_two_drivers_finish_one_decision"},
    KeepsTheLastBatch: {"test_commit_makes_visible_exactly_what_was_written"},
    CountsBatches: {"test_the_committable_says_whose_it_is_and_travels_as_json"},
    LosesOffsets: {"test_an_attempt_with_offsets_only_can_be_decided"},
    CountsAttemptsPerSubtask: {"test_of_two_attempts_only_the_committed_one_is_visible"},
}

TESTS = {name for name in dir(TwoPhaseCommitSinkContract) if name.startswith("test_")}
#: They start Python processes, half a second each, or are a race; the example runs them all.
_WHERE_NAMED = {
    "test_a_prepared_transaction_outlives_its_killed_writer",
    "test_an_open_transaction_of_a_killed_writer_is_swept",
    "test_of_two_attempts_only_the_committed_one_is_visible",
    "test_the_engine_is_exactly_once_when_its_driver_dies_at",
    "test_the_name_is_stable",
    "test_two_drivers_finish_one_decision",
}


class FolderContract(TwoPhaseCommitSinkContract):
    __test__ = False
    cycles = 20
    sink: ClassVar[type[FolderSink]]

    def new_sink(self):
        return self.sink(self.folder)

    def visible(self):
        files = sorted((self.folder / "data").glob("*"))
        return [int(line) for file in files for line in file.read_text().splitlines()]

    def leftovers(self):
        return [path.name for path in (self.folder / "staged").glob("*")]

    def drop_process(self):
        _prepared.clear()

    @contextmanager
    def stall(self) -> Iterator[None]:
        (self.folder / "stalled").touch()
        yield
        (self.folder / "stalled").unlink()


def _contract_of(sink: type[FolderSink], tests: set[str]) -> type[FolderContract]:
    """Return a class with these tests only: pytest passes over what is None."""
    left_out: dict[str, Any] = dict.fromkeys(TESTS - tests)
    grace = {"grace_s": 0.5} if sink is HasNoDeadline else {}
    return type(f"Test{sink.__name__}", (FolderContract,), {"sink": sink, **grace, **left_out})


for _sink, _red in FAULTS.items():
    globals()[f"Test{_sink.__name__}"] = _contract_of(_sink, (TESTS - _WHERE_NAMED) | _red)
for _sink, _red in MORE_FAULTS.items():
    globals()[f"Test{_sink.__name__}"] = _contract_of(_sink, _red)
