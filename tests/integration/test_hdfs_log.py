"""The decision log in HDFS: real name and data nodes, killed by real signals.

What the log holds at the end is read by Hadoop's own shell.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.checkpoint_files import fit_offsets
from connectors.spark.hadoop_copier import HadoopCopier
from connectors.spark.hadoop_files import HadoopFiles
from connectors.spark.hdfs_backend import HdfsBackend
from connectors.spark.session import prepare_session
from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import SPARKONCE
from tests.tiers import long
from tests.unit.killed_drivers import FLOOR, Driver, decisions_of, whole_entries
from tests.unit.log_writer import FENCED, UNWRITTEN
from tests.unit.test_log_backend import contract_of_a_backend
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import ConfigurationError, SparkOnceError


@pytest.fixture
def url(hdfs: HdfsCluster) -> str:
    return f"{hdfs.address}/{uuid.uuid4().hex}/decisions"


def test_the_contract_of_every_backend(hdfs: HdfsCluster):
    for test in contract_of_a_backend():
        place = f"{hdfs.address}/{test.__name__}"
        test(lambda place=place: HdfsBackend(place, {}))


def stored_in(hdfs: HdfsCluster, url: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a log, by name; Hadoop's shell has copied them."""
    hdfs.shell("-get", url, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_acted_on_is_followed_by_a_change(hdfs: HdfsCluster, url: str, monkeypatch):
    """A name node shows a rename, and repeats its answer, before its edit log is synced."""
    backend = HdfsBackend(url, {})
    backend.put_if_absent("1", b"one")
    made = []
    real = HdfsBackend._make_durable

    def make_durable(self: HdfsBackend) -> None:
        before = hdfs.last_edit()
        real(self)
        made.append(hdfs.last_edit() - before)

    monkeypatch.setattr(HdfsBackend, "_make_durable", make_durable)
    for call, changes in (
        (lambda: backend.put_if_absent("2", b"two"), [1]),
        (lambda: backend.put_if_absent("1", b"two"), [1]),
        (backend.list, [1]),
        (lambda: backend.list(durable=False), []),
        (lambda: backend.get("1"), []),
    ):
        made.clear()
        call()
        assert made == changes


@long
def test_the_contract_where_pyspark_makes_errors_of_its_own(spark: SparkSession, hdfs: HdfsCluster):
    """A process with a session uses its JVM, and PySpark changes what py4j raises."""
    for test in contract_of_a_backend():
        place = f"{hdfs.address}/session/{test.__name__}"
        test(lambda place=place: HdfsBackend(place, {}))
    with pytest.raises(OSError, match="UnknownHostException"):
        HdfsBackend("hdfs://nobody.invalid:8020/app", {"retry_s": "1"}).list()
    with pytest.raises(ConfigurationError, match="ipc"):
        HdfsBackend(f"{hdfs.address}/app", {"dfs.client.socket-timeout": "ipc"}).list()


@pytest.mark.parametrize("taken", [False, True])
def test_a_name_that_went_with_its_name_node_is_not_believed(
    hdfs: HdfsCluster, url: str, taken: bool, monkeypatch
):
    """Another name node acknowledges the change; it never had the rename."""
    backend, other = HdfsBackend(url, {}), HdfsBackend(url, {})
    if taken:
        backend.put_if_absent("1", b"lost")
    real = HdfsBackend._make_durable
    lost = []

    def make_durable(self: HdfsBackend) -> None:
        real(self)
        if self is backend and not lost:
            lost.append(other.delete("1"))

    monkeypatch.setattr(HdfsBackend, "_make_durable", make_durable)
    assert backend.put_if_absent("1", b"one")
    assert other.get("1") == b"one"
    lost.clear()
    assert backend.list() == []


def test_a_name_that_another_has_taken_after_a_failover_is_not_ours(
    hdfs: HdfsCluster, url: str, monkeypatch
):
    backend, other = HdfsBackend(url, {}), HdfsBackend(url, {})
    real = HdfsBackend._make_durable

    def make_durable(self: HdfsBackend) -> None:
        real(self)
        if self is backend:
            other.delete("1")
            assert other.put_if_absent("1", b"the heir's")

    monkeypatch.setattr(HdfsBackend, "_make_durable", make_durable)
    assert backend.put_if_absent("1", b"ours") is False
    assert backend.get("1") == b"the heir's"


@long
@pytest.mark.timeout(900)
def test_drivers_and_name_nodes_killed_at_random_moments_leave_a_dense_log(
    hdfs: HdfsCluster, url: str, tmp_path: Path
):
    """Half of the drivers are killed, half are fenced by the next one, which starts beside them."""
    chance = random.Random(7)
    drivers: list[Driver] = []
    for number in range(8):
        drivers.append(Driver(url, {}))
        drivers[-1].wait_for_its_fence()
        if number and number % 2 == 0:
            # It was alive when this one came, unless the name node took too long for it.
            assert drivers[-2].wait() in {FENCED, UNWRITTEN}
        until = Deadline(chance.uniform(0.0, 1.0))
        until.pause(until.remaining())
        hdfs.kill("name")
        if number % 2 == 0:
            drivers[-1].kill()
        hdfs.start_name_node()
        hdfs.await_ready()
    drivers[-1].kill()
    backend = HdfsBackend(url, {})
    DecisionLog.open(backend, application_id="app", identity={"sinks": "out"})

    stored = stored_in(hdfs, url, tmp_path / "log")
    floor = max(
        (int(one.removeprefix(FLOOR)) for one in stored if one.startswith(FLOOR)), default=1
    )
    there = [(name, data) for name, data in stored.items() if name.isdecimal()]
    entries = whole_entries(
        [(name, data) for name, data in sorted(there) if int(name) >= floor], floor
    )
    state = read_log(backend)
    assert state.tail == entries[-1]["sequence"]
    assert state.decision is not None
    last = state.decision.checkpoint_id
    numbers = decisions_of(entries)
    assert numbers == list(range(last + 1 - len(numbers), last + 1))
    said = set().union(*(one.decided() for one in drivers))
    assert len(said) > len(drivers)
    assert max(said) <= last
    fences = [one for one in entries if one["kind"] == "fence"]
    assert floor > 1 or len(fences) == len(drivers) + 1


@long
def test_a_data_node_that_is_killed_takes_no_entry_with_it(tmp_path: Path):
    with HdfsCluster(tmp_path / "hdfs", data_nodes=3) as hdfs:
        backend = HdfsBackend(f"{hdfs.address}/app/decisions", {})
        for number in range(20):
            if number == 10:
                hdfs.kill("data-1")
            assert backend.put_if_absent(f"{number}", b"%d" % number)
        assert [backend.get(f"{number}") for number in range(20)] == [b"%d" % n for n in range(20)]
        hdfs.kill("name")
        hdfs.start_name_node()
        assert backend.put_if_absent("20", b"20")  # it waits for the name node
        assert len(backend.list()) == 21


# --- a person's first look ------------------------------------------------------------------------


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPARKONCE, "doctor", *arguments],
        env={**os.environ, "COLUMNS": "400", **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_file_of_sparks_that_a_kill_left_half_replaced_is_found(
    hdfs: HdfsCluster, spark: SparkSession
):
    """In an object store Hadoop deletes the old file before it copies the new one to its name."""
    place = CheckpointLocation(f"{hdfs.address}/{uuid.uuid4().hex}")
    files, there = HadoopFiles(spark, place), f"{place.address}/spark/offsets"
    aside = f"{place.address}/spark/replacing/offsets"
    prepare_session(spark, local_checkpoint=False)  # this session has had folders, too
    for text in ("old", "new"):
        files.replace("offsets/7", text)
        assert files.read("offsets/7") == text
        assert hdfs.shell("-cat", f"{there}/7") == text
    assert hdfs.shell("-ls", "-C", aside) == ""
    hdfs.shell("-mkdir", "-p", aside)
    hdfs.shell("-mv", f"{there}/7", aside)
    assert files.read("offsets/7") == "new"
    assert hdfs.shell("-cat", f"{there}/7") == "new", "who reads next is Spark"
    assert hdfs.shell("-ls", "-C", aside) == ""
    fitted = "v1\n{}\n{}\n{}"  # a start that fits offsets was killed: the text fits already
    files.replace("offsets/7", fitted)
    hdfs.shell("-mv", f"{there}/7", aside)
    fit_offsets(files, 7, 2)
    assert hdfs.shell("-cat", f"{there}/7") == fitted
    files.replace("offsets/7", "newer")
    assert hdfs.shell("-cat", f"{there}/7") == "newer"
    prepare_session(spark, local_checkpoint=True)
    try:  # its manager says nothing of a rename that HDFS refuses
        with pytest.raises(SparkOnceError, match="has another text"):
            HadoopFiles(spark, place).replace("offsets/7", "newest")
    finally:
        prepare_session(spark, local_checkpoint=False)
    assert hdfs.shell("-cat", f"{there}/7") == "newer"


def test_a_savepoint_can_name_no_name_node(hdfs: HdfsCluster, spark: SparkSession, tmp_path: Path):
    """``hdfs:///folder`` is in the default file system, whichever that is."""
    content = os.urandom(1000)
    (tmp_path / "file").write_bytes(content)
    folder = f"hdfs:///{uuid.uuid4().hex}"
    spark.conf.set("fs.defaultFS", hdfs.address)
    try:
        copier = HadoopCopier(spark)
        made = [
            copier.copy(str(tmp_path / "file"), f"{folder}/one"),
            copier.copy(f"{folder}/one", f"{folder}/below/two"),
            copier.copy(f"{folder}/below/two", str(tmp_path / "back")),
        ]
        copier.remove(f"{folder}/below")
    finally:
        spark.conf.unset("fs.defaultFS")
    assert len(set(made)) == 1
    assert (tmp_path / "back").read_bytes() == content
    assert hdfs.shell("-ls", "-C", f"{hdfs.address}/{folder.rpartition('/')[2]}").split() == [
        f"{hdfs.address}/{folder.rpartition('/')[2]}/one"
    ]


@long
def test_doctor_tries_what_a_log_needs_and_leaves_nothing(hdfs: HdfsCluster):
    conf = str(hdfs.conf_folder())
    seen = doctor("--checkpoint", "hdfs:///tried/app", HADOOP_CONF_DIR=conf)
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "raced for 20 names" in seen.stdout
    assert "doctor" not in hdfs.shell("-ls", "-R", "/tried")


@long
def test_who_may_not_write_is_told_the_right_that_is_missing(hdfs: HdfsCluster):
    hdfs.shell("-mkdir", "-p", "/closed")
    hdfs.shell("-chmod", "755", "/closed")
    seen = doctor("--checkpoint", f"{hdfs.address}/closed/app", HADOOP_USER_NAME="nobody")
    assert seen.returncode != 0
    assert "Permission denied: user=nobody" in seen.stdout
    assert "access=WRITE" in seen.stdout
    assert "HADOOP_USER_NAME" in seen.stdout


@long
def test_a_name_node_that_is_away_is_told(hdfs: HdfsCluster):
    backend, began = HdfsBackend("hdfs://127.0.0.1:1/app", {"retry_s": "10"}), time.monotonic()
    with pytest.raises(OSError, match="HDFS does not answer") as caught:
        backend.list()
    assert 10 <= time.monotonic() - began < 15
    assert isinstance(caught.value, SparkOnceError)
    assert caught.value.where == "hdfs://127.0.0.1:1/app/"


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("hdfs://name", {}, "an address has a folder"),
        ("hdfs:/app", {}, "an address has a folder"),
        ("hdfs://a:secret@name/app", {}, "credentials"),
        ("hdfs://name/app", {"timeout_s": "soon"}, "timeout_s is a number of seconds"),
        ("hdfs://name/app", {"region": "eu"}, "no such property"),
    ],
)
def test_bad_addresses_are_refused_before_anything_is_sent(address, options, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        HdfsBackend(address, options)
    assert "secret" not in str(caught.value)
