"""How far a query on Spark's own Kafka source has come, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.pipeline.spark_checkpoint import ends_in, newest_batches, read_progress
from tests.unit.spark_checkpoints import batch, make, of_one_topic
from transactions.errors import ConfigurationError

A = '{"a":{"0":8,"1":7}}'
B = '{"b":{"0":3}}'


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


def test_the_newest_committed_batch_is_the_end(old: Path):
    progress = read_progress(of_one_topic(old))

    assert (progress.done, progress.planned) == (1, 1)
    assert progress.ends == ({"a-0": 8, "a-1": 7},)
    assert progress.in_doubt == {}


def test_a_planned_batch_is_in_doubt(old: Path):
    progress = read_progress(of_one_topic(old, planned='{"a":{"0":8,"1":9,"2":4}}'))

    assert (progress.done, progress.planned) == (1, 2)
    assert progress.ends == ({"a-0": 8, "a-1": 7},)
    assert progress.planned_ends == ({"a-0": 8, "a-1": 9, "a-2": 4},)
    assert progress.in_doubt == {"a-1": (7, 9), "a-2": (0, 4)}


def test_a_planned_batch_without_records_is_in_no_doubt(old: Path):
    assert read_progress(of_one_topic(old, planned=A)).in_doubt == {}


def test_batches_are_numbers_and_no_texts(old: Path):
    make(old, {9: batch(A), 10: batch(A), 11: batch(A)}, [9, 10])

    assert newest_batches(old) == (10, 11)
    assert newest_batches(old / "nowhere") == (-1, -1)


@pytest.mark.parametrize(
    "text",
    [
        batch(A, B),
        batch(f"1:{B}", f"0:{A}", version="v2"),  # as Spark wrote it
        batch(f"flights:{B}", f"airports:{A}", version="v2"),
    ],
    ids=["v1", "v2", "v2 with names"],
)
def test_each_source_has_its_place(text: str):
    assert ends_in(text, "offsets/0") == ({"a-0": 8, "a-1": 7}, {"b-0": 3})


def test_a_tenth_source_stands_behind_the_second():
    lines = [f'{n}:{{"t":{{"0":{n}}}}}' for n in (10, 2, 0, 1, *range(3, 10))]
    found = ends_in(batch(*lines, version="v2"), "offsets/0")

    assert [one["t-0"] for one in found] == list(range(11))


def test_topics_may_have_dashes_and_dots():
    assert ends_in(batch('{"a-b.c":{"12":4}}'), "x") == ({"a-b.c-12": 4},)


# --- what is refused ------------------------------------------------------------------------------


def stateful(old: Path) -> None:
    (of_one_topic(old) / "state/0/0").mkdir(parents=True)
    (old / "state/0/0/1.delta").write_bytes(b"state")


def own(old: Path) -> None:
    (of_one_topic(old) / "log-id").write_text("0d1e9a2f")


def own_inner(old: Path) -> None:
    own(old.parent)
    of_one_topic(old)


def no_sources(old: Path) -> None:
    make(old, {0: batch(A), 1: batch(A), 2: batch(A, B)}, range(2))


def real_time(old: Path) -> None:
    (of_one_topic(old) / "commits/1").write_text('v2\n{"nextBatchWatermarkMs":0}')


def empty_commit(old: Path) -> None:
    (of_one_topic(old) / "commits/1").write_text("")


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "state": (stateful, "keeps state", "startingTimestamp"),
    "no folder": (lambda old: None, "There is no checkpoint of a Spark query", "local folder"),
    "our own": (own, "belongs to a pipeline of sparkonce", "savepoint"),
    "our own, Spark's part": (own_inner, "belongs to a pipeline of sparkonce", "savepoint"),
    "our own source": (
        lambda old: make(old, {0: batch('{"a":{"0":1},"topic ids":{"a":"x"}}')}, range(1)),
        "kafka-exactly-once",
        "startingOffsets",
    ),
    "no commits": (
        lambda old: make(old, {0: batch(A)}, []),
        "not finished a batch",
        "availableNow",
    ),
    "no offsets of the commit": (
        lambda old: make(old, {0: batch(A)}, range(2)),
        "cannot be used",
        "start the query once",
    ),
    "async": (
        lambda old: make(old, {n: batch(A) for n in (0, 5, 11)}, [0, 5, 11]),
        "does not have every batch",
        "asyncProgressTrackingEnabled=false",
    ),
    "async, commits": (
        lambda old: make(old, {n: batch(A) for n in range(12)}, [0, 5, 11]),
        "does not have every batch",
        "asyncProgressTrackingCheckpointIntervalMs=0",
    ),
    "two planned": (
        lambda old: make(old, {n: batch(A) for n in range(4)}, range(2)),
        "does not have every batch",
        "asyncProgress",
    ),
    "older than its commits": (
        lambda old: make(old, {0: batch(A), 1: batch(A)}, range(3)),
        "cannot be used",
        "start the query once",
    ),
    "continuous processing": (
        lambda old: make(old, {0: batch(A, facts="")}, range(1)),
        "continuous processing",
        "startingOffsets",
    ),
    "real-time mode": (real_time, "real-time mode", "availableNow"),
    "an empty commit": (empty_commit, "cannot be used", "start the query once"),
    "nothing read": (
        lambda old: make(old, {0: batch(A, "-")}, range(1)),
        "has read nothing yet",
        "availableNow",
    ),
    "rate": (lambda old: make(old, {0: batch("2")}, range(1)), "not Spark's Kafka source", "Kafka"),
    "files beside Kafka": (
        lambda old: make(old, {0: batch(A, '{"logOffset":3}')}, range(1)),
        "not Spark's Kafka source",
        "Kafka",
    ),
    "a newer format": (
        lambda old: make(old, {0: batch(A, version="v3")}, range(1)),
        "the format 'v3'",
        "upgrade",
    ),
    "empty": (lambda old: make(old, {0: ""}, range(1)), "cannot be used", "start the query once"),
    "a zeroed file": (
        lambda old: make(old, {0: "\0" * 40}, range(1)),
        "the format",
        "startingOffsets",
    ),
    "cut in the facts": (
        lambda old: make(old, {0: "v1\n{"}, range(1)),
        "cannot be used",
        "start the query once",
    ),
    "cut in the offsets": (
        lambda old: make(old, {0: batch('{"a":{"0":8,"1":')}, range(1)),
        "cannot be used",
        "start the query once",
    ),
    "v2 without a name": (
        lambda old: make(old, {0: batch("-", version="v2")}, range(1)),
        "cannot be used",
        "start the query once",
    ),
    "another number of sources": (no_sources, "cannot be used", "start the query once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_what_to_do(old: Path, name: str):
    write, says, option = REFUSED[name]
    write(old)
    with pytest.raises(ConfigurationError) as raised:
        read_progress(old)
    error = raised.value
    assert says in error.what
    assert option in error.option
    assert str(old.parent) in error.where
    assert error.cause


def test_continuous_processing_is_told_its_last_offsets(old: Path):
    make(old, {0: batch(A, facts="")}, range(1))
    with pytest.raises(ConfigurationError, match=r'offsets/0: {"a":{"0":8,"1":7}}'):
        read_progress(old)


def test_the_second_format_of_commits_with_ids_of_state(old: Path):
    """spark.sql.streaming.stateStore.checkpointFormatVersion=2, and no state."""
    commit = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'
    (of_one_topic(old) / "commits/1").write_text(commit)
    assert read_progress(old).done == 1


@pytest.mark.parametrize("folder", ["state", "state/0", "state/0/0"])
def test_state_that_cannot_be_read_is_not_taken_for_none(
    old: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    stateful(old)
    scandir = os.scandir

    def refusing(path):
        if Path(path) == old / folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ConfigurationError, match="cannot be read") as raised:
        read_progress(old)
    error = raised.value
    assert error.where == str(old / folder)
    assert "Permission denied" in error.cause
    assert "CHECKPOINT" in error.option


@pytest.mark.parametrize("link", ["state", "state/0"])
def test_state_behind_a_link_is_state(old: Path, link: str):
    stateful(old)
    (old / link).rename(old.with_name("elsewhere"))
    (old / link).symlink_to(old.with_name("elsewhere"))
    with pytest.raises(ConfigurationError, match="keeps state"):
        read_progress(old)
    old.with_name("elsewhere").rename(old.with_name("gone"))
    with pytest.raises(ConfigurationError, match="state"):
        read_progress(old)


def test_an_empty_folder_of_state_is_no_state(old: Path):
    (of_one_topic(old) / "state").mkdir()
    assert read_progress(old).done == 1
