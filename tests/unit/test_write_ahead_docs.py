"""The code of docs/write_ahead_sink.md runs, against a real target."""

from __future__ import annotations

import contextlib
import http.server
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.wal import WriteAheadSink
from tests.both_halves import both_halves
from tests.pages import block, replaced, run_python
from transactions.clock import Deadline
from transactions.committable import Outcome
from transactions.sink import Attempt, Owner

WEBHOOK = block("docs/write_ahead_sink.md", "class WebhookSink")
SQLITE = block("docs/write_ahead_sink.md", "SQLiteWriteAheadSink(")
OWNER = Owner(application_id="app", log_id="log", run_epoch=1)


def opened(code: str, folder: Path, **here: str) -> Any:
    names: dict[str, Any] = {}
    run_python(replaced(code, {"/srv": str(folder), **here}), names)
    assert isinstance(names["sink"], WriteAheadSink)
    return both_halves(names["sink"], checkpoint_timeout_s=10)


def written(sink: Any, columns: dict[str, list[Any]]) -> Outcome:
    attempt = Attempt(owner=OWNER, checkpoint_id=4, subtask=1, attempt_id="1.1")
    transaction = sink.begin_transaction(attempt)
    sink.invoke(transaction, pa.record_batch({k: pa.array(v) for k, v in columns.items()}))
    one = sink.pre_commit(transaction)
    assert one is not None
    outcome = sink.commit([one], Deadline(10))[one.token]
    sink.close()
    return outcome


class Events(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str | None, object]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port():
    Events.seen = []
    with http.server.HTTPServer(("127.0.0.1", 0), Events) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_sink_of_ones_own(tmp_path, port):
    sink = opened(WEBHOOK, tmp_path, **{"localhost:8080": f"127.0.0.1:{port}"})
    assert written(sink, {"user": ["a", "b"]}) is Outcome.COMMITTED
    ((key, rows),) = Events.seen
    assert rows == [{"user": "a"}, {"user": "b"}]
    run, *numbers = str(key).rsplit(".", 3)
    assert numbers == ["4", "1", "0"]
    assert run.startswith("app.log."), "checkpoint numbers repeat after a savepoint is restored"


def test_rows_and_mark_in_one_transaction(tmp_path):
    sink = opened(SQLITE, tmp_path)
    assert written(sink, {"user": ["a", None], "n": [1, 2]}) is Outcome.COMMITTED
    with contextlib.closing(sqlite3.connect(tmp_path / "clicks.db")) as database:
        assert database.execute("SELECT * FROM clicks").fetchall() == [("a", 1), (None, 2)]
