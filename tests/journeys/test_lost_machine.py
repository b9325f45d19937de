"""The machine is gone with its disk; another one has the job file and the checkpoint's address.

The job files are the page's. SIGKILL at whatever moment it is; then another start with another
working folder, another home and an empty disk, and a stop in order.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import SPARKONCE, Stranger, started
from tests.pages import block, replaced
from tests.tiers import long
from tests.unit.s3_server import BUCKET, KEY_ID, S3Server

PAGE = block("docs/checkpoint_address.md", "store.secret_access_key")
#: Java, Kafka's and Spark's jars are part of the machine's installation, not of a pipeline.
INSTALLED = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


@dataclasses.dataclass
class Machine:
    """A machine with a disk of its own, on which nothing has ever run."""

    disk: Path
    secrets: dict[str, str]

    def runs(self, job: str, *words: str):
        return self.types("run", job, *words)

    def types(self, command: str, job: str, *words: str, with_stdout: bool = False):
        work, home, scratch = (self.disk / name for name in ("work", "home", "tmp"))
        for folder in (work, home, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        (work / "job.toml").write_text(job)
        environment = {
            **self.secrets,
            "HOME": str(home),
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            "XDG_CACHE_HOME": INSTALLED,
            "XDG_STATE_HOME": str(home / "state"),
        }
        line = (SPARKONCE, *command.split(), "job.toml", *words)
        return started(*line, folder=work, environment=environment, with_stdout=with_stdout)

    def files(self) -> set[str]:
        """Return the files that the pipeline has left, without Spark's scratch space."""
        return {
            path.relative_to(self.disk).as_posix()
            for path in self.disk.rglob("*")
            if path.is_file() and path.relative_to(self.disk).parts[0] != "tmp"
        }

    def is_lost(self) -> None:
        shutil.rmtree(self.disk)


@pytest.fixture
def store():
    with S3Server() as server:
        yield server


#: The page's pipeline in micro-batches keeps state; the other one keeps none.
BATCHES = block("docs/checkpoint_address.md", "jars.packages")
WITHOUT_STATE = {"SELECT DISTINCT key": "SELECT key"}
#: It stands for Hadoop's client of a store, which PySpark does not ship: it serves an address of
#: ``s3a://`` from a folder that both machines see.
HADOOP = """\
"hadoop.fs.s3a.impl" = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
"hadoop.fs.viewfs.mounttable.{bucket}.link./{app}" = "file://{folder}"
"sql.streaming.checkpointFileManagerClass" = "{package}.FileSystemBasedCheckpointFileManager" """
PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"


def one_machine_after_the_other(
    stranger: Stranger,
    job: str,
    disks: Path,
    environment: dict[str, str],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run a job on a machine that is lost, then on another one, where something happens."""
    first, second = (Machine(disks / name, environment) for name in ("first", "second"))
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with first.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline, records=300)
            pipeline.kill_all()
        assert first.files() == {"work/job.toml"}
        first.is_lost()
        written = stranger.input_ends()
        with second.runs(job) as pipeline:
            stranger.comes_to(written, reader, pipeline)
            meanwhile()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        assert second.files() == {"work/job.toml"}
    stranger.assert_each_record_came_once()


SECRETS = {"S3_SECRET": "secret"}


def job_in_s3(kind: str, stranger: Stranger, store: S3Server, spark: Path) -> str:
    """Return the page's job, its checkpoint below the application's id in the bucket.

    Args:
        kind: ``continuous``, ``batches``, or ``state``.
        stranger: whose topics it reads and writes.
        store: what has our own part of the checkpoint.
        spark: the folder that has what Spark writes.
    """
    here = {
        "s3://state": f"s3://{BUCKET}",
        "localhost:9092": stranger.bootstrap,
        'subscribe = "said"': f'subscribe = "{stranger.topic}"',
        'store.region = "eu-west-1"': f'store.endpoint = "{store.endpoint}"',
    }
    if kind == "continuous":
        job = replaced(PAGE, here | {'"pipelines"': f'"{KEY_ID}"', '"repeated"': '"words"'})
    else:
        client = HADOOP.format(bucket=BUCKET, app=stranger.app, folder=spark, package=PACKAGE)
        secret = 'store.secret_access_key = "${S3_SECRET}"'
        here |= {"store.endpoint": f'store.access_key_id = "{KEY_ID}"\n{secret}\nstore.endpoint'}
        here |= {'jars.packages = "org.apache.hadoop:hadoop-aws:3.5.0"': client}
        job = replaced(BATCHES, here | (WITHOUT_STATE if kind == "batches" else {}))
    name = "clean" if kind == "continuous" else "words"
    return replaced(
        job,
        {
            f'id = "{name}"\n': f'id = "{stranger.app}"\n',
            f"{BUCKET}/{name}": f"{BUCKET}/{stranger.app}",
            'topic = "words"': f'topic = "{stranger.output}"',
        },
    )


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["continuous", "batches", "state"])
def test_only_the_address_travels(kind: str, stranger: Stranger, store: S3Server, tmp_path: Path):
    spark = tmp_path / "served-by-hadoop"
    spark.mkdir()
    job = job_in_s3(kind, stranger, store, spark)
    one_machine_after_the_other(stranger, job, tmp_path, SECRETS)
    served = [path.name for path in spark.iterdir()]
    assert served == ([] if kind == "continuous" else ["spark"])
    assert {key.removeprefix(f"{stranger.app}/").partition("/")[0] for key in store.objects} == {
        "decisions",
        "log-id",
    }


IN_HDFS = block("docs/checkpoint_address.md", "hdfs://namenode:8020/")
WITH_STATE = '[transform]\nsql = "SELECT DISTINCT key, value FROM source"\n'


def job_in_hdfs(kind: str, stranger: Stranger, hdfs: HdfsCluster) -> str:
    """Return the page's job for HDFS; see `job_in_s3`."""
    here = {
        "hdfs://namenode:8020": hdfs.address,
        "localhost:9092": stranger.bootstrap,
        'subscribe = "said"': f'subscribe = "{stranger.topic}"',
        'id = "unique"\n': f'id = "{stranger.app}"\n',
        'topic = "unique"': f'topic = "{stranger.output}"',
    }
    if kind == "continuous":
        here |= {WITH_STATE: "", "[source]": 'mode = "continuous"\n\n[source]'}
    elif kind == "batches":
        here |= {"SELECT DISTINCT key": "SELECT key"}
    return replaced(IN_HDFS, here)


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["continuous", "batches", "state"])
def test_only_the_address_in_hdfs_travels(kind: str, stranger: Stranger, tmp_path: Path):
    """The name node is killed, too, while the pipeline runs on the second machine."""
    with HdfsCluster(tmp_path / "hdfs") as hdfs:

        def name_node_dies() -> None:
            hdfs.kill("name")
            hdfs.start_name_node()
            hdfs.await_ready()

        job = job_in_hdfs(kind, stranger, hdfs)
        one_machine_after_the_other(stranger, job, tmp_path, {}, name_node_dies)
