"""What the driver asks Hadoop about Spark's part of a checkpoint; Hadoop is a dictionary here.

The real one: `tests/journeys/test_lost_machine.py`.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

import tests
from connectors.machine.pinned_jars import read_pins
from connectors.spark import hadoop_files
from connectors.spark.hadoop_files import HadoopFiles
from connectors.spark.hadoop_jvm import ABSENT
from connectors.spark.query_files import FolderFiles, files_at, is_written_down
from connectors.spark.start_file import read_start, start_file, write_start
from tests.pages import block
from tests.unit.samples import decision
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.log_state import LogState

SPARK = "s3a://bucket/app/spark"


class Hadoop:
    """A `FileSystem`, and the JVM around it; a path is its text."""

    def __init__(self, *names: str) -> None:
        self.names = {f"{SPARK}/{name}" for name in names}
        self.asked: list[str] = []
        self.problem = ""

        class Path(SimpleNamespace):
            def __str__(self) -> str:
                return str(self.text)

        path = lambda text: Path(text=text, getFileSystem=lambda _: self)  # noqa: E731
        texts = SimpleNamespace(IOUtils=SimpleNamespace(toString=lambda stream, _: stream.text))
        apache = SimpleNamespace(
            hadoop=SimpleNamespace(fs=SimpleNamespace(Path=path)),
            commons=SimpleNamespace(io=texts),
        )
        jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        state = SimpleNamespace(newHadoopConf=dict)
        self.session: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(_jvm=jvm, _gateway=None),
            _jsparkSession=SimpleNamespace(sessionState=lambda: state),
        )

    def _ask(self, path: Any) -> str:
        self.asked.append(path.text)
        if self.problem:
            raise Py4JError(self.problem)
        return str(path.text)

    def listStatus(self, path: Any) -> list[Any]:  # noqa: N802
        below = f"{self._ask(path)}/"
        names = [one.removeprefix(below) for one in sorted(self.names) if one.startswith(below)]
        named = [SimpleNamespace(getName=lambda name=name: name) for name in names]
        return [SimpleNamespace(getPath=lambda one=one: one) for one in named]

    def listFiles(self, path: Any, recursive: bool) -> Any:  # noqa: N802
        assert recursive
        below = [one for one in sorted(self.names) if one.startswith(self._ask(path))]
        left = [SimpleNamespace(getPath=lambda one=one: one) for one in below]
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))

    def open(self, path: Any) -> Any:
        if self._ask(path) in self.names:
            return SimpleNamespace(text="", close=lambda: None)
        absent: Any = Py4JError("not there")
        kind = SimpleNamespace(getName=lambda: ABSENT)
        absent.java_exception = SimpleNamespace(getClass=lambda: kind)
        raise absent

    def exists(self, path: Any) -> bool:
        return any(one.startswith(self._ask(path)) for one in self.names)

    def delete(self, path: Any, recursive: bool) -> bool:
        deleted = self._ask(path)
        below = {one for one in self.names if one.startswith(f"{deleted}/")}
        assert recursive or not below
        known = len(self.names)
        self.names -= {deleted, *below}
        return len(self.names) < known


def files_of(hadoop: Hadoop, address: str = "s3://bucket/app/") -> HadoopFiles:
    found = files_at(hadoop.session, CheckpointLocation(address))
    assert isinstance(found, HadoopFiles)
    return found


def log_after(last: int | None) -> LogState:
    return LogState(decision=None if last is None else decision(last))


def test_a_folder_has_files_of_its_own(tmp_path):
    found = files_at(None, CheckpointLocation(tmp_path))  # type: ignore[arg-type]
    assert isinstance(found, FolderFiles)
    assert (found.address, found.notes) == (str(tmp_path / "spark"), tmp_path)


@pytest.mark.parametrize(
    ("address", "hadoops"),
    [
        ("s3://bucket/app//", "s3a://bucket/app/spark"),
        ("S3A://bucket/app", "s3a://bucket/app/spark"),
        ("gs://bucket", "gs://bucket/spark"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x/spark"),
    ],
)
def test_spark_is_told_the_address_as_hadoop_names_it(address, hadoops):
    assert files_of(Hadoop(), address).address == hadoops


def test_the_small_client_of_the_page_is_what_the_tests_run_with():
    spark = tomllib.loads(block("docs/checkpoint_address.md", "jars.excludes"))["spark"]["jars"]
    pins = read_pins(Path(tests.__file__).with_name("hadoop-aws.sha256"))
    pinned = {f"{one.organisation}:{one.module}:{one.version}" for one in pins}
    assert {*spark["packages"].split(",")} < pinned
    assert spark["excludes"] not in {one.rpartition(":")[0] for one in pinned}


def test_the_newest_finished_batch():
    assert files_of(Hadoop()).finished() == -1
    hadoop = Hadoop("commits/9", "commits/10", "commits/.11.tmp", "commits/.10.crc", "offsets/11")
    assert files_of(hadoop).finished() == 10


@pytest.mark.parametrize(("last", "left"), [(None, []), (8, []), (10, ["10"]), (11, ["10", "11"])])
def test_only_what_is_undecided_is_planned_again(last, left):
    hadoop = Hadoop("commits/9", "offsets/10", "offsets/11", "offsets/.12.tmp")
    files = files_of(hadoop)
    run = files.begin_run(log_after(last))
    there = {one.rpartition("/")[2] for one in hadoop.names if "offsets" in one}
    assert there == {*left, *([".12.tmp"] if last is not None else [])}
    assert files.finished() == (-1 if last is None else 9)
    asked = len(hadoop.asked)
    run.begin()()
    run.make_state_durable()
    assert len(hadoop.asked) == asked, "what a store has acknowledged is durable"


@pytest.mark.parametrize(("generation", "calls"), [(0, 1), (1, 0)])
def test_only_a_decision_on_these_files_brings_plans_back(monkeypatch, generation, calls):
    """A savepoint that was restored since then may have other topics, or other sources."""
    seen: list[object] = []
    monkeypatch.setattr(hadoop_files, "bring_back", lambda *these: seen.append(these))
    files, last = files_of(Hadoop("offsets/7")), decision(7)
    files.begin_run(LogState(decision=last, generation=generation))
    assert seen == [(files, last)] * calls


@pytest.mark.parametrize(("last", "left"), [(None, False), (0, True)])
def test_all_of_a_first_batch_that_was_not_decided_is_removed(last, left):
    """Spark refuses to begin with it (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`)."""
    of_batch = {"offsets/.0.6.tmp", "commits/.0.6.tmp", "state/0/0/1.changelog"}
    hadoop = Hadoop(*of_batch, "metadata")
    files_of(hadoop).begin_run(log_after(last))
    there = {one.removeprefix(f"{SPARK}/") for one in hadoop.names}
    assert there == {*(of_batch if left else ()), "metadata"}


def test_state_is_looked_for():
    assert not files_of(Hadoop("offsets/0")).has_state()
    assert files_of(Hadoop("state/0/0/1.delta")).has_state()


def test_notes_for_the_sources_process_are_on_this_machine():
    files = files_of(Hadoop())
    assert files.notes.is_dir()
    notes = files.notes
    del files
    assert not notes.exists()


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (
            "java.lang.ClassNotFoundException: Class S3AFileSystem not found",
            ConfigurationError,
        ),
        ("UnsupportedFileSystemException: No FileSystem for scheme", ConfigurationError),
        ("java.net.SocketTimeoutException: connect timed out", SparkOnceError),
    ],
)
def test_what_hadoop_says_has_four_parts(problem, kind):
    hadoop = Hadoop()
    hadoop.problem = problem
    with pytest.raises(SparkOnceError) as raised:
        files_of(hadoop).finished()
    error = raised.value
    assert type(error) is kind
    assert error.where == f"{SPARK}/commits"
    assert problem in error.cause
    assert "jars.packages" in error.option


def test_a_savepoint_copies_what_was_there_when_its_batch_was_finished():
    hadoop = Hadoop(
        *("metadata", "offsets/7", "offsets/8", "commits/7", "commits/.8.tmp", "state/0/0/8.delta"),
        *("state/0/0/.9.tmp", "sources/0/0"),
    )
    assert files_of(hadoop).to_copy(7) == {
        f"spark/{name}": f"{SPARK}/{name}"
        for name in ("metadata", "offsets/7", "commits/7", "state/0/0/8.delta", "sources/0/0")
    }


@pytest.mark.parametrize("there", [(), ("offsets/7",), ("commits/7", "offsets/8")])
def test_what_spark_has_removed_during_the_look_makes_no_empty_savepoint(there):
    with pytest.raises(FileNotFoundError):
        files_of(Hadoop(*there)).to_copy(7)


def test_a_store_that_does_not_say_what_is_finished_ends_no_run(caplog):
    """A stop and a savepoint ask; both take no answer for a no."""
    hadoop, log = Hadoop("commits/7"), SimpleNamespace(state=SimpleNamespace(decision=decision(7)))
    assert is_written_down(files_of(hadoop), log)
    assert is_written_down(files_of(hadoop), None)
    hadoop.problem = "503 Slow Down"
    assert not is_written_down(files_of(hadoop), log)
    assert "503 Slow Down" in caplog.text


def test_notes_are_made_again_where_a_cleaner_of_temporary_folders_was():
    files = files_of(Hadoop())
    shutil.rmtree(files.notes)
    file = start_file(files.notes, 0)
    write_start(file, "the start")
    assert read_start(file) == "the start"
