"""Which savepoint a pipeline may begin with, and that all of it happens or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline import restored_checkpoint, restoring
from connectors.pipeline.restored_checkpoint import RestoredCheckpoint
from connectors.pipeline.restoring import FromSavepoint, restore
from connectors.pipeline.run_options import RunOptions
from connectors.spark import restored_files
from connectors.spark.checkpoint_files import files_of, finished_checkpoint
from connectors.spark.restored_files import SparkFiles
from tests.unit.samples import decision
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import SavepointError
from transactions.log_backend import LocalFileBackend, MemoryBackend
from transactions.log_location import LogLocation
from transactions.savepoint import savepoint_of
from transactions.savepoint_place import (
    FolderCopier,
    delete_savepoint,
    read_savepoint,
    write_savepoint,
)

OFFSETS = '{"in":{"0":10,"1":20},"other":{"0":30}}'
STEPS = (
    (restored_files, "copy_files"),
    (RestoredCheckpoint, "_bind"),
    (restored_checkpoint, "restored_log"),
    (restored_checkpoint, "sync_folder"),
)


def options(checkpoint: Path, *, topics: str = "in,other", sink: str = "out", **more: Any):
    return RunOptions(
        app_id=more.pop("app_id", "app"),
        checkpoint=CheckpointLocation(checkpoint),
        sources=[KafkaSource(bootstrap_servers="nobody:1", subscribe=topics)],
        sinks=[KafkaSink(bootstrap_servers="nobody:1", topic=sink)],
        checkpoint_timeout_s=1.0,
        restart_budget_s=1.0,
        **more,
    )


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return what the application's group has committed, to be filled by a test."""
    found: dict[str, int] = {}

    def of(source: KafkaSource, group: str) -> Mapping[str, int]:
        assert group == "app"
        return {
            name: at for name, at in found.items() if source.reads_topic(name.rpartition("-")[0])
        }

    monkeypatch.setattr(restoring, "_committed", of)
    return found


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """Return Spark's part of a checkpoint after batch 7, while batch 8 is planned."""
    folder = tmp_path / "first" / "spark"
    for name in ("offsets/6", "offsets/7", "offsets/8", "commits/6", "commits/7", "metadata"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"v1\n{{}}\n{OFFSETS}" if "offsets" in name else "v1\n{}")
    (folder / "offsets/.7.crc").write_bytes(b"crc")
    (folder / "offsets/.8.crc").write_bytes(b"crc")
    (folder / "offsets/.9.0d1e.tmp").write_bytes(b"half")
    (folder / "sources/0").mkdir(parents=True)
    (folder / "sources/0/0").write_bytes(b"first offsets")
    return folder


@pytest.fixture
def place(tmp_path: Path, spark: Path, committed: dict[str, int]) -> Path:
    return saved(tmp_path, spark, committed)


def saved(
    tmp_path: Path, spark: Path, committed: dict[str, int], made: RunOptions | None = None
) -> Path:
    made = made or options(tmp_path / "first")
    log = DecisionLog.open(MemoryBackend(), application_id="app", identity=made.all_identity())
    log.decide(decision(7, end_offsets=(OFFSETS,)))
    committed.update({"in-0": 10, "in-1": 20, "other-0": 30})
    files = files_of(spark.parent, 7)
    folder = tmp_path / "savepoints"
    place = write_savepoint(folder, savepoint_of(log.state), files, FolderCopier()).folder
    assert place is not None
    return place


def restored(place: Path, run: RunOptions, *, places: int | None = None, **wanted: bool):
    spark: Any = None  # only an address needs a session
    return restore(FromSavepoint(place=place, **wanted), run, SparkFiles(spark, places))


def test_a_folder_begins_as_the_first_one_was(place: Path, tmp_path: Path):
    run = options(tmp_path / "second")
    made = restored(place, run)
    assert made is not None
    files = {
        p.relative_to(run.checkpoint.folder).as_posix()
        for p in run.checkpoint.folder.rglob("*")
        if p.is_file()
    }
    assert files == {
        *(f"spark/{n}" for n in ("offsets/6", "offsets/7", "commits/6")),
        *(f"spark/{n}" for n in ("commits/7", "metadata", "sources/0/0")),
        "log-id",
        "restored-from",
        f"decisions/{1:020d}",
    }
    assert finished_checkpoint(run.checkpoint.folder / "spark") == 7
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.log_id == (run.checkpoint.folder / "log-id").read_text()
    assert state.log_id != made.log.log_id
    assert state.decision is not None
    assert (state.decision.checkpoint_id, state.decision.committables) == (7, ())
    assert list(tmp_path.glob(".second.*")) == []


def test_a_topic_that_rests_rests_in_the_new_folder_too(
    tmp_path: Path, spark: Path, committed: dict[str, int]
):
    """The pipeline had left it out before the savepoint; its offset is no foreign part."""
    place = saved(tmp_path, spark, committed, options(tmp_path / "first", topics="in"))
    run = options(tmp_path / "second", topics="in")
    assert restored(place, run) is not None
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.decision is not None
    assert state.decision.end_offsets == (OFFSETS,)
    both = options(tmp_path / "third", topics="other")
    with pytest.raises(SavepointError, match="parts that the pipeline does not have"):
        restored(place, both)


def test_the_same_command_again_goes_on_where_it_is(place: Path, tmp_path: Path):
    run = options(tmp_path / "second")
    restored(place, run)
    backend = LocalFileBackend(run.checkpoint.folder / "decisions")
    log = DecisionLog.open(backend, application_id="app", identity=run.all_identity())
    log.decide(decision(8, generation=1))
    assert restored(place, run) is None
    assert read_log(backend).decision == decision(8, generation=1)


def test_the_same_command_works_when_the_savepoint_is_gone(place: Path, tmp_path: Path):
    run = options(tmp_path / "second")
    restored(place, run, claim=True)
    assert place.exists(), "nothing of the pipeline is sure yet"
    delete_savepoint(place, FolderCopier())
    assert restored(place, run, claim=True) is None


def test_a_restored_folder_that_never_ran_is_checked_again(
    place: Path, tmp_path: Path, committed: dict[str, int]
):
    """Its first start failed, and the first pipeline went on for a day."""
    run = options(tmp_path / "second")
    restored(place, run)
    backend = LocalFileBackend(run.checkpoint.folder / "decisions")
    DecisionLog.open(backend, application_id="app", identity=run.all_identity())
    committed["in-1"] = 21
    with pytest.raises(SavepointError, match="produced twice"):
        restored(place, run)
    log = DecisionLog.open(backend, application_id="app", identity=run.all_identity())
    log.decide(decision(8, generation=1))
    assert restored(place, run) is None, "it has decided something itself: that is its own output"


def test_a_log_elsewhere_that_was_lost_is_not_begun_again(place: Path, tmp_path: Path):
    run = options(tmp_path / "second", decision_log=LogLocation(tmp_path / "log"))
    restored(place, run)
    shutil.rmtree(tmp_path / "log")
    restored(place, run)
    assert run.log_location.backend().list() == []


def test_two_restores_at_once_make_one_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = options(tmp_path / "second")
    whole = restored_files.copy_files

    def and_another(*args: Any) -> None:
        monkeypatch.setattr(restored_files, "copy_files", whole)
        assert restored(place, run) is not None
        whole(*args)

    monkeypatch.setattr(restored_files, "copy_files", and_another)
    with pytest.raises(SavepointError, match="could not be made"):
        restored(place, run)
    assert (run.checkpoint.folder / "log-id").read_text() == read_log(
        LocalFileBackend(run.checkpoint.folder / "decisions")
    ).log_id
    assert list(tmp_path.glob(".second.*")) == []


def test_one_that_is_not_claimed_begins_many(place: Path, tmp_path: Path):
    for name in ("second", "third"):
        assert restored(place, options(tmp_path / name)) is not None


@contextlib.contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], when: str) -> Iterator[None]:
    """Let what is done in here end before or after a function."""
    with monkeypatch.context() as patched:
        whole = getattr(*step)

        def crashing(*args: Any, **more: Any) -> None:
            if when == "after":
                whole(*args, **more)
            raise KeyboardInterrupt

        patched.setattr(*step, crashing)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("log", ["folder", "elsewhere"])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_each_step_then_the_same_command(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step, when, log
):
    elsewhere = LogLocation(tmp_path / "log") if log == "elsewhere" else None
    run = options(tmp_path / "second", decision_log=elsewhere)
    with killed(monkeypatch, step, when):
        restored(place, run)
    restored(place, run)
    state = read_log(run.log_location.backend())
    assert state.decision is not None
    assert state.decision.checkpoint_id == 7
    assert state.tail == 1
    assert (run.checkpoint.folder / "log-id").read_text() == state.log_id
    assert finished_checkpoint(run.checkpoint.folder / "spark") == 7
    assert list(tmp_path.glob(".second.*")) == []


def test_a_folder_in_use_is_not_overwritten(place: Path, tmp_path: Path):
    run = options(tmp_path / "first")
    before = sorted(run.checkpoint.folder.rglob("*"))
    with pytest.raises(SavepointError, match="empty checkpoint only"):
        restored(place, run)
    assert sorted(run.checkpoint.folder.rglob("*")) == before


def test_another_savepoint_of_the_same_name_is_told_apart(place: Path, tmp_path: Path):
    run = options(tmp_path / "second")
    restored(place, run)
    text = (run.checkpoint.folder / "restored-from").read_text()
    (run.checkpoint.folder / "restored-from").unlink()
    was = read_savepoint(place).savepoint_id
    (run.checkpoint.folder / "restored-from").write_text(text.replace(was, "00000000", 1))
    with pytest.raises(SavepointError, match="another savepoint of this name") as refused:
        restored(place, run)
    assert str(place) in refused.value.cause
    assert str(run.checkpoint.folder) in refused.value.where


def test_one_of_another_application_or_mode_is_refused(place: Path, tmp_path: Path):
    with pytest.raises(SavepointError, match="is of the application 'app'"):
        restored(place, options(tmp_path / "second", app_id="mine"))
    with pytest.raises(SavepointError, match="other mode"):
        restored(place, options(tmp_path / "second", identity={"mode": "continuous"}))
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("change", [{"topics": "in"}, {"sink": "elsewhere"}])
def test_state_of_what_is_gone_is_refused_unless_allowed(place: Path, tmp_path: Path, change):
    run = options(tmp_path / "second", **change)
    with pytest.raises(SavepointError, match="does not have") as caught:
        restored(place, run)
    assert "--allow-non-restored-state" in caught.value.option
    assert not run.checkpoint.folder.exists()
    assert restored(place, run, allow_non_restored_state=True) is not None
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.identity == run.all_identity()
    kept = {"in": {"0": 10, "1": 20}}
    wanted = kept if "topics" in change else {**kept, "other": {"0": 30}}
    assert state.decision is not None
    assert orjson.loads(state.decision.end_offsets[0]) == wanted
    lines = (run.checkpoint.folder / "spark/offsets/7").read_text().splitlines()
    assert [orjson.loads(line) for line in lines[2:]] == [wanted]


def reading(checkpoint: Path, **how: Any) -> RunOptions:
    """Return the options of the same pipeline whose source names its topics in another way."""
    sources = [KafkaSource(bootstrap_servers="nobody:1", **how)]
    return dataclasses.replace(options(checkpoint), sources=sources)


@pytest.mark.parametrize(
    "how",
    [{"subscribe_pattern": "in|oth.*"}, {"assign": {"in": [0, 1], "other": [0]}}],
    ids=["subscribePattern", "assign"],
)
def test_topics_that_are_named_in_another_way_are_not_gone(place: Path, tmp_path: Path, how):
    """To leave them out would empty the offsets: the whole input would be read again."""
    run = reading(tmp_path / "second", **how)
    assert restored(place, run) is not None
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.identity == run.all_identity()
    assert state.decision is not None
    assert state.decision.end_offsets == (OFFSETS,)
    assert (run.checkpoint.folder / "spark/offsets/7").read_text().endswith(OFFSETS)


@pytest.mark.parametrize("before", ["in|other", ".*"])
@pytest.mark.parametrize(
    "how", [{"subscribe": "in"}, {"subscribe_pattern": "i.*"}], ids=["subscribe", "pattern"]
)
def test_a_topic_that_an_older_pattern_had_found_is_gone(
    spark: Path, tmp_path: Path, committed: dict[str, int], before: str, how: dict[str, str]
):
    place = saved(tmp_path, spark, committed, reading(tmp_path / "x", subscribe_pattern=before))
    run = reading(tmp_path / "second", **how)
    with pytest.raises(SavepointError, match="does not have") as caught:
        restored(place, run)
    assert "topics ['other']" in caught.value.where
    assert restored(place, run, allow_non_restored_state=True) is not None
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.decision is not None
    assert orjson.loads(state.decision.end_offsets[0]) == {"in": {"0": 10, "1": 20}}


def test_what_is_new_needs_no_permission(place: Path, tmp_path: Path):
    run = options(tmp_path / "second", topics="in,other,third")
    more = KafkaSink(bootstrap_servers="nobody:1", topic="more")
    run = dataclasses.replace(run, sinks=[*run.sinks, more])
    restored(place, run)
    state = read_log(LocalFileBackend(run.checkpoint.folder / "decisions"))
    assert state.identity == run.all_identity()
    assert state.decision is not None
    assert state.decision.end_offsets == (OFFSETS,)


@pytest.mark.parametrize("sinks", [["other"], ["out", "more"]])
def test_state_is_found_by_place_so_the_sinks_stay_as_they_are(
    spark: Path, tmp_path: Path, committed: dict[str, int], sinks: list[str]
):
    (spark / "state/0/0").mkdir(parents=True)
    (spark / "state/0/0/8.delta").write_bytes(b"state")
    place = saved(tmp_path, spark, committed)
    run = options(tmp_path / "second")
    changed = [KafkaSink(bootstrap_servers="nobody:1", topic=name) for name in sinks]
    with pytest.raises(SavepointError, match="must keep its sinks"):
        restored(place, dataclasses.replace(run, sinks=changed), allow_non_restored_state=True)
    assert restored(place, run) is not None
    assert (run.checkpoint.folder / "spark/state/0/0/8.delta").read_bytes() == b"state"


def test_another_number_of_sources_is_refused(place: Path, tmp_path: Path):
    run = options(tmp_path / "second")
    run = dataclasses.replace(run, sources=[*run.sources, *run.sources])
    with pytest.raises(SavepointError, match="another number of sources"):
        restored(place, run)
    assert not run.checkpoint.folder.exists()


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 2), (3, 2)])
def test_one_source_has_a_place_for_each_branch_that_reads_it(
    spark: Path, tmp_path: Path, committed: dict[str, int], before: int, now: int
):
    """Spark writes the offset of each place, and wants as many in the last two batches."""
    for number in (6, 7):
        (spark / f"offsets/{number}").write_text("\n".join(["v1", "{}", *[OFFSETS] * before]))
    run = options(tmp_path / "second")
    restored(saved(tmp_path, spark, committed), run, places=now)
    for number in (6, 7):
        lines = (run.checkpoint.folder / f"spark/offsets/{number}").read_text().splitlines()
        assert lines == ["v1", "{}", *[OFFSETS] * now]


def test_another_plan_above_state_is_refused(
    spark: Path, tmp_path: Path, committed: dict[str, int]
):
    """The sinks are as they were, but their queries are not: state would go to another operator."""
    (spark / "state/0/0").mkdir(parents=True)
    (spark / "state/0/0/8.delta").write_bytes(b"state")
    run = options(tmp_path / "second")
    with pytest.raises(SavepointError, match="another number of sources"):
        restored(saved(tmp_path, spark, committed), run, places=2)
    assert not run.checkpoint.folder.exists()


def test_places_of_different_sources_are_not_guessed(
    spark: Path, tmp_path: Path, committed: dict[str, int]
):
    """Two sources became one: which of the offsets would be its own?"""
    (spark / "offsets/7").write_text(f'v1\n{{}}\n{OFFSETS}\n{{"in":{{"0":11}}}}')
    run = options(tmp_path / "second")
    with pytest.raises(SavepointError, match="another number of sources"):
        restored(saved(tmp_path, spark, committed), run, places=1)
    assert not run.checkpoint.folder.exists()


def test_topics_stay_in_offsets_of_an_unknown_format(
    spark: Path, tmp_path: Path, committed: dict[str, int]
):
    (spark / "offsets/7").write_text("v2\n{}\n{}")
    place = saved(tmp_path, spark, committed)
    run = options(tmp_path / "second", topics="in")
    with pytest.raises(SavepointError, match="another version of Spark"):
        restored(place, run, allow_non_restored_state=True)
    assert not run.checkpoint.folder.exists()
    assert restored(place, options(tmp_path / "second")) is not None


def test_output_that_is_newer_would_be_produced_twice(
    place: Path, tmp_path: Path, committed: dict[str, int], caplog: pytest.LogCaptureFixture
):
    committed.update({"in-1": 1020, "other-0": 31, "in-2": 5})  # in-2 was made after it
    run = options(tmp_path / "second")
    with pytest.raises(SavepointError, match=r"1,006 offsets .* produced twice") as caught:
        restored(place, run)
    assert "in-1 [20, 1020), in-2 [0, 5)" in caught.value.where
    assert "--accept-duplicates" in caught.value.option
    assert not run.checkpoint.folder.exists()
    assert restored(place, run, accept_duplicates=True) is not None
    assert "1,006 offsets" in caplog.text


def test_a_broken_one_changes_nothing(place: Path, tmp_path: Path):
    (place / "files/spark/sources/0/0").write_bytes(b"other")
    run = options(tmp_path / "second")
    with pytest.raises(SavepointError, match="cannot be trusted"):
        restored(place, run)
    assert not run.checkpoint.folder.exists()
