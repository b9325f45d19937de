"""A power cut just before and just after each fsync: what was decided is written once, no more.

The coordinator, the log, the sinks and their folders are the product's; what is left on the disk is
drawn by a seed from what a file system may keep (`tests.power_cut`). The judge reads the target.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connectors.files import FileSink, committed_files
from connectors.wal import FileCheckpointCommitter, WriteAheadSink
from tests.power_cut import PowerCut, Syncs, cut
from tests.tiers import sampled
from tests.unit.samples import decision
from transactions.decision_log import DecisionLog, read_log
from transactions.log_backend import LocalFileBackend
from transactions.sink import Sink
from transactions.testing.engine import run_checkpoint

CHECKPOINTS = 2
SUBTASKS = 2


@dataclass(frozen=True, kw_only=True)
class RemoteSink(WriteAheadSink):
    """Sends to a target on another machine, which drops what it has."""

    target: ClassVar[dict[tuple[str, int, int], list[int]]] = {}

    def send_values(
        self, records: Iterator[pa.RecordBatch], *, checkpoint_id: int, subtask: int, **_: Any
    ) -> bool:
        rows = [row for batch in records for row in batch["number"].to_pylist()]
        self.target[self.name, checkpoint_id, subtask] = rows
        return True


def file_sink(root: Path) -> Sink:
    return FileSink(path=str(root / "out"), format="json", name="out")


def rows_in_files(root: Path) -> Counter[int]:
    plain = [one for one in (root / "out").iterdir() if one.name[0] not in "._"]
    whole = {Path(one.path) for one in committed_files(root / "out")}
    assert set(plain) == whole
    return Counter(json.loads(line)["number"] for one in plain for line in one.open())


def write_ahead_sink(root: Path) -> Sink:
    committer = FileCheckpointCommitter(root / "marks")
    return RemoteSink(name=root.name, buffer=str(root / "buffers"), committer=committer)


def rows_sent(root: Path) -> Counter[int]:
    sent = (rows for (name, *_), rows in RemoteSink.target.items() if name == root.name)
    return Counter(number for rows in sent for number in rows)


def numbers(checkpoint: int, subtask: int) -> range:
    return range(first := 100 * checkpoint + 10 * subtask, first + 3)


def checkpointed(make: Callable[[Path], Sink], root: Path, checkpoint: int) -> None:
    subtasks = [
        [pa.RecordBatch.from_pydict({"number": list(numbers(checkpoint, subtask))})]
        for subtask in range(SUBTASKS)
    ]
    run_checkpoint(
        make(root), checkpoint, subtasks, folder=root / "log", application_id="app", seconds=10.0
    )


def story(make: Callable[[Path], Sink], root: Path, syncs: Syncs, rng: random.Random) -> str:
    """Run all checkpoints; after a cut the same one again. Return what the cut did."""
    root.mkdir()
    syncs.reboot(root)
    did = ""
    for checkpoint in range(CHECKPOINTS):
        try:
            checkpointed(make, root, checkpoint)
        except PowerCut:
            assert syncs.is_off
        if not syncs.is_off:
            continue
        left = cut(root, syncs, rng, kept=rng.choice((0.0, 0.3, 0.7, 1.0)))
        did = f"off at {syncs.cut_at} in checkpoint {checkpoint}: {left}"
        syncs.reboot(root)
        if checkpoint:
            decided = read_log(LocalFileBackend(root / "log")).decision
            assert decided is not None, did
            assert decided.checkpoint_id >= checkpoint - 1, did
        checkpointed(make, root, checkpoint)
    return did


@pytest.mark.parametrize(
    ("make", "read"),
    sampled(
        [(file_sink, rows_in_files), (write_ahead_sink, rows_sent)], (file_sink, rows_in_files)
    ),
    ids=["files", "write-ahead"],
)
def test_b1_what_was_decided_survives_a_power_cut_at_each_sync(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Sink],
    read: Callable[[Path], Counter[int]],
):
    expected = Counter(
        number
        for checkpoint in range(CHECKPOINTS)
        for subtask in range(SUBTASKS)
        for number in numbers(checkpoint, subtask)
    )
    cut_at, came = 0, True
    while came:
        cut_at += 1
        with monkeypatch.context() as patch:
            syncs = Syncs(cut_at=cut_at)
            syncs.watch(patch)
            root = tmp_path / f"{cut_at}"
            did = story(make, root, syncs, random.Random(cut_at))
            syncs.close()
        came = bool(did)
        assert read(root) == expected, did
    assert cut_at > 40


def decided_until_the_cut(log: Path, numbers: range) -> int:
    """Decide as a driver does, with each entry prepared; return the last one that was decided."""
    last = -1
    try:
        run = DecisionLog.open(LocalFileBackend(log), application_id="app", identity={})
        for number in numbers:
            run.prepare_next()
            run.decide(decision(number))
            last = number
    except PowerCut:
        pass
    return last


def test_b1_a_prepared_decision_survives_a_power_cut_at_each_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cut_at, came = 0, True
    while came:
        cut_at += 1
        root = tmp_path / f"{cut_at}"
        root.mkdir()
        with monkeypatch.context() as patch:
            syncs, rng = Syncs(cut_at=cut_at), random.Random(cut_at)
            syncs.watch(patch)
            syncs.reboot(root)
            last = decided_until_the_cut(root, range(3))
            if came := syncs.is_off:
                did = cut(root, syncs, rng, kept=rng.choice((0.0, 0.3, 0.7, 1.0)))
                syncs.reboot(root)
                found = read_log(LocalFileBackend(root)).decision
                there = -1 if found is None else found.checkpoint_id
                assert last <= there <= last + 1, did
                assert decided_until_the_cut(root, range(there + 1, 4)) == (3 if there < 3 else -1)
            syncs.close()
    assert cut_at > 15
