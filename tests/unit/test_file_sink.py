"""The file sink: its options, its formats, and the two-phase contract on a real folder and in an
object store. What only an object store has is in test_object_file_sink.py.
"""

import datetime as dt
import json
import os
import pickle
import resource
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.files import FileSink, committed_files
from connectors.files.local_folder import LocalFolder
from connectors.records.row_fingerprint import RowFingerprint
from tests.both_halves import BothHalves, both_halves
from tests.unit.file_targets import (
    change,
    everything,
    hidden_files,
    history,
    options_on,
    place_of,
    seen,
    served,
    server_of,
)
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import ConfigurationError, PhaseOneError, RecordRefusedError
from transactions.sink import Attempt, Owner

OWNER = Owner(application_id="app", log_id="log", run_epoch=12)
FORMATS = ("parquet", "json")
LOCAL = [(one, "folder") for one in FORMATS]
IN_A_STORE = [(one, "objects") for one in FORMATS]
#: Of a test about what a disk does.
on_disk = pytest.mark.parametrize("sink", LOCAL, indirect=True, ids="-".join)


@pytest.fixture(params=[*LOCAL, *IN_A_STORE], ids="-".join)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BothHalves]:
    file_format, place = request.param
    if place == "folder":
        yield sink_in(tmp_path / "out", file_format)
        return
    with served() as server:
        yield opened(options_on(server, file_format))


def opened(options: FileSink) -> BothHalves:
    """Return the sink of another driver."""
    return both_halves(options, checkpoint_timeout_s=9)


def sink_in(path: Path, file_format: str = "parquet", **options: str) -> BothHalves:
    return opened(FileSink(path=str(path), format=file_format, **options))


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array(numbers, pa.int64())})


def attempt(checkpoint: int = 1, subtask: int = 0, owner: Owner = OWNER, task: int = 0) -> Attempt:
    return Attempt(
        owner=owner,
        checkpoint_id=checkpoint,
        subtask=subtask,
        attempt_id=f"{owner.run_epoch}.{task}",
    )


def prepared(sink: BothHalves, *numbers: int, **of: Any) -> Committable:
    transaction = sink.begin_transaction(attempt(**of))
    sink.invoke(transaction, batch(*numbers))
    committable = sink.pre_commit(transaction)
    assert committable is not None
    return committable


def decide(sink: BothHalves, *committables: Committable) -> None:
    """Do what the coordinator does before and after a decision."""
    assert sink.check_prepared(committables, soon()) == list(committables)
    outcomes = sink.commit(committables, soon())
    assert outcomes == {one.token: Outcome.COMMITTED for one in committables}


def soon() -> Deadline:
    return Deadline(10)


def whole(sink: BothHalves) -> list[tuple[int, int, int]]:
    files = committed_files(sink.options.path, sink.options.store)
    there = everything(sink)
    for one in files:
        assert len(there[one.path.removeprefix(f"{sink.options.path}/")]) == one.size
    return [(one.checkpoint_id, one.subtask, one.records) for one in files]


# --- options -------------------------------------------------------------------------------------


def test_options_have_defaults_and_an_absolute_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = FileSink.from_options({"path": "click stream"})
    assert options == FileSink(
        path=str(tmp_path / "click stream"),
        format="parquet",
        name="click-stream",
        compression="snappy",
    )
    path = str(tmp_path / "click stream")
    assert options.identity() == {"kind": "files", "path": path, "format": "parquet"}
    assert FileSink(path=f"file://{path}/") == options


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "path=(absent)"),
        ({"path": "file:/x"}, "path=file:/x"),
        ({"path": "dbfs:/x"}, "path=dbfs:/x"),
        ({"path": "s3:/bucket/x"}, "path=s3:/bucket/x"),
        ({"path": "hdfs://x/y"}, "path=hdfs://x/y"),
        ({"path": "/x", "store.region": "hidden"}, "store: region"),
        ({"path": "/x", "format": "csv"}, "format=csv"),
        ({"path": "/x", "name": "a.b"}, "name=a.b"),
        ({"path": "/x", "compression": "lzo"}, "compression=lzo"),
        ({"path": "/x", "format": "json", "compression": "zstd"}, "compression=zstd"),
        ({"path": "/x", "fromat": "json"}, "did you mean 'format'?"),
        ({"path": "/x", "zzz": "hidden"}, "no option 'zzz'"),
    ],
)
def test_a_wrong_option_is_refused_and_named(options: dict[str, str], word: str):
    with pytest.raises(ConfigurationError) as caught:
        FileSink.from_options(options)
    error = caught.value
    assert word in str(error)
    assert "hidden" not in str(error)
    assert all((error.what, error.where, error.cause, error.option))


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(ConfigurationError, match="not a folder"):
        sink_in(tmp_path / "out")


def test_options_and_sink_travel_to_a_worker(sink):
    assert pickle.loads(pickle.dumps(sink.options)) == sink.options
    decide(sink, prepared(pickle.loads(pickle.dumps(sink)), 1, 2))
    assert seen(sink) == [1, 2]


@pytest.mark.parametrize(
    ("file_format", "column", "kind"),
    [
        ("parquet", "gap", pa.month_day_nano_interval()),
        ("parquet", "nothing", pa.struct([])),
        ("json", "gap", pa.duration("us")),
        ("json", "when", pa.timestamp("ns")),
        ("json", "by_id", pa.list_(pa.map_(pa.int64(), pa.string()))),
    ],
)
def test_a_column_that_the_format_cannot_carry_is_named(file_format, column, kind):
    options = FileSink(path="/x", format=file_format)
    options.check_columns(pa.schema([("number", pa.int64())]))
    with pytest.raises(ConfigurationError, match=f"{file_format}.*'{column}'"):
        options.check_columns(pa.schema([("number", pa.int64()), (column, kind)]))


def test_two_columns_of_one_name_and_none_at_all_are_refused():
    twice = pa.schema([("a", pa.int64()), ("a", pa.string())])
    with pytest.raises(ConfigurationError, match="'a'"):
        FileSink(path="/x").check_columns(twice)
    with pytest.raises(ConfigurationError, match="no column"):
        FileSink(path="/x").check_columns(pa.schema([]))


# --- the contract --------------------------------------------------------------------------------


def test_nothing_is_on_disk_before_the_first_record(sink):
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch())
    assert everything(sink) == {}
    assert sink.pre_commit(transaction) is None
    assert everything(sink) == {}
    assert sink.lingering(OWNER, soon()) == []
    sink.abort(transaction)


def test_open_and_prepared_are_invisible_and_a_commit_is_exact(sink):
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1, 2))
    sink.invoke(transaction, batch(3))
    assert (seen(sink), whole(sink)) == ([], [])
    committable = sink.pre_commit(transaction)
    assert (seen(sink), whole(sink)) == ([], [])
    sink.check_prepared([committable], soon())
    assert (seen(sink), whole(sink)) == ([], [])
    assert sink.commit([committable], soon()) == {committable.token: Outcome.COMMITTED}
    assert (seen(sink), whole(sink)) == ([1, 2, 3], [(1, 0, 3)])
    assert hidden_files(sink) == []
    assert committable.record_count == 3
    assert committable.needs_commit


def test_a_second_commit_changes_nothing(sink):
    committable = prepared(sink, 1, 2)
    decide(sink, committable)
    before = history(sink)
    for again in (sink.commit, opened(sink.options).recover_and_commit):
        assert again([committable], soon()) == {committable.token: Outcome.ALREADY_COMMITTED}
    assert history(sink) == before
    assert seen(sink) == [1, 2]


def test_another_process_commits_from_the_stored_token(sink):
    stored = prepared(sink, 7).to_json()
    other = pickle.loads(pickle.dumps(sink))
    committable = Committable.from_json(stored)
    decide(other, committable)
    assert seen(other) == [7]


def test_a_recovery_finishes_what_stopped_between_two_renames(sink):
    one, two = prepared(sink, 1), prepared(sink, 2, subtask=1)
    sink.check_prepared([one, two], soon())
    sink.commit([one], soon())
    assert (seen(sink), whole(sink)) == ([1], [])
    found = sink.recover_and_commit([one, two], soon())
    assert found == {one.token: Outcome.ALREADY_COMMITTED, two.token: Outcome.COMMITTED}
    assert (seen(sink), whole(sink)) == ([1, 2], [(1, 0, 1), (1, 1, 1)])


@pytest.mark.parametrize("when", ["open", "prepared"])
def test_an_abort_leaves_nothing(sink, when):
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1, 2))
    if when == "prepared":
        sink.pre_commit(transaction)
    is_there = when == "prepared" or server_of(sink) is None
    assert hidden_files(sink) == [transaction.transaction_id] * is_there
    sink.abort(transaction)
    assert everything(sink) == {}
    assert seen(sink) == []


def test_a_hidden_file_that_is_gone_was_lost(sink):
    """The engine heals what is proven ABORTED; its siblings are committed."""
    lost, kept = prepared(sink, 1), prepared(sink, 2, subtask=1)
    sink.check_prepared([lost, kept], soon())
    change(sink, place_of(sink, lost), None)
    assert sink.recover_and_commit([lost, kept], soon()) == {
        lost.token: Outcome.ABORTED,
        kept.token: Outcome.COMMITTED,
    }
    assert (seen(sink), whole(sink)) == ([2], [])
    healed = prepared(sink, 1)
    assert healed.fingerprint == lost.fingerprint
    decide(sink, healed)
    assert (seen(sink), whole(sink)) == ([1, 2], [(1, 0, 1), (1, 1, 1)])


@on_disk
def test_a_disk_that_is_away_proves_nothing(sink):
    """An empty mount point has none of the files; healing would write every record twice."""
    committable = prepared(sink, 1)
    sink.check_prepared([committable], soon())
    folder = Path(sink.options.path)
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    unknown = {committable.token: Outcome.UNKNOWN}
    assert sink.commit([committable], soon()) == unknown
    assert sink.recover_and_commit([committable], soon()) == unknown
    with pytest.raises(FileNotFoundError):
        LocalFolder(folder).publish(committable.transactional_id, "part")
    folder.rmdir()
    away.rename(folder)
    assert sink.recover_and_commit([committable], soon()) == {committable.token: Outcome.COMMITTED}
    assert seen(sink) == [1]


@on_disk
def test_a_rename_that_fails_is_unknown(sink, monkeypatch):
    committable = prepared(sink, 1)

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", broken)
        assert sink.commit([committable], soon()) == {committable.token: Outcome.UNKNOWN}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        assert sink.commit([committable], soon()) == {committable.token: Outcome.UNKNOWN}
    found = sink.recover_and_commit([committable], soon())
    assert found == {committable.token: Outcome.ALREADY_COMMITTED}
    assert seen(sink) == [1]


def test_no_commit_is_begun_after_the_deadline(sink):
    committable = prepared(sink, 1)
    assert sink.commit([committable], Deadline(0)) == {committable.token: Outcome.UNKNOWN}
    assert seen(sink) == []


def test_lingering_is_exactly_the_owners(sink):
    """No name that another one begins with, no other log, no newer run."""

    def of(application: str, log: str, run: int) -> Committable:
        owner = Owner(application_id=application, log_id=log, run_epoch=run)
        return prepared(sink, 1, owner=owner)

    mine = [of("app", "log", 12), of("app", "log", 9)]
    sink.check_prepared(mine, soon())
    others = [
        of("app-2", "log", 1),
        of("ap", "log", 1),
        of("app2", "log", 1),
        of("app", "log2", 1),
        of("app", "lo", 1),
        of("app", "log", 13),
        of("app", "log", 100),
    ]
    found = sink.lingering(OWNER, soon())
    assert sorted(found) == sorted(one.transactional_id for one in mine)
    sink.recover_and_abort(found, soon())
    sink.recover_and_abort(found, soon())
    assert sink.lingering(OWNER, soon()) == []
    assert hidden_files(sink) == sorted(one.transactional_id for one in others)
    assert all(v is Outcome.ABORTED for v in sink.commit(mine, soon()).values())
    assert all(v is Outcome.COMMITTED for v in sink.commit(others, soon()).values())


@on_disk
def test_of_two_attempts_only_the_decided_one_is_seen(sink):
    zombie = sink.begin_transaction(attempt(task=1))
    sink.invoke(zombie, batch(1, 2))
    decide(sink, prepared(sink, 1, 2, task=2))
    assert sink.lingering(OWNER, soon()) == [zombie.transaction_id]
    sink.recover_and_abort([zombie.transaction_id], soon())
    sink.invoke(zombie, batch(3))  # it writes on, into a file without a name
    late = sink.pre_commit(zombie)
    with pytest.raises(PhaseOneError, match="gone"):
        sink.check_prepared([late], soon())
    assert sink.commit([late], soon()) == {late.token: Outcome.ABORTED}
    assert seen(sink) == [1, 2]


@on_disk
def test_a_disk_that_comes_back_between_two_looks_proves_no_loss(sink, monkeypatch):
    """The first look finds an empty mount point; a moment later the folder is there again."""
    one, folder, opened = prepared(sink, 1), Path(sink.options.path), os.open
    away, below = folder.with_name("away"), folder.with_name("below")
    below.mkdir()

    def unmounted(*place: Any, **said: Any) -> int:
        monkeypatch.setattr(os, "open", opened)
        folder.rename(away)
        below.rename(folder)
        try:
            return opened(*place, **said)
        finally:
            folder.rename(below)
            away.rename(folder)

    for found in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED):
        monkeypatch.setattr(os, "open", unmounted)
        assert sink.commit([one], soon()) == {one.token: Outcome.UNKNOWN}
        assert list(below.iterdir()) == []
        assert sink.commit([one], soon()) == {one.token: found}
    assert seen(sink) == [1]


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_harmed_file_fails_the_checkpoint_before_its_decision(sink, harm):
    good, bad = prepared(sink, 1), prepared(sink, 2, subtask=1)
    place = place_of(sink, bad)
    change(sink, place, None if harm == "gone" else everything(sink)[place][:-1])
    with pytest.raises(PhaseOneError) as caught:
        sink.check_prepared([good, bad], soon())
    text = str(caught.value)
    assert all(word in text for word in (bad.transactional_id, "checkpoint 1", sink.options.path))
    assert whole(sink) == []


def test_what_is_promised_is_synced(tmp_path, monkeypatch):
    """Without one of them a power cut could undo what was decided."""
    sink, synced, real = sink_in(tmp_path / "new" / "out"), [], os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_relative_to(tmp_path):  # those above it are synced as well
            synced.append(path.relative_to(tmp_path).as_posix())
        real(descriptor)

    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    monkeypatch.setattr(os, "fsync", fsync)
    committable = sink.pre_commit(transaction)
    assert synced == [
        f"new/out/_transactions/{transaction.transaction_id}",
        "new/out/_transactions",
    ]
    synced.clear()
    sink.check_prepared([committable], soon())
    assert synced[:3] == ["new/out", "new", "."]
    assert synced[3].endswith(".manifest")
    assert synced[4:] == ["new/out/_transactions", "new/out/_manifests"]
    synced.clear()
    sink.commit([committable], soon())
    assert synced == ["new/out", "new/out/_transactions"]
    synced.clear()
    sink.recover_and_commit([committable], soon())  # its writer may have died before its own
    assert synced == ["new/out", "new/out/_transactions"]


# --- what a disk does ----------------------------------------------------------------------------


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond 64 KiB: the kernel refuses the write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_attempt_and_leaves_nothing(sink, full_disk):
    transaction = sink.begin_transaction(attempt(checkpoint=17))
    noise = pa.record_batch({"noise": pa.array([os.urandom(1 << 20)], pa.binary())})
    with pytest.raises(PhaseOneError) as caught:
        for _ in range(3):
            sink.invoke(transaction, noise)
        sink.pre_commit(transaction)
    assert "checkpoint 17" in str(caught.value)
    assert f"path={sink.options.path}" in str(caught.value)
    sink.abort(transaction)
    assert hidden_files(sink) == []
    assert (seen(sink), whole(sink)) == ([], [])


def test_a_folder_that_cannot_be_written_is_named():
    sink = sink_in(Path("/proc/sparkonce"))  # nobody may make a folder there, not even root
    transaction = sink.begin_transaction(attempt(checkpoint=17))
    with pytest.raises(PhaseOneError, match=r"checkpoint 17(.|\n)*path=/proc/sparkonce"):
        sink.invoke(transaction, batch(1))
    sink.abort(transaction)


@on_disk
def test_a_disk_that_fills_up_at_the_manifest_fails_before_the_decision(sink, monkeypatch):
    committable = prepared(sink, 1)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PhaseOneError, match="No space left"):
            sink.check_prepared([committable], soon())
    sink.recover_and_abort(sink.lingering(OWNER, soon()), soon())
    assert hidden_files(sink) == []
    assert seen(sink) == []


# --- whole checkpoints ---------------------------------------------------------------------------


def test_half_of_a_checkpoint_is_not_whole(sink):
    decide(sink, prepared(sink, 1), prepared(sink, 2, subtask=1))
    one, two = prepared(sink, 3, checkpoint=2), prepared(sink, 4, checkpoint=2, subtask=1)
    sink.check_prepared([one, two], soon())
    assert [row[0] for row in whole(sink)] == [1, 1]
    sink.commit([two], soon())
    assert [row[0] for row in whole(sink)] == [1, 1]
    assert seen(sink) == [1, 2, 4]
    sink.commit([one], soon())
    assert whole(sink) == [(1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1)]


def test_what_was_prepared_and_never_decided_is_in_no_checkpoint(sink):
    dropped = prepared(sink, 1)
    sink.check_prepared([dropped], soon())
    sink.recover_and_abort([dropped.transactional_id], soon())
    assert whole(sink) == []
    decide(sink, prepared(sink, 1, 2))
    assert whole(sink) == [(1, 0, 2)]


def test_a_loss_that_was_accepted_does_not_hide_the_rest(sink):
    lost, kept = prepared(sink, 1), prepared(sink, 2, subtask=1)
    sink.check_prepared([lost, kept], soon())
    sink.recover_and_abort([lost.transactional_id], soon())
    sink.commit([kept], soon())
    decide(sink, prepared(sink, 3, checkpoint=2))  # the coordinator went on, so 1 is settled
    assert whole(sink) == [(1, 1, 1), (2, 0, 1)]


def test_two_logs_in_one_folder_count_for_themselves(sink):
    other = Owner(application_id="app", log_id="log2", run_epoch=1)
    decide(sink, prepared(sink, 1, checkpoint=9))
    waiting = prepared(sink, 2, checkpoint=3, owner=other)
    sink.check_prepared([waiting], soon())
    assert whole(sink) == [(9, 0, 1)]
    sink.commit([waiting], soon())
    assert whole(sink) == [(9, 0, 1), (3, 0, 1)]


# --- formats -------------------------------------------------------------------------------------

EVERY_TYPE = pa.record_batch(
    {
        "i": pa.array([1, None, 3]),
        "f": pa.array([1.5, float("nan"), float("-inf")]),
        "s": ["é\n", None, ""],
        "b": pa.array([b"\xff\x00", b"", None]),
        "t": pa.array(
            [dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC), None, None],
            pa.timestamp("us", tz="America/New_York"),
        ),
        "n": pa.array([dt.datetime(2024, 1, 1, 5), None, None], pa.timestamp("us")),  # noqa: DTZ001 - that is the type
        "d": pa.array([dt.date(2024, 1, 1), None, None]),
        "c": pa.array([Decimal("-12345678901234567890.10"), None, None]),
        "m": pa.array(
            [[("a", 1.0), ("b", float("nan"))], [], None], pa.map_(pa.string(), pa.float64())
        ),
        "x": pa.array([{"a": [b"1", None]}, {"a": None}, None]),
    }
)


def committed_file(sink: BothHalves, *batches: pa.RecordBatch) -> Path:
    sink.options.check_columns(batches[0].schema)
    transaction = sink.begin_transaction(attempt())
    for one in batches:
        sink.invoke(transaction, one)
    decide(sink, sink.pre_commit(transaction))
    (file,) = committed_files(sink.options.path)
    return Path(file.path)


def test_json_lines_are_as_sparks_to_json_with_nulls_kept(tmp_path):
    file = committed_file(sink_in(tmp_path / "out", "json"), EVERY_TYPE)
    text = file.read_text("utf-8")
    assert '"c":-12345678901234567890.10,' in text  # a number, with all of its digits
    first, second, third = [json.loads(line) for line in text.split("\n")[:-1]]
    assert first == {
        "i": 1,
        "f": 1.5,
        "s": "é\n",
        "b": "/wA=",
        "t": "2024-01-01T05:00:00Z",
        "n": "2024-01-01T05:00:00",
        "d": "2024-01-01",
        "c": pytest.approx(-12345678901234567890.10),
        "m": {"a": 1.0, "b": "NaN"},
        "x": {"a": ["MQ==", None]},
    }
    assert (second["f"], second["b"], second["m"]) == ("NaN", "", {})
    assert third == {**dict.fromkeys(EVERY_TYPE.schema.names), "i": 3, "f": "-Infinity", "s": ""}


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": [x]}])
def test_what_json_has_no_number_for_is_no_null(tmp_path, wrap):
    """Orjson alone would write null: a value would be gone."""
    numbers = [float("nan"), float("inf"), float("-inf"), None, 0.5]
    rows = pa.record_batch({"x": pa.array([wrap(one) for one in numbers])})
    text = committed_file(sink_in(tmp_path / "out", "json"), rows).read_text("utf-8")
    found = [json.loads(line)["x"] for line in text.splitlines()]
    assert found == [wrap(one) for one in ("NaN", "Infinity", "-Infinity", None, 0.5)]


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_parquet_keeps_every_value_in_few_row_groups(tmp_path, compression):
    sink = sink_in(tmp_path / "out", "parquet", compression=compression)
    file = committed_file(sink, *[EVERY_TYPE] * 50)
    table = pq.read_table(file)
    assert table.schema.names == EVERY_TYPE.schema.names
    assert repr(table.slice(147).to_pylist()) == repr(EVERY_TYPE.to_pylist())
    metadata = pq.ParquetFile(file).metadata
    assert (metadata.num_rows, metadata.num_row_groups) == (150, 1)
    wanted = "UNCOMPRESSED" if compression == "none" else compression.upper()
    assert metadata.row_group(0).column(0).compression == wanted


def test_a_long_transaction_is_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("connectors.files.parquet_rows.GROUP_ROWS", 100)
    file = committed_file(sink_in(tmp_path / "out"), *[batch(*range(40))] * 10)
    groups = pq.ParquetFile(file).metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [
        120,
        120,
        120,
        40,
    ]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("kind", [pa.ArrowMemoryError, MemoryError])
def test_too_little_memory_is_no_refused_value(tmp_path, monkeypatch, file_format, kind):
    """A refused value is never tried again; memory can be free at the next attempt."""

    def full(*_: object) -> None:
        raise kind("malloc of size 64 failed")

    sink = sink_in(tmp_path, file_format)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1))
    monkeypatch.setattr(type(transaction.writer), "write", full)
    with pytest.raises(MemoryError, match="malloc"):
        sink.invoke(transaction, batch(2))
    sink.abort(transaction)
    assert everything(sink) == {}


def test_a_value_that_json_cannot_say_is_refused_for_good(tmp_path):
    sink = sink_in(tmp_path / "out", "json")
    transaction = sink.begin_transaction(attempt())
    late = pa.record_batch({"t": pa.array([1 << 60], pa.timestamp("us", tz="UTC"))})
    with pytest.raises(RecordRefusedError, match="json"):
        sink.invoke(transaction, late)
    sink.abort(transaction)
    assert hidden_files(sink) == []


# --- the fingerprint -----------------------------------------------------------------------------


def fingerprint(*batches: pa.RecordBatch) -> tuple[int, str]:
    found = RowFingerprint()
    for one in batches:
        found.add(one)
    return found.count, found.hex()


def test_the_fingerprint_knows_rows_and_nothing_else(tmp_path):
    rows = EVERY_TYPE
    tokyo = rows.set_column(4, "t", rows["t"].cast(pa.timestamp("us", tz="Asia/Tokyo")))
    assert fingerprint(rows) == fingerprint(rows.take([2, 0, 1])) == fingerprint(tokyo)
    assert fingerprint(rows) == fingerprint(rows.slice(1), rows.slice(0, 1))
    as_parquet, as_json = (prepared(sink_in(tmp_path / f, f), 3, 1, 2) for f in FORMATS)
    assert as_parquet.fingerprint == as_json.fingerprint == fingerprint(batch(1, 2, 3))[1]


def test_a_decision_log_holds_fingerprints_so_they_never_change():
    assert fingerprint(EVERY_TYPE) == (3, "351145ea31e4b3a974be58614ca23053")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, 2], "b": [3, 4]}, {"a": [1, 2], "b": [4, 3]}),
        ({"a": ["x", ""]}, {"a": ["x", None]}),
        ({"a": ["1:x"], "b": [""]}, {"a": ["1"], "b": ["x:0:"]}),
        ({"a": [["x", "y"]]}, {"a": [["x,1:y"]]}),
        ({"a": [[""]]}, {"a": [[]]}),
        ({"a": [{"b": None}]}, {"a": [None]}),
        ({"a": [{"b": {"c": "x"}, "d": "y"}]}, {"a": [{"b": {"c": "y"}, "d": "x"}]}),
        ({"a": [1.0]}, {"a": [1.0000000000000002]}),
    ],
)
def test_other_rows_have_another_fingerprint(one: dict[str, Any], other: dict[str, Any]):
    columns = pa.Table.from_pydict(one).schema
    rows = [pa.RecordBatch.from_pydict(each, columns) for each in (one, other)]
    assert fingerprint(rows[0]) != fingerprint(rows[1])
