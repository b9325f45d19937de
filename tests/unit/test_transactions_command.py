"""`sparkonce transactions`: what a repair may touch, and what it must leave to somebody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors.cli.transactions import command
from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.operations import transaction_reader
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.simulation.end_txn_table import State
from tests.simulation.fake_cluster import FakeCluster, Transaction
from tests.simulation.fake_wire import FakeWire
from tests.simulation.virtual_clock import VirtualClock
from transactions.decision_log import DecisionLog, read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

IDENTITY = {"sinks": orjson.dumps({"out": {"topic": "out"}}).decode()}


class Pipeline:
    """A checkpoint folder whose driver is gone, and the cluster of its sink.

    Attributes:
        before: called with each request before the cluster answers it.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "state"
        self.backend = LocalFileBackend(self.folder / "decisions")
        self.clock = VirtualClock()
        self.cluster = FakeCluster(self.clock.now_ms)
        self.before: Callable[[str], None] = lambda _: None
        self.log = self.driver()
        monkeypatch.setattr(transaction_reader, "KafkaCommitter", self._committer)
        monkeypatch.setattr(transaction_reader.TransactionReader, "hidden", lambda *_: {})
        monkeypatch.setattr(KafkaCommitter, "hidden", lambda *_: [])

    def driver(self, accepted: tuple[str, ...] = ()) -> DecisionLog:
        """Start a driver on the folder."""
        return DecisionLog.open(
            self.backend, application_id="app", identity=IDENTITY, check=lambda _: accepted
        )

    def state(self) -> LogState:
        return read_log(self.backend)

    def id_of(self, run: int, process: str = "p") -> str:
        return f"app.{self.log.log_id}.{run}.{process}.0"

    def opened(self, name: str, state: State = State.ONGOING) -> Transaction:
        made = Transaction(name, 7, 3, 60_000, state)
        self.cluster.transactions[name] = made
        return made

    def run(self, *words: str) -> Result:
        place = ("--checkpoint", str(self.folder), "--bootstrap", "fake:9092")
        return CliRunner().invoke(command, [*words, *place, "--yes"])

    def _committer(self, name: str, settings: dict[str, str]) -> KafkaCommitter:
        made = KafkaCommitter(name, settings)
        made._wire = CoordinatorWire(settings)
        made._wire._wire = FakeWire(self._exchange, self.clock)
        return made

    def _exchange(self, request: Any) -> Any:
        self.before(type(request).__name__)
        return self.cluster.handle(request)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(tmp_path, monkeypatch)


def test_a_repair_forgets_no_duplicates_that_a_person_has_accepted(pipeline: Pipeline):
    """Without them the next start would be refused again."""
    pipeline.driver(accepted=("8.0.00112233aabbccdd",))
    lingering = pipeline.opened(pipeline.id_of(1))
    done = pipeline.run("abort")
    assert done.exit_code == 0, done.exception
    assert lingering.state is State.EMPTY
    assert pipeline.state().accepted == ("8.0.00112233aabbccdd",)
