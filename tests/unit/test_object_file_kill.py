"""A pipeline into files of an object store is killed at every step; readers see each record once.

The pipeline is that of integration/test_file_sink_crashes.py, without Spark or Kafka: real
processes, real SIGKILLs, and the product's coordinator, recovery and decision log. The store lives
in this process, so what is asserted is what it holds, after each death and at the end.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.files import FileSink, abandoned_files, committed_files
from tests.both_halves import both_halves
from tests.integration.file_sink_main import FORMATS, PER_BATCH, SUBTASKS
from tests.tiers import long, sampled
from tests.unit.file_targets import committed_objects, rows_of
from tests.unit.s3_server import BUCKET, Fault, S3Server
from transactions import crash_points
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend
from transactions.sink import Attempt, Owner

ROOT = Path(__file__).parents[2]
BATCHES = 3
TOTAL = BATCHES * PER_BATCH
URL = f"s3://{BUCKET}/lake"

#: Every point that a batch meets when nothing is lost; those without a number know no checkpoint.
IN_A_BATCH = [
    "batch_started@1",
    "records_queued@1",
    "upload_started",
    "records_flushed@1",
    "committables_collected@1",
    "prepared_checked@1",
    "decision_durable@1",
    "rename_started@1",
    "mark_stored",
    "renamed@1",
    "one_committed@1",
    "all_committed@1",
    "batch_finished@1",
]
#: The point of a first death, and those at which the recoveries from it die as well.
IN_A_RECOVERY = [
    ["records_flushed@1", "recovery_fenced", "recovery_settled"],
    ["upload_started", "recovery_settled"],
    ["committables_collected@1", "file_discarded", "file_discarded"],
    ["decision_durable@1", "recovery_fenced", "rename_started", "mark_stored"],
    ["mark_stored", "mark_stored", "renamed"],
]
HEALING = ["", "upload_started", "heal_durable", "mark_stored"]


class Pipeline:
    """It runs until it ends or dies; the store and the decision log outlive it."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.folder = folder
        self.server = server

    def run(self, crash_at: str = "") -> int:
        """Return how it ended."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if crash_at:
            environment["SPARKONCE_CRASH_AT"] = crash_at
        command = [sys.executable, "-m", "tests.integration.file_sink_main"]
        command += [str(self.folder), str(TOTAL), URL, json.dumps(self.server.options())]
        child = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )
        self.server.wait_idle()
        if child.returncode not in (0, -signal.SIGKILL):
            pytest.fail(child.stderr)
        return child.returncode

    def killed(self, crash_at: str) -> None:
        """Run it, see it die there, and see what readers see then."""
        assert self.run(crash_at) == -signal.SIGKILL
        self.audit()

    def finished(self) -> None:
        """Run it to its end: everything is there once, and nothing is left over."""
        assert self.run() == 0
        for one in FORMATS:
            assert self.audit()[one] == list(range(TOTAL))
            assert len(committed_objects(self.server, f"lake/{one}/")) == BATCHES * SUBTASKS
            assert len(committed_files(f"{URL}/{one}", self.server.options())) == BATCHES * SUBTASKS
            assert self.places(one, "_transactions") == []
            files = {place.rpartition("/")[2] for place in self.places(one, "_data")}
            assert files == set(committed_objects(self.server, f"lake/{one}/"))

    def places(self, file_format: str, folder: str) -> list[str]:
        prefix = f"lake/{file_format}/{folder}/"
        return sorted(key for key in self.server.objects if key.startswith(prefix))

    def audit(self) -> dict[str, list[int]]:
        """Assert that nothing is there twice, nothing is broken, and checkpoints are whole where
        they are said to be; return the numbers of the records.
        """
        numbers: dict[str, list[int]] = {}
        for one in FORMATS:
            found: dict[str, list[dict[str, Any]]] = {
                name: [plain(row, one) for row in rows_of(data, one)]
                for name, data in committed_objects(self.server, f"lake/{one}/").items()
            }
            rows = sorted((r for rows in found.values() for r in rows), key=lambda r: r["number"])
            numbers[one] = [row["number"] for row in rows]
            assert len(set(numbers[one])) == len(rows), f"{one}: a record is there twice"
            assert rows == [record(number) for number in numbers[one]]
            by_checkpoint: dict[int, list[int]] = {}
            for file in committed_files(f"{URL}/{one}", self.server.options()):
                mine = [row["number"] for row in found[file.path.rpartition("/")[2]]]
                by_checkpoint.setdefault(file.checkpoint_id, []).extend(mine)
            assert list(by_checkpoint) == list(range(len(by_checkpoint)))
            for number, mine in by_checkpoint.items():
                expected = range(number * PER_BATCH, (number + 1) * PER_BATCH)
                assert sorted(mine) == list(expected)
            assert abandoned_files(f"{URL}/{one}", self.server.options()) == []
        return numbers


def record(number: int) -> dict[str, Any]:
    """Return what a reader must find."""
    at = dt.datetime(2024, 5, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number)
    return {"number": number, "text": f"row {number}", "bytes": number.to_bytes(8), "at": at}


def plain(row: dict[str, Any], file_format: str) -> dict[str, Any]:
    if file_format == "json":
        row["bytes"] = base64.b64decode(row["bytes"])
        row["at"] = dt.datetime.fromisoformat(row["at"])
    return row


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with S3Server() as server:
        server.page = 5
        yield Pipeline(tmp_path, server)


# One of each class is killed on disk: `integration/test_file_sink_crashes.py`.
@pytest.mark.parametrize("point", sampled(IN_A_BATCH, "decision_durable@1"))
def test_killed_in_a_batch(pipeline, point):
    pipeline.killed(point)
    pipeline.finished()


@long  # one is killed on disk
@pytest.mark.parametrize("points", IN_A_RECOVERY, ids="+".join)
def test_killed_in_a_batch_and_again_in_its_recovery(pipeline, points):
    for point in points:
        pipeline.killed(point)
    pipeline.finished()


def test_every_point_of_a_store_is_among_them():
    met = {one.partition("@")[0] for points in IN_A_RECOVERY for one in points} | set(IN_A_BATCH)
    assert {*crash_points.OBJECT_POINTS} <= met


@pytest.mark.long
def test_killed_after_every_commit(pipeline):
    """Each run gets at least one file further, its recovery included."""
    deaths = 0
    while pipeline.run("renamed") != 0:
        pipeline.audit()
        deaths += 1
        assert deaths <= BATCHES * SUBTASKS * len(FORMATS)
    assert deaths > BATCHES
    pipeline.finished()


@pytest.mark.parametrize("point", sampled(HEALING))
def test_a_prepared_file_that_somebody_removed_is_written_again(pipeline, point):
    """Removed after the decision, while the pipeline was down; its healing may be killed too."""
    pipeline.killed("decision_durable@1")
    last = read_log(LocalFileBackend(pipeline.folder / "log")).decision
    assert last is not None
    lost = [one for one in last.committables if one.subtask == 0]
    assert len(lost) == len(FORMATS)
    for one in lost:
        name = one.marker_partition.rpartition(":")[0]
        del pipeline.server.objects[f"lake/{one.sink}/_data/{name}"]
    if point:
        pipeline.killed(point)
    pipeline.finished()


OWNER = Owner(application_id="app", log_id="log", run_epoch=1)


def upload(options: dict[str, str]) -> None:
    """Write one file of several parts: the task that is killed."""
    sink = both_halves(FileSink(path=URL, store=options), checkpoint_timeout_s=30)
    attempt = Attempt(owner=OWNER, checkpoint_id=0, subtask=0, attempt_id="1.0")
    transaction = sink.begin_transaction(attempt)
    sink.invoke(transaction, pa.record_batch({"noise": pa.array([os.urandom(30 << 20)])}))
    sink.pre_commit(transaction)


@pytest.mark.parametrize("request_", sampled(["POST", "PART", "END"], "PART"))
def test_a_task_that_is_killed_between_two_parts_is_swept(tmp_path, request_):
    """What it has sent is in no object: the store itself removes it, when it is told to."""
    with S3Server() as server:
        held = server.fail(Fault(method=request_, before=threading.Event(), status=0))
        work = "import sys, json; from tests.unit.test_object_file_kill import upload; "
        work += "upload(json.loads(sys.argv[1]))"
        command = [sys.executable, "-c", work, json.dumps(server.options())]
        with subprocess.Popen(command, cwd=ROOT) as task:
            while not held.met.wait(0.1):
                assert task.poll() is None, "it has ended, and was not held"
            task.kill()
        held.before.set()
        server.wait_idle()
        assert [key.split("/")[1] for key in server.objects] == ["_transactions"]
        assert bool(server.uploads) == (request_ != "POST")
        sink = both_halves(FileSink(path=URL, store=server.options()), checkpoint_timeout_s=30)
        deadline = Deadline(30)
        sink.recover_and_abort(sink.lingering(OWNER, deadline), deadline)
        assert server.objects == {}
