"""What a network adds to the decision log: lost answers, late puts, silence, refusals."""

import sys
import threading
import time
from pathlib import Path

import pytest

from tests.unit.s3_server import Fault, S3Server
from tests.unit.samples import decision
from transactions import decision_log
from transactions.decision_log import DecisionLog, entry_name, read_log
from transactions.errors import (
    ConfigurationError,
    DecisionLogError,
    FencedError,
    SparkOnceError,
)
from transactions.log_backend import LocalFileBackend
from transactions.log_location import backend_for
from transactions.object_store import ObjectStoreError
from transactions.object_store_backend import ObjectStoreBackend
from transactions.restart_strategy import is_retried

URL = "s3://bucket/app/log"
FREE = "floor-1"  #: a name that changes nothing for the log
BRIEF = {"timeout_s": 0.4, "retry_s": 1.0}


@pytest.fixture
def server():
    with S3Server() as one:
        yield one


@pytest.fixture
def backend(server):
    return ObjectStoreBackend(URL, **server.options(), **BRIEF)


def open_log(backend) -> DecisionLog:
    return DecisionLog.open(backend, application_id="app", identity={})


def entries_of(server: S3Server) -> list[str]:
    return [key for key, _ in server.stored if ".probe" not in key]


def assert_four_parts(error: SparkOnceError) -> None:
    assert error.what
    assert error.where
    assert error.cause
    assert error.option


def test_a_store_that_only_the_environment_names_may_speak_http(server, monkeypatch):
    """MinIO on this machine, as every other S3 program finds it: "builder error" before."""
    for name, value in server.options().items():
        monkeypatch.setenv(f"AWS_{'ENDPOINT_URL' if name == 'endpoint' else name.upper()}", value)
    backend = ObjectStoreBackend(URL, **BRIEF)
    assert open_log(backend).state.tail == 1
    assert read_log(backend).application_id == "app"


# -- a put whose answer is lost ------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_stored_put_whose_answer_is_lost_says_exists_and_was_ours(server, backend, status):
    """The client sends the put again and meets its own object; only the nonce can tell."""
    log = open_log(backend)
    fault = server.fail(Fault(method="PUT", carried_out=True, status=status))
    assert backend.put_if_absent(FREE, b"ours") is False
    assert backend.get(FREE) == b"ours"
    fault.times = 1
    log.decide(decision(0))
    assert fault.times == 0
    assert read_log(backend).decision == decision(0)
    assert entries_of(server).count(f"app/log/{entry_name(2)}") == 1


def test_exists_is_not_ours_when_another_run_was_faster(server, backend):
    older, newer = open_log(backend), open_log(backend)
    server.fail(Fault(method="PUT", status=500))
    with pytest.raises(FencedError):
        older.decide(decision(7))
    newer.decide(decision(0))
    assert read_log(backend).decision == decision(0)


def test_a_server_that_stores_and_answers_500_has_decided(server, backend):
    log = open_log(backend)
    server.fail(Fault(method="PUT", carried_out=True, status=500, times=999))
    with pytest.raises(OSError, match="500"):
        backend.put_if_absent(FREE, b"")
    log.decide(decision(0))
    server.heal()
    assert read_log(backend).decision == decision(0)


def test_a_server_that_only_answers_500_has_not_decided(server, backend):
    log = open_log(backend)
    server.fail(Fault(method="PUT", status=500, times=999))
    with pytest.raises(DecisionLogError, match="500") as raised:
        log.decide(decision(0))
    assert_four_parts(raised.value)
    server.heal()
    assert open_log(backend).state.decision is None


def test_the_log_asks_until_the_store_can_read_again(server, backend):
    log = open_log(backend)
    server.fail(Fault(method="PUT", carried_out=True, status=503, times=999))
    outage = server.fail(Fault(method="GET", status=503, times=12))
    log.decide(decision(0))
    assert outage.times == 0
    server.heal()
    assert read_log(backend).decision == decision(0)


def test_a_conflict_is_tried_again_and_fences_nobody(server, backend):
    """409 is what S3 says when it could not tell; obstore calls it "exists"."""
    log = open_log(backend)
    conflict = server.fail(Fault(method="PUT", status=409))
    log.decide(decision(0))
    assert conflict.times == 0
    assert read_log(backend).decision == decision(0)


# -- a server that hangs -------------------------------------------------------------------------


def test_a_put_that_hangs_once_is_sent_again(server, backend):
    log = open_log(backend)
    stuck = server.fail(Fault(method="PUT", before=threading.Event(), status=None))
    log.decide(decision(0))
    assert stuck.met.is_set()
    stuck.before.set()
    server.wait_idle()  # the first put comes too late, to a name that is taken
    assert entries_of(server).count(f"app/log/{entry_name(2)}") == 1


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("PUT", lambda backend: backend.put_if_absent("name", b"")),
        ("GET", lambda backend: backend.get("name")),
        ("LIST", lambda backend: backend.list()),
        ("DELETE", lambda backend: backend.delete("name")),
    ],
)
def test_a_server_that_hangs_is_an_error_in_bounded_time(server, backend, method, call):
    backend.put_if_absent("first", b"")
    server.fail(Fault(method=method, before=threading.Event(), times=999))
    begin = time.monotonic()
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the type is the contract
        call(backend)
    assert time.monotonic() - begin < 3 * (BRIEF["timeout_s"] + BRIEF["retry_s"]) + 1.0
    assert is_retried(raised.value)
    if method != "PUT":  # of a put the log makes four parts
        assert isinstance(raised.value, ObjectStoreError)
        assert_four_parts(raised.value)


def hang_a_decision(server: S3Server, backend: ObjectStoreBackend) -> Fault:
    log = open_log(backend)
    late = server.fail(Fault(method="PUT", before=threading.Event(), status=None, times=999))
    with pytest.raises(DecisionLogError):
        log.decide(decision(0))
    late.times = 0
    return late


def test_a_put_that_lands_before_the_next_fence_is_the_decision(server, backend):
    late = hang_a_decision(server, backend)
    late.before.set()
    server.wait_idle()
    assert open_log(backend).state.decision == decision(0)


def test_a_put_that_lands_after_the_next_fence_is_nothing(server, backend):
    late = hang_a_decision(server, backend)
    newer = open_log(backend)
    late.before.set()
    server.wait_idle()
    assert read_log(backend) == newer.state
    assert newer.state.decision is None


# -- many writers --------------------------------------------------------------------------------


def test_of_many_drivers_that_open_at_once_one_can_decide(server):
    """Each put of each is answered late or lost here and there; every entry has one writer."""
    for _ in range(6):
        server.fail(Fault(method="PUT", carried_out=True, status=0))
        server.fail(Fault(method="PUT", status=500))
    barrier, decided = threading.Barrier(6), []

    def run(number: int) -> None:
        backend = ObjectStoreBackend(URL, **server.options())
        barrier.wait()
        log = open_log(backend)
        try:
            for step in range(5):
                log.decide(decision(10 * number + step))
                decided.append((log.state.tail, 10 * number + step))
        except FencedError:
            pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = entries_of(server)
    assert sorted(keys) == [f"app/log/{entry_name(1 + n)}" for n in range(len(keys))]
    assert len({tail for tail, _ in decided}) == len(decided) >= 5
    last = max(decided)[1]
    assert read_log(ObjectStoreBackend(URL, **server.options())).decision == decision(last)


def test_a_reader_beside_a_compacting_writer_on_many_pages(server, backend, monkeypatch):
    monkeypatch.setattr(decision_log, "COMPACT_EVERY", 5)
    server.page = 3
    log = open_log(backend)
    for number in range(40):
        log.decide(decision(number))
        log.compact_if_due()
        assert read_log(ObjectStoreBackend(URL, **server.options())) == log.state
    assert len(server.objects) <= 8


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://nobody/app/log", {}, "does not exist"),
        (URL, {"access_key_id": "stranger"}, "refused our credentials"),
    ],
)
def test_a_wrong_bucket_or_wrong_credentials_are_told_at_once(server, url, options, said):
    backend = ObjectStoreBackend(url, **server.options(**options))
    begin = time.monotonic()
    for act in (lambda: open_log(backend), lambda: backend.put_if_absent("1", b"")):
        with pytest.raises(ConfigurationError, match=said) as raised:
            act()
        assert_four_parts(raised.value)
        assert "secret" not in str(raised.value)
    assert time.monotonic() - begin < 5.0
    assert server.stored == []


def test_one_who_may_only_read_is_told_before_the_first_entry(server, backend):
    server.fail(Fault(method="PUT", status=403, times=999))
    with pytest.raises(ConfigurationError, match="rights"):
        open_log(backend)
    assert server.stored == []


def test_a_store_that_overwrites_is_refused_before_the_first_entry(server, backend):
    server.is_conditional = False
    with pytest.raises(ConfigurationError, match="no conditional put") as raised:
        open_log(backend)
    assert_four_parts(raised.value)
    assert entries_of(server) == []
    assert server.objects == {}


def test_a_client_that_was_told_not_to_is_refused(server):
    backend = ObjectStoreBackend(URL, **server.options(conditional_put="disabled"))
    with pytest.raises(ConfigurationError, match="no conditional put"):
        open_log(backend)


def test_reading_writes_nothing(server, backend):
    assert read_log(backend).tail == 0
    assert server.requests["PUT"] == 0


def test_what_others_keep_under_the_prefix_is_not_the_logs(server, backend):
    server.objects |= {"app/log/deep/1": b"", "app/log/.probe-1": b"", "app/logs/1": b""}
    backend.put_if_absent("1", b"")
    assert backend.list() == ["1"]


# -- addresses -----------------------------------------------------------------------------------


def test_an_address_picks_its_backend(tmp_path, server):
    path = tmp_path / "a"
    for location in (path, str(path), f"file://{path}", f"file:{path}"):
        found = backend_for(location)
        assert isinstance(found, LocalFileBackend), location
        assert found.describe() == str(path)
    found = backend_for(URL.replace("s3", " S3"), server.options(timeout_s="5", retry_s="7"))
    assert isinstance(found, ObjectStoreBackend)
    assert found.describe() == URL
    assert found.put_if_absent("1", b"") is True
    for url, options in (
        ("gs://bucket/app", {}),
        ("az://container/app", {"account_name": "us"}),
        ("abfss://files@us.dfs.core.windows.net/app", {}),
        ("memory:///", {}),
    ):
        assert backend_for(url, options).describe() == url


def test_a_path_with_a_blank_and_a_percent_is_decoded(tmp_path):
    folder = tmp_path / "a b%c"
    assert backend_for(folder.as_uri()).describe() == str(folder)


@pytest.mark.parametrize(
    ("location", "options", "said"),
    [
        ("ftp://host/path", {}, "unknown kind of store"),
        ("http://host/path", {}, "unknown kind of store"),
        ("dbfs:/app", {}, "unknown kind of store"),
        ("s3_us://bucket/app", {}, "unknown kind of store"),
        ("://bucket/app", {}, "unknown kind of store"),
        ("s3:/bucket/app", {}, "cannot be used"),
        ("s3://", {}, "cannot be used"),
        ("s3://key:hidden@bucket/app", {}, "carries credentials"),
        ("az://container/app?sig=hidden", {"account_name": "us"}, "carries credentials"),
        ("az://container/app", {}, "Account must be specified"),
        (URL, {"nonsense": "hidden"}, "nonsense"),
        (URL, {"timeout": "5s"}, "timeout_s"),
        (URL, {"allow_http": "perhaps"}, "perhaps"),
        (URL, {"retry_s": "0"}, "seconds"),
        (URL, {"timeout_s": "soon"}, "seconds"),
        ("file://elsewhere/app", {}, "another machine"),
        ("file:///app", {"region": "x"}, "has no options"),
    ],
)
def test_a_wrong_address_or_option_is_told_in_four_parts(location, options, said):
    with pytest.raises(ConfigurationError, match=said) as raised:
        backend_for(location, options)
    assert_four_parts(raised.value)
    assert "hidden" not in str(raised.value)


def test_without_the_extra_the_error_names_it(monkeypatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    for module in ("object_store", "object_store_backend"):
        monkeypatch.delitem(sys.modules, f"transactions.{module}")
    with pytest.raises(ConfigurationError, match=r"'\.\[object-store\]'") as raised:
        backend_for(URL)
    assert_four_parts(raised.value)
    assert isinstance(backend_for(tmp_path / "log"), LocalFileBackend)
