"""Spark's daemon with its imports done: what its forks share, and what they must not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[2]
FORKS = """
import json, os, sys
from connectors.spark import worker_daemon
loaded = worker_daemon._load()
from connectors.kafka.sink import producer_pool
found = []
for _ in range(2):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, str(producer_pool._PROCESS).encode())
        os._exit(0)
    os.close(writing)
    found.append(os.read(reading, 100).decode())
print(json.dumps([loaded, [str(producer_pool._PROCESS), *found], sorted(sys.modules)]))
"""


def run(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start Python as Spark starts a daemon."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_forks_have_names_of_their_own():
    """Two workers with one name would write under the same transactional ids."""
    answer, _ = run("-c", FORKS).communicate(timeout=60)
    loaded, names, modules = json.loads(answer)
    assert loaded, "a fork would miss a thread"
    assert len(set(names)) == 3
    assert "connectors.spark.sink_stage" in modules
    # Its generator, unlike Python's own, would be the same one in every fork.
    assert "numpy.random" not in modules


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ({}, "connectors.spark.worker_daemon"),
        ({"OPENBLAS_NUM_THREADS": "2"}, "pyspark.daemon"),
        ({"JE_ARROW_MALLOC_CONF": "background_thread:true"}, "pyspark.daemon"),
    ],
)
def test_what_has_a_second_thread_is_sparks_own_daemon(environment, module):
    daemon = run("-m", "connectors.spark.worker_daemon", "pyspark.worker", **environment)
    assert daemon.stdout is not None
    assert int.from_bytes(daemon.stdout.read(4), "big") > 0, "no port to ask for workers"
    words = Path(f"/proc/{daemon.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    assert words[1:] == [b"-m", module.encode(), b"pyspark.worker"]
    daemon.communicate(timeout=60)  # it ends when Spark closes its stdin


#: A worker that answers one request, loading what the first one brings, as PySpark's do.
WORKER = """
import sys
def main(infile, outfile):
    asked = infile.read(1)
    if not asked:
        outfile.write(b"the end of the input, as an error")
        sys.exit(-1)
    if asked == b"s":
        import connectors.spark.data_source
    if asked == b"r":
        import connectors.spark.source_readers
    if asked == b"w":
        import connectors.spark.query_writer
    if asked == b"u":
        import connectors.spark.worker_warm_up
    outfile.write(asked)
    outfile.flush()
"""


@pytest.mark.parametrize(
    ("module", "loads", "says"),
    [
        ("connectors.spark.worker_daemon", b"", False),
        ("pyspark.daemon", b"", True),
        ("pyspark.daemon", b"-", True),
        ("pyspark.daemon", b"s", False),
        ("pyspark.daemon", b"r", False),
        ("pyspark.daemon", b"w", False),
        ("pyspark.daemon", b"u", False),
    ],
)
def test_b13_a_worker_that_spark_closes_says_nothing(module: str, loads: bytes, says: bool):
    """Spark closes workers that were idle for a minute. Its own daemon prints a traceback, unless
    the worker has loaded one of our sources or writers.
    """
    place = tempfile.mkdtemp(dir="/tmp")  # the address of a socket may have 107 bytes
    Path(place, "pyspark_of_this_test.py").write_text(WORKER)
    daemon = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark_of_this_test" if loads else "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), place]),
            "SPARK_REUSE_WORKER": "1",
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": place,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark sets it by default
        },
    )
    assert daemon.stdout is not None
    length = int.from_bytes(daemon.stdout.read(4), "big")
    address = daemon.stdout.read(length).decode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        worker = int.from_bytes(connection.recv(4), "big")
        if loads:
            connection.sendall(loads)
            assert connection.recv(1) == loads
    until(lambda: not Path(f"/proc/{worker}").exists())
    _, said = daemon.communicate(timeout=60)
    shutil.rmtree(place)
    assert ("Traceback" in said.decode()) == says, said.decode()
