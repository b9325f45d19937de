"""The process that commits what `format("kafka-exactly-once")` writes: one for each Spark driver.

Spark runs `commit` of a Python data source in any of its pooled workers, and batches of one query
change between them (seen, pyspark 4.3.0). A worker can keep neither the log nor the connections of
a run. So the first plan of a driver's JVM starts this process beside it, and the workers only ask
it. It ends with the JVM. When it dies, the query fails; the next start begins a new run, whose
Fence and recovery settle what is left: the decision log is the only truth.

    python -m connectors.spark.commit_process FOLDER JVM_PID JVM_BORN
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Final

from connectors.spark.commit_requests import LOCK, SOCKET, Abort, Commit, Plan, Request, is_running
from connectors.spark.query_options import QueryOptions
from connectors.spark.query_run import QueryRun
from transactions.errors import PhaseOneError, SparkOnceError

logger = logging.getLogger(__name__)

_WAITING: Final = 64
_LOOKS_S: Final = 0.5
_LAST_RUNS_S: Final = 15.0


class CommitProcess:
    """Serves the queries and jobs of one JVM, each by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[Path, str], tuple[threading.Lock, QueryRun]] = {}
        self._ending = False

    def serve(self, listener: Listener) -> None:
        """Answer requests for as long as the process lives."""
        while True:
            try:
                connection = listener.accept()
            except OSError as error:  # the caller has gone, or there are too many
                logger.debug("a caller was not accepted: %s", error)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            answer = self._result(connection.recv())
            try:
                connection.send(answer)
            except Exception:  # noqa: BLE001 - a foreign error that cannot be pickled
                connection.send(SparkOnceError(f"{type(answer).__name__}: {answer}"))

    def _result(self, request: Request) -> Any:
        """Return the result, or the error: the worker raises it."""
        try:
            with self._held(request.options) as run:
                match request:
                    case Plan():
                        return run.plan(request.options, request.schema, request.left_out)
                    case Commit():
                        return run.commit(request.number, request.owners, request.told)
                    case Abort():
                        return run.abort(request.owners)
        except Exception as error:
            if not isinstance(error, SparkOnceError):
                logger.exception("the commit process failed")
            return error

    @contextlib.contextmanager
    def _held(self, options: QueryOptions) -> Iterator[QueryRun]:
        """Give the run of a query or job to this thread alone."""
        key = options.checkpoint, options.app_id
        while True:
            with self._lock:
                served = self._runs.setdefault(key, (threading.Lock(), QueryRun(options)))
            with served[0]:
                if self._ending:
                    raise PhaseOneError("The driver of this query has ended.")
                if self._runs.get(key) is served:  # else `look` has forgotten it meanwhile
                    yield served[1]
                    return

    def look(self) -> None:
        """End the runs that nobody calls any more, and forget jobs that have ended."""
        for key, (lock, run) in self._all():
            if lock.acquire(blocking=False):
                try:
                    run.look()
                    if not run.is_open:
                        with self._lock:
                            del self._runs[key]
                except Exception as error:  # noqa: BLE001 - the next start does it
                    logger.warning("a run was not ended: %s", error)
                finally:
                    lock.release()

    def close(self) -> None:
        """End every run; one that does not finish its commit in time is left to the next start."""
        self._ending = True
        for _, (lock, run) in self._all():
            if lock.acquire(timeout=_LAST_RUNS_S):
                try:
                    run.close()
                except Exception as error:  # noqa: BLE001 - the next start does it
                    logger.warning("a run was not closed: %s", error)
                finally:
                    lock.release()

    def _all(self) -> list[tuple[tuple[Path, str], tuple[threading.Lock, QueryRun]]]:
        with self._lock:
            return [*self._runs.items()]


def main() -> None:
    """Serve until the JVM has ended; if another process serves it already, end at once.

    A service manager sends SIGTERM to the JVM and to this process (systemd's
    KillMode=control-group), and a terminal that is closed sends SIGHUP. Neither may end a commit
    in the middle: this process ends with its JVM.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder, pid, born = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # our errors report it once
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        (folder / SOCKET).unlink(missing_ok=True)
        listener = Listener(str(folder / SOCKET), family="AF_UNIX", backlog=_WAITING)
        process = CommitProcess()
        threading.Thread(target=process.serve, args=(listener,), daemon=True).start()
        waiting = threading.Event()
        while is_running(pid, born):
            waiting.wait(_LOOKS_S)
            process.look()
        process.close()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main()
