"""A query on Spark's own Kafka source becomes a pipeline: where it begins, and only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.kafka.source.offsets import parse_offsets
from connectors.options.kafka_source import KafkaSource
from connectors.pipeline import migration
from connectors.pipeline.migration import check_stopped, migrate, plan_migration
from tests.unit.spark_checkpoints import COMMIT, batch, make, of_one_topic
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import ConfigurationError, IdentityMismatchError
from transactions.log_backend import LocalFileBackend
from transactions.log_location import LogLocation

PLANNED = '{"a":{"0":9,"1":7}}'
TWO_TOPICS = batch('{"a":{"0":8}}', '{"b":{"0":3}}')


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def source(**options: object) -> KafkaSource:
    return KafkaSource(bootstrap_servers="nobody:1", **options)


def log_of(new: Path):
    return read_log(LocalFileBackend(new / "decisions"))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the start ------------------------------------------------------------------------------------


def test_the_log_begins_with_the_end_of_the_query(old: Path, new: Path):
    before = everything_in(of_one_topic(old))
    migrate(old, app_id="flights", checkpoint=new)

    log = log_of(new)
    assert [parse_offsets(one) for one in log.start] == [{"a-0": 8, "a-1": 7}]
    assert log.asked == (f'{{"checkpoint":"{old}","batch":1,"planned":1}}',)
    assert (log.application_id, log.tail, log.run_epoch) == ("flights", 1, 0)
    assert everything_in(old) == before


def test_a_driver_opens_the_log_and_its_options_count_from_then_on(old: Path, new: Path):
    of_one_topic(old)
    migrate(old, app_id="flights", checkpoint=new)
    backend = LocalFileBackend(new / "decisions")
    with pytest.raises(IdentityMismatchError, match="the application 'flights'"):
        DecisionLog.open(backend, application_id="other", identity={"sources": "a"})

    first = DecisionLog.open(backend, application_id="flights", identity={"sources": "a"})
    assert (first.run_epoch, first.state.start) == (2, log_of(new).start)
    with pytest.raises(IdentityMismatchError, match="sources=a"):
        DecisionLog.open(backend, application_id="flights", identity={"sources": "b"})


def test_a_planned_batch_needs_a_word(old: Path, new: Path):
    of_one_topic(old, planned=PLANNED)
    with pytest.raises(ConfigurationError) as raised:
        migrate(old, app_id="flights", checkpoint=new)
    error = raised.value
    assert "Batch 2 was planned and has no commit" in error.what
    assert "1 offsets: a-0 [8, 9)" in error.where
    assert "it still runs" in error.cause
    for way in ("availableNow", "--planned-batch run-again", "--planned-batch skip"):
        assert way in error.option
    assert not new.exists()


@pytest.mark.parametrize(("choice", "begins"), [("run-again", 8), ("skip", 9)])
def test_the_word_decides_where_it_begins(old: Path, new: Path, choice: str, begins: int):
    of_one_topic(old, planned=PLANNED)
    migrate(old, app_id="flights", checkpoint=new, planned_batch=choice)
    assert [parse_offsets(one) for one in log_of(new).start] == [{"a-0": begins, "a-1": 7}]


def test_a_word_without_a_planned_batch_is_refused(old: Path, new: Path):
    of_one_topic(old)
    with pytest.raises(ConfigurationError, match="no planned batch"):
        migrate(old, app_id="flights", checkpoint=new, planned_batch="skip")


# --- only once ------------------------------------------------------------------------------------


def test_a_second_migration_is_refused(old: Path, new: Path):
    of_one_topic(old)
    migrate(old, app_id="flights", checkpoint=new)
    before = everything_in(new)
    with pytest.raises(ConfigurationError, match="needs an empty checkpoint") as raised:
        migrate(old, app_id="flights", checkpoint=new)
    assert "this command has run before" in raised.value.cause
    assert everything_in(new) == before


def test_a_folder_of_a_pipeline_is_refused(old: Path, new: Path):
    of_one_topic(old)
    DecisionLog.open(LocalFileBackend(new / "decisions"), application_id="flights", identity={})
    before = everything_in(new)
    with pytest.raises(ConfigurationError, match="needs an empty checkpoint") as raised:
        migrate(old, app_id="flights", checkpoint=new)
    assert "already used this log" in raised.value.cause
    assert everything_in(new) == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_folder_with_files_is_refused(old: Path, new: Path, tmp_path: Path, elsewhere: bool):
    of_one_topic(old)
    new.mkdir()
    (new / "log-id").write_text("0d1e9a2f")
    place = LogLocation(tmp_path / "log") if elsewhere else None
    with pytest.raises(ConfigurationError, match="log-id"):
        migrate(old, app_id="flights", checkpoint=new, decision_log=place)
    assert not (tmp_path / "log").exists()
    assert not (new / "decisions").exists()


def test_a_log_elsewhere(old: Path, new: Path, tmp_path: Path):
    of_one_topic(old)
    place = LogLocation(tmp_path / "log")
    migrate(old, app_id="flights", checkpoint=new, decision_log=place)
    assert read_log(place.backend()).start == ('{"a":{"0":8,"1":7}}',)
    assert not new.exists()
    with pytest.raises(ConfigurationError, match="needs an empty checkpoint"):
        migrate(old, app_id="flights", checkpoint=new, decision_log=place)


def test_what_a_migration_left_that_was_killed_is_no_obstacle(old: Path, new: Path):
    of_one_topic(old)
    (new / "decisions").mkdir(parents=True)
    (new / "decisions/.00000000000000000001.0d1e.tmp").write_bytes(b"half")
    migrate(old, app_id="flights", checkpoint=new)
    assert log_of(new).tail == 1


def test_a_driver_that_starts_at_the_same_moment_wins(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
):
    of_one_topic(old)
    backend = LocalFileBackend(new / "decisions")
    read = migration.read_log

    def and_then_a_driver_starts(there):
        state = read(there)
        DecisionLog.open(backend, application_id="flights", identity={"sources": "a"})
        return state

    monkeypatch.setattr(migration, "refuse_used", lambda *_: None)
    monkeypatch.setattr(migration, "read_log", and_then_a_driver_starts)
    with pytest.raises(ConfigurationError, match="needs an empty checkpoint") as raised:
        migrate(old, app_id="flights", checkpoint=new)
    assert "just now" in raised.value.cause
    assert log_of(new).start == ()


# --- the old query goes on ------------------------------------------------------------------------


def test_an_old_query_that_goes_on_is_seen(old: Path, new: Path):
    of_one_topic(old)
    migrate(old, app_id="flights", checkpoint=new)
    asked = log_of(new).asked
    check_stopped(asked)

    (old / "offsets/2").write_text(batch(PLANNED))
    with pytest.raises(ConfigurationError, match="went on after its migration") as raised:
        check_stopped(asked)
    assert "batch 1 is done and batch 2 planned" in raised.value.where
    assert "remove the checkpoint of the new pipeline" in raised.value.option


def test_a_planned_batch_that_is_finished_later_is_seen(old: Path, new: Path):
    of_one_topic(old, planned=PLANNED)
    migrate(old, app_id="flights", checkpoint=new, planned_batch="run-again")
    check_stopped(log_of(new).asked)
    (old / "commits/2").write_text(COMMIT)
    with pytest.raises(ConfigurationError, match="went on after its migration"):
        check_stopped(log_of(new).asked)


def test_an_old_checkpoint_may_be_gone(tmp_path: Path):
    check_stopped([f'{{"checkpoint":"{tmp_path}/gone","batch":1,"planned":1}}'])


def test_other_starts_are_not_looked_at():
    check_stopped(["latest", "", '{"checkpoint":{"0":1},"batch":{"0":1},"planned":{"0":1}}', "7"])


# --- sources --------------------------------------------------------------------------------------


def test_several_sources_keep_their_order(old: Path):
    make(old, {0: TWO_TOPICS}, range(1))
    assert plan_migration(old).begins == ({"a-0": 8}, {"b-0": 3})


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "b,a"},
        {"subscribe_pattern": "[ab]"},
        {"assign": {"a": [0], "b": [0, 1]}},
    ],
    ids=["subscribe", "pattern", "assign"],
)
def test_the_source_of_a_job_takes_all_of_them(old: Path, options: dict[str, object]):
    make(old, {0: TWO_TOPICS}, range(1))
    planned = plan_migration(old, source=source(**options))
    assert planned.begins == ({"a-0": 8, "b-0": 3},)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "a"}, "not read by the job: b; new in the job: -"),
        ({"subscribe": "a,b,c"}, "not read by the job: -; new in the job: c"),
        ({"subscribe_pattern": "b.*"}, "not read by the job: a; new in the job: -"),
        ({"assign": {"a": [1], "b": [0]}}, "not read by the job: a-0; new in the job: -"),
    ],
    ids=["fewer", "more", "pattern", "assign"],
)
def test_a_job_with_other_topics_is_refused(old: Path, options: dict[str, object], says: str):
    make(old, {0: TWO_TOPICS}, range(1))
    with pytest.raises(ConfigurationError, match="does not read what the query") as raised:
        plan_migration(old, source=source(**options))
    assert says in raised.value.where
    assert "subscribe=a,b" in raised.value.option


def test_one_partition_at_two_offsets_is_refused(old: Path):
    make(old, {0: batch('{"a":{"0":8}}', '{"a":{"0":9}}')}, range(1))
    with pytest.raises(ConfigurationError, match="come to different offsets") as raised:
        plan_migration(old)
    assert "a-0 at 8 and 9" in raised.value.where


def test_one_partition_twice_at_one_offset(old: Path):
    make(old, {0: batch('{"a":{"0":8}}', '{"a":{"0":8}}')}, range(1))
    assert plan_migration(old).begins == ({"a-0": 8}, {"a-0": 8})
    assert plan_migration(old, source=source(subscribe="a")).begins == ({"a-0": 8},)
