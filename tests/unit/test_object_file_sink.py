"""Files in an object store: what only a store does to them, seen in what the server holds.

What holds on disk as well is in test_file_sink.py, which runs in a store too.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from connectors.files import FileSink, abandoned_files, committed_files
from connectors.files.file_committer import FileCommitter
from connectors.files.target_folder import open_folder
from connectors.options.job_file import parse_job
from tests.both_halves import BothHalves
from tests.unit.file_targets import (
    BRIEF,
    URL,
    change,
    committed_objects,
    everything,
    hidden_files,
    options_on,
    place_of,
    rows_of,
    seen,
    served,
)
from tests.unit.s3_server import KEY_ID, Fault, S3Server
from tests.unit.test_file_sink import OWNER, attempt, batch, decide, opened, prepared, soon, whole
from tests.unit.test_job import FOLDER, text
from tests.waiting import until
from transactions.committable import Committable, Outcome
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    PhaseOneError,
    SparkOnceError,
)
from transactions.restart_strategy import is_retried

SECRET = "hunter2"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with served() as one:
        yield one


@pytest.fixture
def sink(server: S3Server) -> BothHalves:
    return opened(options_on(server, secret_access_key=SECRET, **BRIEF))


def name_of(one: Committable) -> str:
    return one.marker_partition.rpartition(":")[0]


def outcome(sink: BothHalves, one: Committable) -> Outcome:
    """Commit as a run does, its recovery, and any other driver: the last word."""
    return sink.commit([one], soon())[one.token]


def checked(sink: BothHalves, *numbers: int, **of: Any) -> Committable:
    """Return a prepared transaction that a decision could name now."""
    one = prepared(sink, *numbers, **of)
    sink.check_prepared([one], soon())
    return one


def sweep(sink: BothHalves) -> list[str]:
    found = sink.lingering(OWNER, soon())
    sink.recover_and_abort(found, soon())
    return found


def in_background(work: Callable[[], Any]) -> Any:
    return ThreadPoolExecutor(1).submit(work)


# --- where things are ----------------------------------------------------------------------------


def test_what_is_in_the_store_at_each_step(sink, server):
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, batch(1, 2))
    assert everything(sink) == {}
    one = sink.pre_commit(transaction)
    name, size = name_of(one), int(one.marker_partition.rpartition(":")[2])
    mine = f"_transactions/{one.transactional_id}"
    there = everything(sink)
    assert list(there) == [f"_data/{name}", mine]
    assert there[mine] == name.encode()
    assert [row["number"] for row in rows_of(there[f"_data/{name}"], "parquet")] == [1, 2]
    sink.check_prepared([one], soon())
    assert [place.partition("/")[0] for place in everything(sink)] == [
        "_data",
        "_manifests",
        "_transactions",
    ]
    assert outcome(sink, one) is Outcome.COMMITTED
    there = everything(sink)
    assert list(there)[:2] == [f"_committed/{name}", f"_data/{name}"]
    assert mine not in there
    assert orjson.loads(there[f"_committed/{name}"]) == {
        "format": 1,
        "transaction_id": one.transactional_id,
        "log_id": "log",
        "size": size,
    }
    assert len(there[f"_data/{name}"]) == size
    assert sweep(sink) == []


def test_the_sweep_knows_of_an_upload_before_its_first_byte(sink, server):
    one = prepared(sink, 1)
    order = [key.rpartition("lake/out/")[2] for key, _ in server.stored if ".probe" not in key]
    assert order == [f"_transactions/{one.transactional_id}", f"_data/{name_of(one)}"]


def test_readers_are_given_addresses(sink, server):
    decide(sink, prepared(sink, 1, 2), prepared(sink, 3, subtask=1))
    files = committed_files(URL, server.options())
    assert [one.path for one in files] == [
        f"{URL}/_data/{name}" for name in committed_objects(server)
    ]
    assert [(one.checkpoint_id, one.subtask, one.records) for one in files] == [
        (1, 0, 2),
        (1, 1, 1),
    ]
    assert committed_files(f"{URL}/", server.options()) == files
    assert committed_files(f"{URL}/elsewhere", server.options()) == []


def test_another_client_of_the_store_reads_them(sink, server):
    """As docs/file_sink.md says it."""
    decide(sink, prepared(sink, 1, 2), prepared(sink, 3, subtask=1))
    prepared(sink, 4)
    files = committed_files(URL, server.options())
    store = pyarrow.fs.S3FileSystem(
        endpoint_override=server.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        access_key=KEY_ID,
        secret_key=SECRET,
    )
    paths = [one.path.removeprefix("s3://") for one in files]
    table = pyarrow.dataset.dataset(paths, format="parquet", filesystem=store).to_table()
    assert table["number"].to_pylist() == [1, 2, 3]


def test_who_takes_the_folder_as_it_is_sees_nothing_rather_than_too_much(sink, tmp_path):
    """Beside what is committed lies what never will be; a plain reader cannot tell."""
    decide(sink, prepared(sink, 1))
    prepared(sink, 2)
    for place, data in everything(sink).items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(data)
    assert pq.ParquetDataset(tmp_path).files == []
    names = [one.path.rpartition("/")[2] for one in committed_files(URL, sink.options.store)]
    files = [str(tmp_path / "_data" / name) for name in names]
    assert pq.ParquetDataset(files).read()["number"].to_pylist() == [1]


def test_removing_a_mark_takes_a_file_from_its_readers(sink, server):
    """The mark first: a reader never meets a file that is half removed."""
    for number in (1, 2):
        decide(sink, prepared(sink, number, checkpoint=number))
    old = next(iter(committed_objects(server)))
    change(sink, f"_committed/{old}", None)
    assert whole(sink) == [(2, 0, 1)]
    assert seen(sink) == [2]


def test_a_large_file_is_sent_in_parts(sink, server):
    noise = os.urandom(20 << 20)
    transaction = sink.begin_transaction(attempt())
    for begin in range(0, len(noise), 1 << 20):
        part = noise[begin : begin + (1 << 20)]
        sink.invoke(transaction, pa.record_batch({"noise": pa.array([part], pa.binary())}))
    one = sink.pre_commit(transaction)
    decide(sink, one)
    assert server.requests["PART"] >= 2
    table = pq.read_table(io.BytesIO(committed_objects(server)[name_of(one)]))
    assert b"".join(table["noise"].to_pylist()) == noise
    assert server.uploads == {}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="POST", status=500, times=99),
        Fault(method="PART", status=500, times=99),
        Fault(method="END", status=500, times=99),
        Fault(method="END", carried_out=True, status=0),
    ],
    ids=["begin", "part", "end", "answer to its end lost"],
)
def test_an_upload_that_fails_is_no_prepared_file(sink, server, fault):
    server.fail(dataclasses.replace(fault))
    transaction = sink.begin_transaction(attempt(checkpoint=17))
    rows = pa.record_batch({"noise": pa.array([os.urandom(12 << 20)], pa.binary())})
    sink.invoke(transaction, rows)
    with pytest.raises(PhaseOneError, match="checkpoint 17") as caught:
        sink.pre_commit(transaction)
    assert f"path={URL}" in str(caught.value)
    server.heal()
    sink.abort(transaction)
    assert everything(sink) == {}
    assert server.uploads == {}


# --- the commit ----------------------------------------------------------------------------------


def test_a_commit_that_was_stored_and_never_answered_is_found(sink, server):
    one = checked(sink, 1)
    server.fail(Fault(method="PUT", key="_committed/", carried_out=True, status=0))
    assert outcome(sink, one) is Outcome.ALREADY_COMMITTED
    assert (seen(sink), hidden_files(sink)) == ([1], [])


def test_a_commit_that_was_not_stored_is_unknown_and_done_later(sink, server):
    one = checked(sink, 1)
    server.fail(Fault(method="PUT", key="_committed/", status=500, times=99))
    assert outcome(sink, one) is Outcome.UNKNOWN
    assert (seen(sink), hidden_files(sink)) == ([], [one.transactional_id])
    server.heal()
    assert sink.recover_and_commit([one], soon()) == {one.token: Outcome.COMMITTED}
    assert (seen(sink), hidden_files(sink)) == ([1], [])


def test_a_commit_that_arrives_after_its_recovery_changes_nothing(sink, server):
    one = checked(sink, 1)
    late = server.fail(
        Fault(method="PUT", key="_committed/", before=threading.Event(), status=None, times=99)
    )
    assert outcome(sink, one) is Outcome.UNKNOWN
    late.times = 0
    assert outcome(opened(sink.options), one) is Outcome.COMMITTED
    sweep(sink)
    late.before.set()
    server.wait_idle()
    assert [key for key, _ in server.stored if "_committed/" in key] == [
        f"lake/out/_committed/{name_of(one)}"
    ]
    assert (seen(sink), whole(sink)) == ([1], [(1, 0, 1)])


def test_of_drivers_that_commit_at_the_same_time_one_has_done_it(sink, server):
    """Each has seen the file and no mark; one put of theirs is the first."""
    one, many = checked(sink, 1), 4
    gate = Fault(method="PUT", key="_committed/", before=threading.Event(), status=None, times=many)
    server.fail(gate)
    drivers = [opened(options_on(server)) for _ in range(many)]
    begun = server.requests["PUT"]
    with ThreadPoolExecutor(many) as pool:
        found = [pool.submit(outcome, each, one) for each in drivers]
        await_requests(server, "PUT", begun + many)
        gate.before.set()
    assert sorted(each.result().value for each in found) == ["already_committed"] * 3 + [
        "committed"
    ]
    assert len([key for key, _ in server.stored if "_committed/" in key]) == 1
    assert seen(sink) == [1]


def test_files_of_a_checkpoint_are_committed_at_the_same_time(server):
    """One after the other, a hundred of them would take seconds of every checkpoint."""
    sink, many = opened(options_on(server)), 8
    written = [prepared(sink, n, subtask=n) for n in range(many)]
    sink.check_prepared(written, soon())
    gate = Fault(method="PUT", key="_committed/", before=threading.Event(), status=None, times=many)
    server.fail(gate)
    begun = server.requests["PUT"]
    committing = in_background(lambda: sink.commit(written, soon()))
    await_requests(server, "PUT", begun + many)
    gate.before.set()
    assert set(committing.result().values()) == {Outcome.COMMITTED}
    assert seen(sink) == list(range(many))


def await_requests(server: S3Server, method: str, count: int) -> None:
    """Wait until so many have come, which the server holds back."""
    until(
        lambda: server.requests[method] >= count,
        said=lambda: f"{server.requests[method]} of {count} {method} requests came",
    )


@pytest.mark.parametrize("status", [403, 500])
def test_what_is_committed_survives_the_sweep_of_what_was_not_cleaned(sink, server, status, caplog):
    """Its own object says that the transaction is open; the file is the only copy of it."""
    one = checked(sink, 1)
    server.fail(Fault(method="DELETE", key="_transactions/", status=status, times=99))
    with caplog.at_level(logging.WARNING):
        assert outcome(sink, one) is Outcome.COMMITTED
    assert f"{one.transactional_id} is committed" in caplog.text
    assert SECRET not in caplog.text
    server.heal()
    assert sweep(opened(sink.options)) == [one.transactional_id]
    assert hidden_files(sink) == []
    assert (seen(sink), whole(sink)) == ([1], [(1, 0, 1)])


def test_a_bucket_that_is_away_proves_nothing(sink, server):
    """A file of a bucket that is not there looks like a file that was removed."""
    one, server.bucket = checked(sink, 1), "gone"
    unknown = {one.token: Outcome.UNKNOWN}
    assert sink.commit([one], soon()) == unknown
    assert sink.recover_and_commit([one], soon()) == unknown
    with pytest.raises(BrokerUnavailableError, match="does not exist"):
        sink.lingering(OWNER, soon())
    with pytest.raises(ConfigurationError, match="does not exist"):
        opened(sink.options)
    server.bucket = "bucket"
    assert outcome(sink, one) is Outcome.COMMITTED
    assert seen(sink) == [1]


def test_a_bucket_that_was_made_anew_proves_nothing(sink, server):
    """Nor does an address that leads to a copy which has nothing of it yet."""
    one = checked(sink, 1)
    before, server.objects = server.objects, {}
    assert outcome(sink, one) is Outcome.UNKNOWN
    server.objects = before
    assert outcome(sink, one) is Outcome.COMMITTED
    assert seen(sink) == [1]


def test_a_file_that_somebody_removed_is_lost(sink):
    one = checked(sink, 1)
    change(sink, place_of(sink, one), None)
    assert outcome(sink, one) is Outcome.ABORTED
    assert sink.recover_and_commit([one], soon()) == {one.token: Outcome.ABORTED}
    assert sweep(sink) == [one.transactional_id]
    assert seen(sink) == []


def test_a_committed_file_that_somebody_removed_is_not_written_again(sink):
    """The mark is the commit: a clean-up that took the file first is not undone."""
    one = checked(sink, 1)
    decide(sink, one)
    change(sink, place_of(sink, one), None)
    assert outcome(sink, one) is Outcome.ALREADY_COMMITTED


# --- writers that are late -----------------------------------------------------------------------


def test_an_upload_that_ends_after_its_sweep_stays_invisible(server):
    """A worker that Spark has given up: its sweep comes while the file is on its way."""
    sink = opened(options_on(server))
    decide(sink, prepared(sink, 1, 2))
    late = server.fail(Fault(method="PUT", key="_data/", before=threading.Event(), status=None))
    zombie = in_background(lambda: prepared(pickle.loads(pickle.dumps(sink)), 1, 2, task=1))
    assert late.met.wait(10)
    (swept,) = sweep(sink)
    late.before.set()
    one = zombie.result()
    assert one.transactional_id == swept
    with pytest.raises(PhaseOneError, match="gone"):
        sink.check_prepared([one], soon())
    assert (seen(sink), whole(sink)) == ([1, 2], [(1, 0, 2)])
    assert sweep(sink) == []
    assert abandoned_files(URL, sink.options.store) == [f"{URL}/_data/{name_of(one)}"]


def test_what_may_still_be_committed_is_not_abandoned(sink, server):
    committed, waiting = prepared(sink, 1), prepared(sink, 2, subtask=1)
    decide(sink, committed)
    stays = checked(sink, 3, checkpoint=2)
    server.fail(Fault(method="DELETE", key="_transactions/", status=500, times=99))
    assert outcome(sink, stays) is Outcome.COMMITTED
    server.heal()
    assert abandoned_files(URL, sink.options.store) == []
    change(sink, f"_transactions/{waiting.transactional_id}", None)
    assert abandoned_files(URL, sink.options.store) == [f"{URL}/_data/{name_of(waiting)}"]
    assert abandoned_files("/nowhere") == []


@pytest.mark.parametrize("listing", ["_data/", "_transactions/", "_committed/"])
def test_what_is_committed_while_one_looks_is_not_abandoned(server, listing):
    """Somebody may delete what is returned: whatever comes between two listings is left out."""
    sink = opened(options_on(server))
    before = checked(sink, 1)
    held = server.fail(
        Fault(method="LIST", key=listing, carried_out=True, status=None, after=threading.Event())
    )
    looking = in_background(lambda: abandoned_files(URL, sink.options.store))
    assert held.met.wait(10)
    prepared(sink, 2, checkpoint=2)
    assert outcome(sink, before) is Outcome.COMMITTED
    held.after.set()
    assert looking.result() == []


def test_of_two_attempts_only_the_decided_one_is_seen(sink):
    lost, won = prepared(sink, 1, 2, task=1), prepared(sink, 1, 2, task=2)
    assert lost.fingerprint == won.fingerprint
    decide(sink, won)
    assert sweep(sink) == [lost.transactional_id]
    assert seen(sink) == [1, 2]
    assert [place for place in everything(sink) if "_data/" in place] == [place_of(sink, won)]
    with pytest.raises(PhaseOneError, match="gone"):
        sink.check_prepared([lost], soon())


def test_a_sweep_that_fails_half_way_is_done_again(sink, server):
    one = prepared(sink, 1)
    server.fail(Fault(method="DELETE", key="_transactions/", status=500, times=99))
    with pytest.raises(BrokerUnavailableError, match="cannot be used"):
        sweep(sink)
    assert hidden_files(sink) == [one.transactional_id]
    server.heal()
    assert sweep(sink) == [one.transactional_id]
    assert everything(sink) == {}


# --- what is refused -----------------------------------------------------------------------------


def four_parts(error: SparkOnceError) -> str:
    assert all((error.what, error.where, error.cause, error.option)), error
    assert SECRET not in str(error)
    return str(error)


def test_a_store_that_overwrites_is_refused_before_anything_is_written(server):
    server.is_conditional = False
    with pytest.raises(ConfigurationError, match="no conditional put") as caught:
        opened(options_on(server, secret_access_key=SECRET))
    assert "both commit" in four_parts(caught.value)
    assert server.objects == {}


def test_a_store_that_no_longer_keeps_its_promise_gets_no_decision(server):
    """The sink of a driver that did not ask at its start: asked before the manifest."""
    sink = opened(options_on(server))
    one, server.is_conditional = prepared(sink, 1), False
    fresh = FileCommitter(sink.name, URL, open_folder(URL, sink.options.store))
    with pytest.raises(PhaseOneError, match="no conditional put"):
        fresh.check_prepared([one], soon())
    assert not [place for place in everything(sink) if place.startswith("_manifests")]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"access_key_id": "stranger"}, "refused our credentials"), ({}, "rights")],
)
def test_who_may_not_write_is_told_at_the_start(server, given, said):
    server.fail(Fault(method="PUT", status=403, times=99))
    with pytest.raises(ConfigurationError, match=said) as caught:
        opened(options_on(server, secret_access_key=SECRET, **given))
    assert not is_retried(caught.value)
    four_parts(caught.value)


def test_a_store_that_is_away_at_the_start_is_tried_again(server):
    server.fail(Fault(method="LIST", status=503, times=99))
    with pytest.raises(BrokerUnavailableError, match="cannot be used") as caught:
        opened(options_on(server, secret_access_key=SECRET, **BRIEF))
    assert is_retried(caught.value)
    assert "503" in four_parts(caught.value)


def test_rights_that_are_taken_away_in_a_run_end_nothing(sink, server):
    one = checked(sink, 1)
    for method in ("PUT", "LIST"):
        server.fail(Fault(method=method, status=403, times=99))
    assert outcome(sink, one) is Outcome.UNKNOWN
    with pytest.raises(BrokerUnavailableError, match="rights"):
        sink.lingering(OWNER, soon())
    with pytest.raises(PhaseOneError, match="rights") as caught:
        prepared(sink, 2)
    four_parts(caught.value)
    with pytest.raises(PhaseOneError, match="privileges"):
        sink.check_prepared([one], soon())
    server.heal()
    assert outcome(sink, one) is Outcome.COMMITTED
    assert seen(sink) == [1]


def test_a_reader_is_told_what_is_wrong(server):
    server.fail(Fault(method="LIST", status=403, times=99))
    with pytest.raises(OSError, match="rights"):
        committed_files(URL, server.options())


# --- options -------------------------------------------------------------------------------------


def test_secrets_are_in_no_text(sink):
    assert SECRET not in repr(sink.options)
    assert sink.options.identity() == {"kind": "files", "path": URL, "format": "parquet"}
    assert sink.options.name == "out"
    assert hash(sink.options) == hash(dataclasses.replace(sink.options, store={}))


def test_nothing_live_travels(sink, server):
    decide(sink, prepared(sink, 1))
    other = pickle.loads(pickle.dumps(sink))
    assert "_store" in vars(sink.folder)
    assert "_store" not in vars(other.folder)
    decide(other, prepared(other, 2, checkpoint=2))
    assert seen(sink) == [1, 2]


def test_a_job_file_names_the_options_of_the_store():
    content = text(
        more='[[sink]]\nkind = "files"\npath = "S3://bucket/lake/"\nstore.region = "eu-west-1"\n'
        'store.access_key_id = "us"\nstore.secret_access_key = "${S3_SECRET}"\n'
        "store.Timeout_s = 5\n"
    )
    job = parse_job(content, FOLDER / "job.toml", {"S3_SECRET": SECRET})
    options = job.sinks[1].sink
    assert isinstance(options, FileSink)
    assert options.path == "s3://bucket/lake"
    assert options.store == {
        "region": "eu-west-1",
        "access_key_id": "us",
        "secret_access_key": SECRET,
        "timeout_s": "5",
    }
    assert SECRET not in repr(job)


@pytest.mark.parametrize(
    "line",
    [
        f'store.nonsense = "{SECRET}"',
        f'secret_access_key = "{SECRET}"',
        f'account_key = "{SECRET}"',
        f'store.account_key = "{SECRET}${{ABSENT}}"',
        f'store.secret_access_key = {{ a = ["{SECRET}", 1] }}',
    ],
)
def test_a_job_file_with_a_wrong_option_keeps_its_secret(line):
    sink = f'[[sink]]\nkind = "files"\npath = "s3://bucket/lake"\n{line}\n'
    with pytest.raises(ConfigurationError) as caught:
        parse_job(text(more=sink), FOLDER / "job.toml", {})
    four_parts(caught.value)


@pytest.mark.parametrize(
    ("path", "store", "said"),
    [
        ("ftp://host/path", {}, "unknown kind of store"),
        (f"s3://key:{SECRET}@bucket/x", {}, "carries credentials"),
        (f"az://container/x?sig={SECRET}", {"account_name": "us"}, "carries credentials"),
        ("az://container/x", {}, "Account must be specified"),
        (URL, {"nonsense": SECRET}, "nonsense"),
        (URL, {"retry_s": "0"}, "seconds"),
        ("/data/x", {"region": SECRET}, "has no options of a store"),
        ("file:///data/x", {"region": SECRET}, "has no options of a store"),
    ],
)
def test_a_wrong_address_or_option_is_told_before_anything_is_sent(path, store, said):
    for use in (lambda: FileSink(path=path, store=store), lambda: committed_files(path, store)):
        with pytest.raises(ConfigurationError, match=said) as caught:
            use()
        four_parts(caught.value)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    for module in ("connectors.files.object_folder", "transactions.object_store"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigurationError, match=r"'\.\[object-store\]'") as caught:
        FileSink(path=f"s3://key:{SECRET}@bucket/x")
    four_parts(caught.value)
    assert FileSink(path="/data/x").path == "/data/x"


# --- what it costs -------------------------------------------------------------------------------


def test_what_a_checkpoint_costs(server):
    """The table of docs/file_sink.md: requests for two files, step by step."""
    server.page = 1000

    def cost(step: Callable[[], Any]) -> dict[str, int]:
        server.requests.clear()
        step()
        return dict(server.requests)

    sink, written = opened(options_on(server)), []
    assert dict(server.requests) == {"LIST": 1, "PUT": 2, "GET": 1, "DELETE": 1}
    assert cost(lambda: written.extend(prepared(sink, n, subtask=n) for n in range(2))) == {
        "PUT": 4
    }
    assert cost(lambda: sink.check_prepared(written, soon())) == {"HEAD": 4, "PUT": 1}
    assert cost(lambda: sink.commit(written, soon())) == {"HEAD": 2, "PUT": 2, "DELETE": 2}
    assert cost(lambda: sweep(sink)) == {"LIST": 1}
    assert cost(lambda: committed_files(URL, server.options())) == {"LIST": 3, "GET": 1}
