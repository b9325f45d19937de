"""The machine is gone with its disk; another one has the job file and the checkpoint's address.

The job files are the page's. SIGKILL at whatever moment it is; then another start with another
working folder, another home and an empty disk, and a stop in order.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import SPARKONCE, Stranger, started
from tests.pages import block, replaced
from tests.s3_store import BUCKET, KEY_ID, SECRET, S3Store, hadoop_settings
from tests.tiers import long

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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3")) as started:
        yield started


#: The page's pipeline in micro-batches keeps state; the other one keeps none.
BATCHES = block("docs/checkpoint_address.md", 'id = "words"')
WITHOUT_STATE = {"SELECT DISTINCT key": "SELECT key"}


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


#: The first page's job names one; Hadoop's client finds the others, as the second page says.
SECRETS = {"S3_SECRET": SECRET, "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}


def job_in_s3(kind: str, stranger: Stranger, store: S3Store) -> str:
    """Return the page's job, its checkpoint below the application's id in the bucket.

    Args:
        kind: ``continuous``, ``batches``, or ``state``.
        stranger: whose topics it reads and writes.
        store: what has the checkpoint.
    """
    region = 'store.region = "eu-west-1"'
    here = {
        "s3://state": f"s3://{BUCKET}",
        "localhost:9092": stranger.bootstrap,
        'subscribe = "said"': f'subscribe = "{stranger.topic}"',
        region: f'{region}\nstore.endpoint = "{store.endpoint}"',
    }
    if kind == "continuous":
        job = replaced(PAGE, here | {'"pipelines"': f'"{KEY_ID}"', '"repeated"': '"words"'})
    else:
        lines = (f'"{name}" = "{it}"' for name, it in hadoop_settings(store.endpoint).items())
        here |= {
            'jars.packages = "org.apache.hadoop:hadoop-aws:3.5.0"': "\n".join(lines),
            'hadoop.fs.s3a.endpoint.region = "eu-west-1"\n': "",
        }
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
def test_only_the_address_travels(kind: str, stranger: Stranger, store: S3Store, tmp_path: Path):
    """The store is killed, too, while the pipeline runs on the second machine."""

    def store_dies() -> None:
        store.kill()
        store.start()

    job = job_in_s3(kind, stranger, store)
    one_machine_after_the_other(stranger, job, tmp_path, SECRETS, store_dies)
    parts = {key.partition("/")[0] for key in store.keys(stranger.app)}
    assert parts == {"decisions", "log-id", *(["spark"] if kind != "continuous" else [])}


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
