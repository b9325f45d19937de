"""A real PostgreSQL for the tests: Debian's binaries, a folder of its own, SIGKILL when asked.

It gives two fixtures, to be imported where they are taken::

    from tests.integration.postgres_server import postgres, postgres_server


    def test_it(postgres): ...  # an empty database
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from connectors.cluster.broker_settings import choose_addresses
from transactions.clock import Deadline

BINARIES = Path("/usr/lib/postgresql")
USER = "postgres"  # PostgreSQL refuses to run as root
START_S = 60.0


class PostgresServer:
    """One server; it can be killed and started again on its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.password = secrets.token_hex(8)
        self.port = choose_addresses(1, None)[0].port
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = (
            {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        )
        if self._as_user:
            shutil.chown(folder, USER, USER)
        password_file = folder / "password"
        password_file.write_text(self.password)
        password_file.chmod(0o644)
        command = [_binary("initdb"), "--pgdata", str(folder / "data"), "--username=postgres"]
        command += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8"]
        command += ["--locale=C.UTF-8", "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **self._as_user)

    def conninfo(self, dbname: str = "postgres", **other: Any) -> str:
        """Return how to connect to one of its databases."""
        parameters: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "postgres",
            "password": self.password,
            "dbname": dbname,
        }
        return make_conninfo("", **{**parameters, **other})

    def start(self, **settings: Any) -> None:
        """Start it, or do nothing when it runs; returns when it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        chosen = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_prepared_transactions": 64,
            "fsync": "on",
            "shared_buffers": "16MB",
            **settings,
        }
        command = [_binary("postgres"), "-D", str(self.folder / "data")]
        command += [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **self._as_user
            )
        deadline = Deadline(START_S)
        while not self._answers():
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"it ended: {said}"
            assert not deadline.expired(), f"it does not answer: {said}"
            deadline.pause(0.1)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it in good order; its sessions are ended with it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_S)

    def kill(self) -> None:
        """SIGKILL to all of its processes, as if the machine had lost its power."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            server.suspend()  # it must not start others meanwhile
            family = [*server.children(recursive=True), server]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=10)
        self._process.wait(10)


@dataclasses.dataclass
class PostgresDatabase:
    """A database of one test, and an independent reader of it."""

    server: PostgresServer
    dbname: str

    @property
    def conninfo(self) -> str:
        return self.server.conninfo(self.dbname)

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a session of its own, and return its rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def prepared(self) -> list[str]:
        """Return the names of all transactions that are prepared in this database."""
        rows = self.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        )
        return [gid for (gid,) in rows]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for the session."""
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-postgres-"))
    try:
        server = PostgresServer(folder)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database, on a server that runs with prepared transactions."""
    postgres_server.start()
    # One for all tests: each has three hundred files, which a killed server syncs when it starts.
    database = PostgresDatabase(postgres_server, "tests")
    with contextlib.suppress(psycopg.errors.DuplicateDatabase):
        PostgresDatabase(postgres_server, "postgres").execute("CREATE DATABASE tests")
    schemas = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$'"
    for (schema,) in database.execute(schemas):
        database.execute(f'DROP SCHEMA "{schema}" CASCADE')
    database.execute("CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")
    yield database
    postgres_server.start()
    database.execute(  # what a failed test left open would hold its locks
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for gid in database.prepared():
        database.execute(f"ROLLBACK PREPARED '{gid}'")


def _binary(name: str) -> str:
    found = sorted(BINARIES.glob(f"*/bin/{name}"))
    if not found:
        pytest.fail(
            f"PostgreSQL's {name} is not in {BINARIES}/*/bin: "
            "apt-get install --no-install-recommends postgresql"
        )
    return str(found[-1])
