"""Savepoints at an address: how a driver is asked there, what is written, and what begins there.

A pipeline with Spark's files in HDFS: `tests/journeys/test_lost_machine.py`.
"""

# ruff: noqa: F811 - fixtures are imported, and named again by who takes them

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from connectors.cli import savepoint as savepoint_command
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline import restored_checkpoint, restoring
from connectors.pipeline.restored_checkpoint import (
    RestoredCheckpoint,
    SavedFiles,
    facts_of,
    log_is_begun,
)
from connectors.pipeline.restoring import FromSavepoint, restore
from connectors.pipeline.run_options import RunOptions
from connectors.pipeline.savepoint_request import SavepointRequest, SavepointRequests
from tests.unit.s3_server import Fault, S3Server
from tests.unit.samples import decision
from tests.unit.test_checkpoint_address import (  # noqa: F401 - fixtures
    BRIEF,
    four_parts,
    job,
    log,
    place,
    run_at,
    server,
    typed,
)
from tests.unit.test_restoring import killed
from tests.waiting import until
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import SavepointError, SavepointNotMadeError, SparkOnceError
from transactions.log_backend import MemoryBackend
from transactions.savepoint import File, savepoint_of
from transactions.savepoint_place import (
    copy_files,
    delete_savepoint,
    read_savepoint,
    write_savepoint,
)

OFFSETS = '{"in":{"0":10}}'
LOGS = ("offsets", "commits")
SAVEPOINTS = "s3://bucket/savepoints"
SOON_S = 20.0


@dataclasses.dataclass
class StoreCopier:
    """Copies objects of the server, as Hadoop would; see `FileCopier`."""

    objects: dict[str, bytes]
    at_once: int = 2

    def copy(self, source: str, target: str) -> File:
        data = self.objects[source.removeprefix("s3a://bucket/")]
        self.objects[target.removeprefix("s3a://bucket/")] = data
        return File(size=len(data), sha256=data.hex())

    def remove(self, folder: str) -> None:
        below = folder.removeprefix("s3a://bucket/") + "/"
        for name in [one for one in self.objects if one.startswith(below)]:
            del self.objects[name]


@dataclasses.dataclass
class StoreEngine:
    """An engine with files at an address, and no state; see `EngineFiles`."""

    copier: StoreCopier

    def has_state(self, _names: Mapping[str, Any]) -> bool:
        return False

    def has_any(self, checkpoint: CheckpointLocation) -> bool:
        below = checkpoint.file("spark").removeprefix("s3a://bucket/")
        return any(one.startswith(below) for one in self.copier.objects)

    def check(self, saved: SavedFiles) -> None:
        assert (saved.sources, saved.forget) == (1, frozenset())

    def bring(
        self, saved: SavedFiles, target: CheckpointLocation, before_each: Callable[[], None]
    ) -> None:
        copy_files(saved.place, saved.savepoint, target, self.copier, before_each)


@pytest.fixture
def copier(server: S3Server) -> StoreCopier:
    for name in LOGS:
        server.objects[f"first/spark/{name}/7"] = name.encode()
    return StoreCopier(server.objects)


@pytest.fixture
def made(
    server: S3Server, copier: StoreCopier, monkeypatch: pytest.MonkeyPatch
) -> CheckpointLocation:
    """Return a savepoint with two files, of a pipeline at an address."""
    monkeypatch.setattr(restoring, "_committed", lambda *_: {"in-0": 10})
    first = options(CheckpointLocation("s3://bucket/first", server.options(**BRIEF)))
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity=first.all_identity())
    log.decide(decision(7, end_offsets=(OFFSETS,)))
    files = {f"spark/{name}/7": f"s3a://bucket/first/spark/{name}/7" for name in LOGS}
    where = first.checkpoint.beside(f"{SAVEPOINTS}/")
    return write_savepoint(where, savepoint_of(log.state), files, copier)


def options(checkpoint: CheckpointLocation) -> RunOptions:
    times: Any = {"checkpoint_timeout_s": 1.0, "restart_budget_s": 1.0}
    source = KafkaSource(bootstrap_servers="nobody:1", subscribe="in")
    sink = KafkaSink(bootstrap_servers="nobody:1", topic="out")
    return RunOptions(app_id="app", checkpoint=checkpoint, sources=[source], sinks=[sink], **times)


def restored(made: CheckpointLocation, place: CheckpointLocation, copier: StoreCopier):
    return restore(FromSavepoint(place=str(made)), options(place), StoreEngine(copier))


# --- where it lies --------------------------------------------------------------------------------


def test_what_has_no_manifest_is_no_savepoint(made, server, copier):
    name = str(made).rpartition("/")[2]
    assert name.startswith("app-7-")
    assert {one for one in server.objects if one.startswith("savepoints")} == {
        f"savepoints/{name}/savepoint.json",
        *(f"savepoints/{name}/files/spark/{each}/7" for each in LOGS),
    }
    assert read_savepoint(made).decision.checkpoint_id == 7
    delete_savepoint(made, copier)
    assert not [one for one in server.objects if one.startswith("savepoints")]
    with pytest.raises(SavepointError, match="There is no savepoint"):
        read_savepoint(made)


def test_what_could_not_be_copied_leaves_nothing(made, server, copier):
    before = set(server.objects)
    another = dataclasses.replace(read_savepoint(made), savepoint_id="new")
    files = {"a": "s3a://bucket/first/spark/offsets/7", "b": "s3a://bucket/nothing"}
    with pytest.raises(KeyError):
        write_savepoint(made.beside(SAVEPOINTS), another, files, copier)
    assert set(server.objects) == before


# --- a checkpoint that begins there ---------------------------------------------------------------

STEPS = (
    (RestoredCheckpoint, "_bind"),
    (StoreEngine, "bring"),
    (restored_checkpoint, "_begin_log"),
    (restored_checkpoint, "begin_log_elsewhere"),
)


@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_that_is_killed_is_repeated_or_refused(
    made, place, server, copier, monkeypatch, step, when
):
    with killed(monkeypatch, step, when):
        restored(made, place, copier)
    if facts_of(place) is not None and not place.has_log():
        with pytest.raises(SavepointError, match="was not finished") as raised:
            run_at(place, monkeypatch).open()
        assert f"--from-savepoint {made}" in four_parts(raised.value).option
        assert not place.has_log()
    had_log = place.has_log()
    assert (restored(made, place, copier) is None) == had_log, "the log comes last"
    assert log_is_begun(place)
    state = read_log(place.log.backend())
    assert state.decision is not None
    assert (state.decision.checkpoint_id, state.decision.end_offsets) == (7, (OFFSETS,))
    assert state.tail == 1
    assert server.objects[f"app/{BOUND_TO}"].decode() == state.log_id
    assert [server.objects[f"app/spark/{name}/7"].decode() for name in LOGS] == [*LOGS]
    assert restored(made, place, copier) is None, "the same command line starts it again"


def test_an_address_in_use_is_not_overwritten(made, place, server, copier, monkeypatch):
    run = run_at(place, monkeypatch)
    run.open()
    run.close()
    before = dict(server.objects)
    with pytest.raises(SavepointError, match="empty checkpoint only"):
        restored(made, place, copier)
    assert server.objects == before


def test_a_file_that_was_changed_is_not_restored(made, place, server, copier):
    (name,) = (one for one in server.objects if one.startswith("savepoints") and "commits" in one)
    server.objects[name] = b"changed"
    with pytest.raises(SavepointError, match="cannot be trusted") as raised:
        restored(made, place, copier)
    assert "spark/commits/7" in four_parts(raised.value).where
    assert not place.has_log()


def test_of_two_starts_at_once_the_slower_one_stops(made, place, server, copier, monkeypatch):
    """The first one's pipeline runs on these files already."""
    bring = StoreEngine.bring

    def meanwhile(self: StoreEngine, *args: Any, **more: Any) -> None:
        monkeypatch.setattr(StoreEngine, "bring", bring)
        assert restored(made, place, copier) is not None
        server.objects["app/spark/offsets/7"] = b"of the pipeline that runs"
        bring(self, *args, **more)

    monkeypatch.setattr(StoreEngine, "bring", meanwhile)
    with pytest.raises(SparkOnceError, match="Another start") as raised:
        restored(made, place, copier)
    four_parts(raised.value)
    assert server.objects["app/spark/offsets/7"] == b"of the pipeline that runs"
    assert read_log(place.log.backend()).tail == 1


@pytest.mark.parametrize("there", ["spark/commits/3", "log-id"])
def test_what_another_pipeline_has_there_is_left_alone(made, place, server, copier, there):
    server.objects[f"app/{there}"] = b"another's"
    before = dict(server.objects)
    with pytest.raises(SavepointError, match="empty checkpoint only"):
        restored(made, place, copier)
    assert server.objects == before


def test_a_pipeline_that_comes_first_keeps_its_log(made, place, server, copier, monkeypatch):
    bind = RestoredCheckpoint._bind

    def meanwhile(self: RestoredCheckpoint, files: Any) -> Any:
        server.objects[f"app/{BOUND_TO}"] = b"another's"
        return bind(self, files)

    monkeypatch.setattr(RestoredCheckpoint, "_bind", meanwhile)
    with pytest.raises(SavepointError, match="empty checkpoint only"):
        restored(made, place, copier)
    assert "app/spark/offsets/7" not in server.objects


def test_a_restored_pipeline_needs_the_savepoints_store_no_more(
    made, place, server, copier, caplog
):
    assert restored(made, place, copier) is not None
    server.fail(Fault(method="GET", key="savepoints", status=403, times=999))
    assert restored(made, place, copier) is None
    assert "cannot be looked at" in caplog.text


def test_a_place_has_more_than_one_name(made, place, copier):
    assert restored(made, place, copier) is not None
    for name in (f"{made}/", str(made).replace("s3://", "S3A://")):
        assert restored(place.beside(name), place, copier) is None


def test_a_manifest_that_is_in_doubt_is_taken_back(made, server, copier):
    before = set(server.objects)
    another = dataclasses.replace(read_savepoint(made), savepoint_id="new")
    put = Fault(method="PUT", key="savepoint.json", carried_out=True, status=500, times=999)
    server.fail(put)
    with pytest.raises((OSError, SparkOnceError)):
        write_savepoint(made.beside(SAVEPOINTS), another, {}, copier)
    assert set(server.objects) == before


# --- how a driver is asked there ------------------------------------------------------------------


def test_the_command_asks_a_driver_whose_checkpoint_is_at_an_address(log, job, place, server):
    before = set(server.objects)
    name = "app-7-1234abcd"

    def driver() -> list[SavepointRequest]:
        """Answer the ask, and return what is pending before the next look."""
        until(lambda: any(one.endswith(".ask") for one in server.objects))
        requests = SavepointRequests(place)
        until(requests.pending)
        (ask,) = requests.pending()
        requests.answer(ask, place.beside(f"{ask.folder}/{name}"))
        left = requests.pending()
        requests.close()
        return left

    with ThreadPoolExecutor(1) as threads:
        answered = threads.submit(driver)
        done = typed(savepoint_command.command, "take", job, "--to", SAVEPOINTS)
        assert answered.result(SOON_S) == [], "it is answered once"
    assert done.exit_code == 0, done.exception
    assert done.stdout.strip() == f"{SAVEPOINTS}/{name}"
    assert set(server.objects) == before, "neither ask nor answer stays"


@pytest.mark.parametrize("status", [503, 403])
def test_a_store_that_fails_for_a_while_loses_no_ask(place, server, caplog, status):
    requests = SavepointRequests(place)
    server.fail(Fault(method="LIST", status=status, times=999))
    for _ in range(2):
        assert requests.pending(anew=True) == []
    assert caplog.text.count("cannot be served") == 1
    server.heal()
    ask = b'{"folder": "s3://bucket/to", "stop": false, "until_ms": 9999999999999}'
    place.part("savepoint-requests").files().put_if_absent("1.ask", ask)
    (one,) = requests.pending(anew=True)
    assert (one.request_id, one.folder) == ("1", "s3://bucket/to")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_a_driver_may_not_do_there_ends_no_pipeline(place, server, caplog, method):
    ask = b'{"folder": "s3://bucket/to", "stop": false, "until_ms": 9999999999999}'
    place.part("savepoint-requests").files().put_if_absent("1.ask", ask)
    requests = SavepointRequests(place)
    server.fail(Fault(method=method, key="savepoint-requests", status=403, times=999))
    for one in requests.pending(anew=True):
        requests.answer(one, place)
    assert requests.pending(anew=True) == []
    assert caplog.text.count("cannot be served") == 1


def test_an_ask_that_was_withdrawn_after_the_look_stops_nothing(place, server):
    ask = b'{"folder": "s3://bucket/to", "stop": true, "until_ms": 9999999999999}'
    files = place.part("savepoint-requests").files()
    files.put_if_absent("1.ask", ask)
    requests = SavepointRequests(place)
    until(requests.pending)
    files.delete("1.ask")
    assert requests.pending() == []


def test_a_savepoint_of_a_stopped_pipeline_can_lie_in_the_store(log, job, place):
    log.settle()
    done = typed(savepoint_command.command, "take", job, "--to", SAVEPOINTS, "--stopped")
    assert done.exit_code == 0, done.exception
    savepoint = read_savepoint(place.beside(done.stdout.strip()))
    assert savepoint.decision.checkpoint_id == 7
    assert not savepoint.files


def test_only_a_driver_copies_sparks_files_from_an_address(log, job, tmp_path):
    log.settle()
    job.write_text(job.read_text().replace('mode = "continuous"\n', ""))
    done = typed(savepoint_command.command, "take", job, "--to", tmp_path / "to", "--stopped")
    assert isinstance(done.exception, SavepointNotMadeError)
    assert "--stop" in four_parts(done.exception).option
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("words", [("list",), ("delete", "--yes")], ids=["list", "delete"])
def test_what_the_stores_own_tools_do_is_refused(words):
    done = typed(savepoint_command.command, *words, SAVEPOINTS)
    assert "aws s3" in four_parts(done.exception).cause
