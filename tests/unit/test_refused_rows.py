"""A target that will never take a row of a decided checkpoint: what a start does, and what a person
can say about it. The decision log, the buffers and the marks are real files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from connectors.wal import FileCheckpointCommitter, WriteAheadSink
from tests.both_halves import BothHalves, both_halves
from tests.unit.samples import decision
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import (
    ConfigurationError,
    FencedError,
    OutcomeUnknownError,
    RecordRefusedError,
)
from transactions.log_entries import ACCEPT_LOSS, ACCEPT_STATE, REPLAY, Resolved
from transactions.log_location import backend_for
from transactions.recovery import Settlement, recover
from transactions.replay import Checkpoint
from transactions.sink import Attempt


@dataclasses.dataclass(frozen=True, kw_only=True)
class PickySink(WriteAheadSink):
    """Appends numbers to a file, and raises the `refusals` of some of them."""

    target: Path
    refusals: dict[int, Exception] = dataclasses.field(default_factory=dict)

    def send_values(
        self,
        records: Iterator[pa.RecordBatch],
        *,
        checkpoint_id: int,
        subtask: int,
        timestamp_ms: int,
    ) -> bool:
        numbers = [row["n"] for batch in records for row in batch.to_pylist()]
        for number in numbers:
            if number in self.refusals:
                raise self.refusals[number]
        with self.target.open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)
        return True


class Pipeline:
    """A pipeline with two sinks and one decided checkpoint: subtask N wrote the number N."""

    def __init__(self, folder: Path, *, subtasks: int = 3) -> None:
        self.folder = folder
        self.sinks = {name: self._sink(name) for name in ("first", "second")}
        self.log = self._open()
        self.ones = {
            name: [self.prepared(sink, name, number) for number in range(subtasks)]
            for name, sink in self.sinks.items()
        }
        self.log.decide(
            decision(5, committables=tuple(one for ones in self.ones.values() for one in ones))
        )

    def start(self) -> Settlement:
        """Begin the next run, which recovers."""
        self.log = self._open()
        sinks: dict[str, Any] = dict(self.sinks)
        return recover(self.log, sinks, Deadline(3.0))

    def refuse(self, number: int, error: Exception | None = None, *, sink: str = "first") -> None:
        refusal = error or RecordRefusedError("The table refused a row.", option="table=t")
        self.sinks[sink].options.refusals[number] = refusal

    def resolve(self, verdict: str, *numbers: int) -> None:
        tokens = tuple(self.ones["first"][number].token for number in numbers)
        self.log.resolve(Resolved(checkpoint_id=5, verdict=verdict, tokens=tokens, note="test"))

    def sent(self, sink: str) -> list[int]:
        target = self.folder / f"{sink}.txt"
        return [int(line) for line in target.read_text().split()] if target.exists() else []

    def is_settled(self) -> bool:
        last = read_log(backend_for(self.folder / "log")).decision
        return last is None or not last.committables

    def _open(self) -> DecisionLog:
        backend = backend_for(self.folder / "log")
        return DecisionLog.open(backend, application_id="app", identity={})

    def _sink(self, name: str) -> BothHalves:
        options = PickySink(
            name=name,
            buffer=self.folder / "buffer",
            committer=FileCheckpointCommitter(self.folder / "marks"),
            target=self.folder / f"{name}.txt",
        )
        both: BothHalves = both_halves(options)
        return both

    def prepared(self, sink: Any, name: str, number: int, checkpoint_id: int = 5) -> Committable:
        attempt = Attempt(
            owner=self.log.owner,
            checkpoint_id=checkpoint_id,
            subtask=number,
            attempt_id=f"{name}.{number}",
        )
        transaction = sink.begin_transaction(attempt)
        sink.invoke(transaction, pa.record_batch({"n": pa.array([number], pa.int64())}))
        one: Committable = sink.pre_commit(transaction)
        return one


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def test_a_refused_row_holds_up_no_other_sink(pipeline: Pipeline):
    pipeline.refuse(1)
    with pytest.raises(RecordRefusedError):
        pipeline.start()
    assert pipeline.sent("first") == [0], "what comes after it in its own sink keeps its place"
    assert pipeline.sent("second") == [0, 1, 2]


def test_a_refused_row_of_a_living_run_holds_up_no_other_sink(pipeline: Pipeline):
    """Readers of the others need not wait for the next start."""
    pipeline.start()
    sinks: dict[str, Any] = dict(pipeline.sinks)
    coordinator = CheckpointCoordinator(pipeline.log, sinks, timeout_s=3.0, stopping=lambda: False)
    pipeline.refuse(11)

    def phase_one() -> list[Committable]:
        return [
            pipeline.prepared(sink, name, number, checkpoint_id=6)
            for name, sink in pipeline.sinks.items()
            for number in (10, 11, 12)
        ]

    sixth = Checkpoint(checkpoint_id=6, query_id="q", start_offsets=("s5",), end_offsets=("s6",))
    with pytest.raises(RecordRefusedError):
        coordinator.run(sixth, phase_one)
    coordinator.close()
    assert pipeline.sent("first") == [0, 1, 2, 10]
    assert pipeline.sent("second") == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("error", [FencedError("A newer run owns it."), OSError("the disk")])
def test_an_error_that_is_about_the_run_is_raised_at_once(pipeline: Pipeline, error: Exception):
    def fails(*_: object) -> dict[str, Outcome]:
        raise error

    sinks: dict[str, Any] = dict(pipeline.sinks)
    sinks["first"] = SimpleNamespace(recover_and_commit=fails)
    with pytest.raises(type(error)):
        Settlement(pipeline.log.state.decision.committables).settle(sinks, Deadline(3.0))
    assert pipeline.sent("second") == []


def test_the_error_names_the_transaction_and_the_whole_command(pipeline: Pipeline):
    pipeline.refuse(1)
    with pytest.raises(RecordRefusedError) as refused:
        pipeline.start()
    name = pipeline.ones["first"][1].transactional_id
    assert f"checkpoint 5, subtask 1, {name}" in refused.value.where
    assert refused.value.option.startswith("table=t")
    assert f"sparkonce transactions resolve {name} --accept-loss" in refused.value.option


def test_a_table_that_was_changed_gets_the_row_at_the_next_start(pipeline: Pipeline):
    pipeline.refuse(1)
    with pytest.raises(RecordRefusedError):
        pipeline.start()
    pipeline.sinks["first"].options.refusals.clear()
    assert pipeline.start().lost == []
    assert pipeline.sent("first") == [0, 1, 2]
    assert pipeline.is_settled()


def test_a_loss_that_a_person_accepted_ends_the_refusal(pipeline: Pipeline):
    pipeline.refuse(1)
    with pytest.raises(RecordRefusedError):
        pipeline.start()
    pipeline.resolve(ACCEPT_LOSS, 1)
    assert pipeline.start().lost == []
    assert pipeline.sent("first") == [0, 2]
    assert pipeline.sent("second") == [0, 1, 2]
    assert pipeline.is_settled()
    assert list(pipeline.folder.rglob("*.arrow")) == []


def test_a_replay_that_a_person_wants_takes_the_place_of_the_refused(pipeline: Pipeline):
    pipeline.refuse(1)
    pipeline.resolve(REPLAY, 1)
    assert pipeline.start().lost == [pipeline.ones["first"][1]]
    assert pipeline.sent("first") == [0, 2]
    assert not pipeline.is_settled()


def test_a_resolved_transaction_that_the_target_takes_is_sent(pipeline: Pipeline):
    pipeline.refuse(1)
    pipeline.resolve(ACCEPT_LOSS, 1, 2)
    pipeline.start()
    assert pipeline.sent("first") == [0, 2]


@pytest.mark.parametrize("verdict", [ACCEPT_LOSS, ACCEPT_STATE])
def test_what_nobody_has_resolved_is_never_given_up(pipeline: Pipeline, verdict: str):
    """ACCEPT_STATE says nothing about the end of a transaction."""
    pipeline.refuse(0)
    pipeline.refuse(1)
    pipeline.resolve(verdict, 0 if verdict == ACCEPT_LOSS else 1)
    for _ in range(2):
        with pytest.raises(RecordRefusedError):
            pipeline.start()
    assert pipeline.sent("first") == []
    assert not pipeline.is_settled()
    assert len(list((pipeline.folder / "buffer" / "first").iterdir())) == 3


def test_only_a_refused_row_is_given_up(pipeline: Pipeline):
    """A missing table is permanent too, but it refuses no row: a person can bring it back."""
    pipeline.refuse(1, ConfigurationError("no such table"))
    pipeline.resolve(ACCEPT_LOSS, 1)
    with pytest.raises(ConfigurationError, match="no such table"):
        pipeline.start()
    assert pipeline.sent("second") == [0, 1, 2]
    pipeline.sinks["first"].options.refusals.clear()
    assert pipeline.start().lost == []
    assert pipeline.sent("first") == [0, 1, 2]


def test_a_passing_error_is_no_refusal(pipeline: Pipeline):
    pipeline.refuse(0, OSError("connection refused"))
    pipeline.refuse(1)
    pipeline.resolve(ACCEPT_LOSS, 1)
    with pytest.raises(OutcomeUnknownError):
        pipeline.start()
    assert pipeline.sent("first") == []
    assert not pipeline.is_settled()


def test_a_passing_error_of_ours_stops_the_start_at_once(pipeline: Pipeline, monkeypatch):
    passing = OutcomeUnknownError("the server is away")

    def away(*_: object) -> None:
        raise passing

    committer = pipeline.sinks["first"]
    monkeypatch.setattr(committer, "recover_and_commit", away, raising=False)
    with pytest.raises(OutcomeUnknownError, match="the server is away"):
        pipeline.start()
    assert pipeline.sent("second") == []
