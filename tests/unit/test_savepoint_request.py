"""An ask reaches the driver while somebody waits for it, and never after."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pytest

from connectors.pipeline.savepoint_request import SavepointRequests, ask_for_savepoint
from tests.waiting import until
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import SavepointError, SavepointNotMadeError
from transactions.log_backend import LocalFileBackend
from transactions.object_store import ObjectStoreError

SOON_S = 20.0
ASK = {"folder": "/to", "stop": True, "until_ms": 1 << 60}


def served(checkpoint: Path, made: CheckpointLocation | SavepointError) -> threading.Thread:
    """Answer the next ask, on a thread of its own."""

    def serve() -> None:
        requests = SavepointRequests(CheckpointLocation(checkpoint))
        requests.answer(until(requests.pending)[0], made)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_an_ask_is_answered_and_nothing_stays(tmp_path: Path):
    thread = served(tmp_path, CheckpointLocation(tmp_path / "made"))
    made = ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=SOON_S)
    assert made.folder == tmp_path / "made"
    thread.join(SOON_S)
    assert list((tmp_path / "savepoint-requests").iterdir()) == []


def test_an_error_of_the_driver_arrives_whole(tmp_path: Path):
    error = SavepointError("what", where="where", cause="cause", option="option")
    served(tmp_path, error)
    with pytest.raises(SavepointNotMadeError) as caught:
        ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=SOON_S)
    assert str(caught.value) == str(error)


def test_an_ask_without_an_answer_is_withdrawn(tmp_path: Path):
    with pytest.raises(SavepointNotMadeError, match="not made the savepoint in time"):
        ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=0.05)
    assert SavepointRequests(CheckpointLocation(tmp_path)).pending() == []


def test_ctrl_c_withdraws_it(tmp_path: Path):
    def interrupted() -> None:
        assert len(SavepointRequests(CheckpointLocation(tmp_path)).pending()) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=SOON_S, while_waiting=interrupted)
    assert SavepointRequests(CheckpointLocation(tmp_path)).pending() == []


def test_a_driver_that_answers_with_its_last_breath_is_heard(tmp_path: Path):
    def gone() -> None:
        requests = SavepointRequests(CheckpointLocation(tmp_path))
        (one,) = requests.pending()
        requests.answer(one, CheckpointLocation(tmp_path / "made"))
        raise SavepointError("The driver has ended without an answer.")

    made = ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=SOON_S, while_waiting=gone)
    assert made.folder == tmp_path / "made"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of which a store says nothing, once each."""
    silent: list[str] = []

    def tell(name: str) -> None:
        if silent and name.endswith(silent[0]):
            del silent[0]
            raise ObjectStoreError("The object store did not answer.")

    def get(self: LocalFileBackend, name: str) -> bytes | None:
        tell(name)
        return real_get(self, name)

    def delete(self: LocalFileBackend, name: str) -> None:
        tell(name)
        real_delete(self, name)

    real_get, real_delete = LocalFileBackend.get, LocalFileBackend.delete
    monkeypatch.setattr(LocalFileBackend, "get", get)
    monkeypatch.setattr(LocalFileBackend, "delete", delete)
    return silent


def test_a_store_that_is_silent_for_a_while_ends_no_wait(tmp_path: Path, looks, caplog):
    looks += [".answer", ".answer"]
    served(tmp_path, CheckpointLocation(tmp_path / "made"))
    made = ask_for_savepoint(tmp_path, tmp_path / "to", timeout_s=SOON_S)
    assert made.folder == tmp_path / "made"
    assert caplog.text.count("could not be looked for") == 2


def test_who_cannot_withdraw_an_ask_says_what_may_come(tmp_path: Path, looks, caplog):
    looks += [".ask"]
    with pytest.raises(SavepointNotMadeError, match="The driver may stop later"):
        ask_for_savepoint(tmp_path, tmp_path / "to", stop=True, timeout_s=0.05)
    assert "the driver may still serve it" in caplog.text


def test_nobody_waits_for_an_old_ask(tmp_path: Path):
    folder = tmp_path / "savepoint-requests"
    assert SavepointRequests(CheckpointLocation(tmp_path)).pending() == []
    assert not folder.exists()
    folder.mkdir()
    (folder / "1.ask").write_bytes(orjson.dumps({**ASK, "until_ms": 1}))
    assert SavepointRequests(CheckpointLocation(tmp_path)).pending() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"7",
        b'{"other": 1}',
        orjson.dumps({**ASK, "until_ms": "soon"}),
        orjson.dumps({**ASK, "folder": None}),
        None,
    ],
)
def test_a_strange_file_ends_no_pipeline(tmp_path: Path, data: bytes | None, caplog):
    folder = tmp_path / "savepoint-requests"
    folder.mkdir()
    if data is None:
        (folder / "1.ask").mkdir()
    else:
        (folder / "1.ask").write_bytes(data)
    requests = SavepointRequests(CheckpointLocation(tmp_path))
    assert requests.pending() == requests.pending() == []
    assert caplog.text.count("cannot be served") == 1


def test_what_cannot_be_answered_is_served_once(tmp_path: Path, caplog):
    folder = tmp_path / "savepoint-requests"
    folder.mkdir()
    (folder / "1.ask").write_bytes(orjson.dumps({**ASK, "request_id": "../another"}))
    requests = SavepointRequests(CheckpointLocation(tmp_path))
    (one,) = requests.pending()
    assert one.request_id == "1"
    folder.rename(tmp_path / "moved")
    folder.write_bytes(b"no folder any more")
    requests.answer(one, CheckpointLocation(tmp_path / "made"))
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    assert requests.pending() == []
    assert caplog.text.count("cannot be served") == 1
