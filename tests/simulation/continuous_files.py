"""The continuous world with a sink that its driver commits: the product's sink of files.

Tasks, loop, coordinator and log are as in `continuous_world`; a cluster is there and nobody asks
it. What is judged is the folder as a stranger reads it: lines of JSON in files with a plain name.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.files import FileSink
from connectors.records.arrow_transform import complete
from connectors.records.message_schema import SINK_SCHEMA
from tests.both_halves import both_halves
from tests.power_cut import Syncs, cut
from tests.simulation.continuous_task import Killed, Process, here
from tests.simulation.continuous_world import Moment, RecordsInEach, kept
from transactions.committable import Committable, Outcome
from transactions.log_backend import LocalFileBackend
from transactions.log_entries import Decision, Entry, Healed

DRIVER_STEPS = (
    "barrier_sent",
    "batch_started",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "rename_started",
    "renamed",
    "one_committed",
    "all_committed",
    "batch_finished",
    "recovery_fenced",
    "recovery_settled",
)


class OwnedSink:
    """The product's sink in one process: when that is dead, no method of it does anything."""

    def __init__(self, world: FilesWorld) -> None:
        options = FileSink(path=str(world.folder), format="json", name="out")
        self._sink = both_halves(options, checkpoint_timeout_s=world.checkpoint_timeout_s)
        self._world = world
        self._process: Process = here.process
        self.name = self._sink.name

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._sink, name)

        def by_a_living_process(*arguments: Any) -> Any:
            if self._process.dead:
                raise Killed(self._process.name)
            return method(*arguments)

        return by_a_living_process

    def commit(self, committables: Any, deadline: Any) -> Mapping[str, Outcome]:
        return self._committed("commit", committables, deadline)

    def recover_and_commit(self, committables: Any, deadline: Any) -> Mapping[str, Outcome]:
        return self._committed("recover_and_commit", committables, deadline)

    def _committed(self, how: str, committables: Any, deadline: Any) -> Mapping[str, Outcome]:
        for one in committables:
            if one.token not in self._world.decided_tokens:
                self._world.violations.append(f"{how} without a decision: {one.token}")
        outcomes: Mapping[str, Outcome] = self.__getattr__(how)(committables, deadline)
        self._world.ended.update(token for token, how in outcomes.items() if how.is_committed)
        return outcomes


class FilesWorld(RecordsInEach):
    """Everything of one story; its output is a folder.

    Args:
        folder: empty, or absent.
    """

    def __init__(self, folder: Path, *moments: Moment, **options: Any) -> None:
        super().__init__(*moments, carries_offsets=False, **options)
        self.folder = folder
        self.decided_tokens: set[str] = set()
        self.ended: set[str] = set()

    def make_sink(self) -> OwnedSink:
        return OwnedSink(self)

    @staticmethod
    def as_written(batch: pa.RecordBatch) -> pa.RecordBatch:
        return complete(batch, SINK_SCHEMA)

    def watch_entry(self, entry: Entry) -> None:
        with self.lock:
            match entry.body:
                case Decision() as decision:
                    pending = {one.token for one in self.last_decision} - self.ended
                    if pending:
                        self.violations.append(f"decided while {pending} is pending")
                    self.last_decision = list(decision.committables)
                case Healed() as healed:
                    others = [o for o in self.last_decision if o.subtask != healed.subtask]
                    self.last_decision = [*others, healed.committable]
                case _:
                    return
            self.decided_tokens.update(one.token for one in self.last_decision)

    # --- the folder, as a stranger sees it --------------------------------------------------

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("[!_.]*"))

    def left_open(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("_transactions/*"))

    def visible(self) -> Counter[str]:
        return Counter(value for path in self.files() for value in values_in(path))

    def check(self) -> None:
        """Assert that every record is there once, in order, and nothing else is."""
        super().check()
        assert not self.left_open()
        decided = {token.rpartition(".")[2] for token in self.decided_tokens}
        last: dict[str, int] = {}
        for path in self.files():
            assert path.stem.rpartition("-")[2] in decided, f"{path.name} was never decided"
            for value in values_in(path):
                name, _, row = value.rpartition(":")
                assert last.get(name, -1) < int(row), f"{value} stands behind row {last[name]}"
                last[name] = int(row)
        assert self.cluster.transactions == {}

    def lose_what_is_prepared(self) -> list[Committable]:
        """Remove, once, the decided files that have no final name yet, as an operator might."""
        self.on_restart = lambda: None
        for driver in self.drivers:
            driver.join()
        lost = []
        for one in self.last_decision:
            path = self.folder / "_transactions" / one.transactional_id
            if path.exists():
                path.unlink()
                lost.append(one)
        return lost


class LogOnDisk(LocalFileBackend):
    """The product's log in a folder, with the world looking on."""

    def __init__(self, folder: Path, world: FilesWorld) -> None:
        super().__init__(folder)
        self._world = world

    def put_if_absent(self, name: str, data: bytes) -> bool:
        stored = super().put_if_absent(name, data)
        if stored and name.isdigit():
            self._world.watch_entry(Entry.from_bytes(data, where=name))
        return stored


class PowerCutWorld(FilesWorld):
    """The machine goes off whenever a driver or a task ends; log and target are on its disk.

    Args:
        root: an empty folder.
        syncs: sees what is synced; a cut leaves what it may.
    """

    def __init__(self, root: Path, syncs: Syncs, *moments: Moment, **options: Any) -> None:
        super().__init__(root / "out", *moments, **options)
        self.root, self.syncs = root, syncs
        syncs.reboot(root)
        self.backend = LogOnDisk(root / "log", self)  # type: ignore[assignment]
        self.on_restart = self.cut_the_power
        self.kept: tuple[float, ...] = (0.0, 0.5)
        self.cuts: list[list[str]] = []

    def cut_the_power(self) -> None:
        for driver in self.drivers:
            driver.join()
        self.cuts.append(cut(self.root, self.syncs, self.rng, kept=self.rng.choice(self.kept)))
        self.syncs.reboot(self.root)


def values_in(path: Path) -> list[str]:
    """Return the values of a file, in its order; all columns of a sink are in each line."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        assert list(row) == SINK_SCHEMA.names
        found.append(base64.b64decode(row["value"]).decode())
    assert all(map(kept, found))
    return found
