"""The process that commits what `format("kafka-exactly-once")` writes: one for each Spark driver.

Spark runs `commit` of a Python data source in any of its pooled workers, and batches of one query
change between them (seen, pyspark 4.3.0). A worker can keep neither the log nor the connections of
a run. So the first plan of a driver's JVM starts this process beside it, and the workers only ask
it. It ends with the JVM. When it dies, the query fails; the next start begins a new run, whose
Fence and recovery settle what is left: the decision log is the only truth.

    python -m connectors.spark.commit_process FOLDER JVM_PID JVM_STARTED
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import sys
import threading
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Final

from connectors.spark.commit_requests import (
    KEY,
    SOCKET,
    Abort,
    Commit,
    Plan,
    Request,
    is_running,
)
from connectors.spark.query_options import QueryOptions
from connectors.spark.query_run import QueryRun
from transactions.errors import SparkOnceError

logger = logging.getLogger(__name__)

_WAITING: Final = 64
_LOOKS_S: Final = 0.5
_LAST_RUNS_S: Final = 15.0


class CommitProcess:
    """Serves the queries and jobs of one JVM, each by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[Path, str], tuple[threading.Lock, QueryRun]] = {}

    def serve(self, listener: Listener) -> None:
        """Answer requests for as long as the process lives."""
        while True:
            try:
                connection = listener.accept()
            except Exception as error:  # noqa: BLE001 - a caller without the key, or that has gone
                logger.debug("a caller was not accepted: %s", error)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            request: Request = connection.recv()
            connection.send(self._result(request))

    def _result(self, request: Request) -> Any:
        """Return the result, or the error: the worker raises it."""
        try:
            lock, run = self._run(request.options)
            with lock:
                match request:
                    case Plan():
                        return run.plan(request.options, request.schema)
                    case Commit():
                        return run.commit(request.number, request.owners, request.told)
                    case Abort():
                        return run.abort()
        except Exception as error:
            if not isinstance(error, SparkOnceError):
                logger.exception("the commit process failed")
            return error

    def _run(self, options: QueryOptions) -> tuple[threading.Lock, QueryRun]:
        key = options.checkpoint, options.app_id
        with self._lock:
            if key not in self._runs:
                self._runs[key] = threading.Lock(), QueryRun(options)
            return self._runs[key]

    def close(self) -> None:
        """End every run; one that does not finish its commit in time is left to the next start."""
        for lock, run in self._runs.values():
            if lock.acquire(timeout=_LAST_RUNS_S):
                try:
                    run.close()
                except Exception as error:  # noqa: BLE001 - the next start does it
                    logger.warning("a run was not closed: %s", error)
                finally:
                    lock.release()


def main() -> None:
    """Serve until the JVM has ended."""
    folder, pid, started = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    key = secrets.token_bytes(32)
    (folder / SOCKET).unlink(missing_ok=True)
    listener = Listener(str(folder / SOCKET), family="AF_UNIX", backlog=_WAITING, authkey=key)
    process = CommitProcess()
    threading.Thread(target=process.serve, args=(listener,), daemon=True).start()
    _tell_key(folder, key)
    while is_running(pid, started):
        threading.Event().wait(_LOOKS_S)
    process.close()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _tell_key(folder: Path, key: bytes) -> None:
    """Write the key whole: a caller that sees the file can connect."""
    new = folder / f".{KEY}"
    new.touch(mode=0o600)
    new.write_bytes(key)
    new.replace(folder / KEY)


if __name__ == "__main__":
    main()
