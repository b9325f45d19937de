"""A power cut at each sync, under the files of Spark: no start is stuck, and state agrees.

Coordinator, log, sink and `MicroBatches` are the product's. The engine around them is a model of
Spark's: it writes its files as Spark does and syncs nothing, it plans another range when it has to
plan again, and it stops where Spark would (a log file that is not whole, a batch that is missing
before the last one, state that is not there).
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from connectors.files import FileSink
from connectors.spark import durable_files, micro_batch
from connectors.spark.batch_offsets import BatchOffsets
from connectors.spark.durable_files import DurableFiles, drop_undecided
from connectors.spark.micro_batch import MicroBatches
from tests.both_halves import both_halves
from tests.power_cut import PowerCut, Syncs, cut
from tests.tiers import long
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.coordinator import CheckpointCoordinator
from transactions.decision_log import DecisionLog
from transactions.errors import SparkOnceError
from transactions.healing import Replayed
from transactions.log_backend import LocalFileBackend
from transactions.recovery import recover
from transactions.sink import Attempt
from transactions.testing.engine import prepared

ROWS = 8


class StuckError(Exception):
    """Spark does not start, and never will."""


class Engine:
    """One run of a driver on a folder, with Spark's behaviour around each batch."""

    def __init__(self, root: Path, rng: random.Random, *, stateful: bool) -> None:
        self.spark, self.rng, self.stateful = root / "spark", rng, stateful
        self.log = DecisionLog.open(
            LocalFileBackend(root / "decisions"), application_id="app", identity={}
        )
        self.sink = both_halves(
            FileSink(path=str(root / "out"), format="json", name="out"), checkpoint_timeout_s=10.0
        )
        sinks: dict[str, Any] = {"out": self.sink}
        settlement = recover(self.log, sinks, Deadline(10.0))
        self.coordinator = CheckpointCoordinator(
            self.log, sinks, timeout_s=10.0, stopping=lambda: False, lost=settlement.lost
        )
        self.batches = MicroBatches(
            self.coordinator,
            self.log,
            ["out"],
            offsets_sink=None,
            files=DurableFiles.of_run(self.spark, self.log.state.decision),
        )
        self.batches._run_job = self.run_job  # type: ignore[assignment]

    def close(self) -> None:
        self.coordinator.close()

    def run(self) -> None:
        """Run batches until all rows are through."""
        if not (self.spark / "metadata").exists():
            self.write("metadata", b'{"id":"query"}')
        self.query = self.json("metadata")["id"]
        done, self.batch = self.latest("commits"), self.latest("offsets")
        if self.batch in {-1, done}:
            self.batch, planned = self.batch + 1, False
        else:
            planned = True
        if self.batch > 0:
            self.json(f"offsets/{self.batch - 1}")
        while True:
            start = 0 if self.batch == 0 else self.json(f"offsets/{self.batch - 1}")
            if not planned and start == ROWS:
                return
            if not planned:
                end = min(ROWS, start + self.rng.randint(1, 5))
                self.write(f"offsets/{self.batch}", b"v1\n{}\n%d" % end)
            if self.stateful and not (self.spark / "state/0/_metadata/metadata").exists():
                self.write("state/0/_metadata/metadata", b"v1\n{}")
            self.read, planned = (start, self.json(f"offsets/{self.batch}")), False
            self.state = ""
            self.batches.run(self, self, self.batch)  # type: ignore[arg-type]
            self.write(f"commits/{self.batch}", b"v1\n" + orjson.dumps({"state": self.state}))
            self.batch += 1

    def run_job(self, _frame: object, order: Any) -> tuple[list[Committable], list[Replayed]]:
        start, end = self.read
        if self.stateful:
            self.json("state/0/_metadata/metadata")
            before = self.counted()
            self.state = f"state/0/0/{self.batch + 1}_{uuid.uuid4().hex}.changelog"
            self.write(self.state, orjson.dumps({"rows": before + end - start}))
        if not order.write:
            return [], []
        attempt = Attempt(
            owner=self.log.owner, checkpoint_id=self.batch, subtask=0, attempt_id=uuid.uuid4().hex
        )
        rows = pa.RecordBatch.from_pydict({"number": list(range(start, end))})
        one = prepared(self.sink, attempt, [rows])
        return ([] if one is None else [one]), []

    def counted(self) -> int:
        """Return what the state says that the batch begins with."""
        if self.batch == 0:
            return 0
        return int(self.json(self.json(f"commits/{self.batch - 1}")["state"])["rows"])

    def write(self, name: str, data: bytes) -> None:
        path = self.spark / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, content in ((path, data), (path.with_name(f".{path.name}.crc"), b"crc")):
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            temporary.write_bytes(content)
            temporary.rename(target)

    def latest(self, log: str) -> int:
        folder = self.spark / log
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        last = max((int(name) for name in names if name.isdigit()), default=-1)
        if last >= 0:
            self.json(f"{log}/{last}")
        return last

    def json(self, name: str) -> Any:
        """Read as Spark does; it looks at the checksum where there is one."""
        path = self.spark / name
        checksum = path.with_name(f".{path.name}.crc")
        if not path.exists() or not path.stat().st_size:
            raise StuckError(f"{name} is missing or empty")
        if checksum.exists() and checksum.read_bytes() != b"crc":
            raise StuckError(f"the checksum of {name} is torn")
        try:
            return json.loads(path.read_text().splitlines()[-1])
        except ValueError:
            raise StuckError(f"{name} is torn") from None


def offsets_of(engine: Any, _batch_id: int) -> BatchOffsets:
    start, end = (str(one) for one in engine.read)
    return BatchOffsets(query_id=engine.query, start=(start,), end=(end,))


@pytest.fixture(autouse=True)
def _model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "read_batch_offsets", offsets_of)
    monkeypatch.setattr(micro_batch, "_partitions", lambda _frame: 1)


def run(root: Path, rng: random.Random, *, stateful: bool) -> Engine:
    engine = Engine(root, rng, stateful=stateful)
    try:
        engine.run()
    finally:
        engine.close()
    return engine


def not_state(path: Path) -> bool:
    """Keep what the engine has written, but for its state: the worst for commits/N."""
    return "state" not in path.parts


def story(
    root: Path,
    syncs: Syncs,
    rng: random.Random,
    *,
    stateful: bool,
    kept: Callable[[Path], bool] | None = None,
) -> str:
    """Run to the end of the input, across power cuts; return what the last one did."""
    root.mkdir()
    syncs.reboot(root)
    did = ""
    while True:
        try:
            engine = run(root, rng, stateful=stateful)
        except (PowerCut, SparkOnceError, StuckError) as error:
            if not syncs.is_off:
                raise AssertionError(did) from error
        if not syncs.is_off:
            break
        left = cut(root, syncs, rng, kept=kept or rng.choice((0.0, 0.3, 0.7, 1.0)))
        did = f"off at {syncs.cut_at}: {left}"
        syncs.reboot(root)
        if rng.random() < 0.5:
            syncs.cut_at = syncs.count + rng.randint(1, 40)  # and once more
    lines = [one.read_text().splitlines() for one in (root / "out").glob("part-*")]
    rows = Counter(json.loads(line)["number"] for each in lines for line in each)
    assert rows == Counter(range(ROWS)), did
    if stateful:
        assert engine.counted() == ROWS, did
    return did


@pytest.mark.parametrize(
    ("stateful", "kept"),
    [
        pytest.param(False, None, marks=long, id="stateless"),
        pytest.param(True, None, marks=long, id="stateful"),
        pytest.param(True, not_state, id="state-is-lost"),
    ],
)
def test_b1_a_query_goes_on_after_a_power_cut_at_each_sync(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stateful: bool,
    kept: Callable[[Path], bool] | None,
):
    cut_at, came = 0, True
    while came:
        cut_at += 1
        with monkeypatch.context() as patch:
            syncs = Syncs(cut_at=cut_at)
            syncs.watch(patch)
            root = tmp_path / f"{cut_at}"
            came = bool(story(root, syncs, random.Random(cut_at), stateful=stateful, kept=kept))
            syncs.close()
    assert cut_at > 40


def test_b1_what_is_durable_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A batch pays for its own files, however many lie there."""
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    for batch in range(10):
        (tmp_path / "spark" / "offsets" / f"{batch}").write_text("v1")
    files = DurableFiles(tmp_path / "spark")
    syncs = Syncs()
    syncs.watch(monkeypatch)
    files.begin()()
    assert len(syncs.files) == 10
    before = syncs.count
    files.begin()()
    assert syncs.count == before
    (tmp_path / "spark" / "offsets" / "10").write_text("v1")
    (tmp_path / "spark" / "offsets" / ".11.5.tmp").write_text("v")
    files.begin()()
    assert syncs.count == before + 4  # the file and its folder, each counted before and after
    assert len(syncs.files) == 11


def test_b1_many_new_files_are_synced_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in range(100):
        (tmp_path / f"{name}").write_text("v1")
    syncs = Syncs()
    syncs.watch(monkeypatch)
    synced: list[Path] = []
    monkeypatch.setattr(
        durable_files, "_sync_file_system", lambda folder: bool(synced.append(folder) or True)
    )
    files = DurableFiles(tmp_path)
    before = syncs.count
    files.begin()()
    files.begin()()
    assert (synced, syncs.count) == ([tmp_path], before)


def test_b1_the_call_for_a_whole_file_system_is_there(tmp_path: Path):
    assert durable_files._sync_file_system(tmp_path)
    with pytest.raises(FileNotFoundError):
        durable_files._sync_file_system(tmp_path / "none")


def test_b1_files_that_cannot_be_synced_fail_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "metadata").write_text("{}")
    files = DurableFiles(tmp_path / "spark")

    def broken(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(SparkOnceError, match="durable") as raised:
        files.begin()()
    assert not raised.value.permanent
    assert str(tmp_path / "spark") in raised.value.where


def test_b1_only_what_is_undecided_is_dropped(tmp_path: Path):
    kept = {"offsets/3": "v1\n{}\n9", "offsets/.3.crc": "c", "commits/2": "v1\n{}"}
    kept |= {"commits/.2.crc": "c", "metadata": "{}", "state/0/0/3.changelog": "x"}
    gone = {
        "offsets/4": "v1\n{}\n9",
        "offsets/.4.crc": "c",
        "commits/3": "v1\n{",
        "commits/.3.crc": "",
    }
    gone |= {"state/0/0/4.zip": ""}
    for name, text in (kept | gone).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    drop_undecided(tmp_path, 3)
    assert {name for name in kept | gone if (tmp_path / name).exists()} == set(kept)
    drop_undecided(tmp_path / "none", -1)


def test_before_the_first_decision_nothing_of_a_batch_stays(tmp_path: Path):
    """Spark refuses to begin with it (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`)."""
    for name in ("offsets/.0.6.tmp", "commits/.0.6.tmp", "state/0/0/1.changelog"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("v1")
    drop_undecided(tmp_path, 0)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    drop_undecided(tmp_path, -1)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_removed_before_the_first_decision_is_an_error(tmp_path: Path):
    """Else Spark begins with what a batch without a decision left."""
    (tmp_path / "state").write_text("a file in the place of the folder")
    with pytest.raises(NotADirectoryError):
        drop_undecided(tmp_path, -1)


@pytest.mark.parametrize(("text", "stays"), [("", False), ('{"id":', False), ('{"id":"q"}', True)])
def test_b1_before_the_first_decision_torn_metadata_is_dropped(
    tmp_path: Path, text: str, stays: bool
):
    (tmp_path / "metadata").write_text(text)
    drop_undecided(tmp_path, -1)
    assert (tmp_path / "metadata").exists() == stays
