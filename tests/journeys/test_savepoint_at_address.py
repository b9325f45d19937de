"""A pipeline moves to another address by a savepoint in the store. No machine's disk is needed:
neither the first driver's, nor that of the person who takes the savepoint, nor the next driver's.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import Stranger
from tests.journeys.test_lost_machine import (  # noqa: F401 - one is a fixture
    SECRETS,
    Machine,
    job_in_hdfs,
    job_in_s3,
    store,
)
from tests.pages import block, commands
from tests.s3_store import S3Store
from tests.tiers import long

#: The page's commands, without the job files' names.
TAKE, RUN = (
    line.split() for line in commands(block("docs/savepoints.md", "s3://state/savepoints"))
)
STORE, MADE = "s3://state", RUN[-1]


def moved(job: str, stranger: Stranger, disks: Path, environment: dict[str, str]) -> None:
    """Take a savepoint with a stop, then go on elsewhere; the first start there is killed."""
    (address,) = re.findall(r'(?m)^checkpoint = "(.*?)"', job)
    first, desk, second, third = (
        Machine(disks / name, environment) for name in ("first", "desk", "second", "third")
    )
    new = job.replace(f'"{address}"', f'"{address}/new"')
    job = job.replace(f'"{address}"', f'"{address}/old"')
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with first.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline, records=300)
            words = [word.replace(STORE, address) for word in TAKE[4:]]
            with desk.types("savepoint take", job, *words, with_stdout=True) as command:
                assert command.ends() == 0, command.text
            assert pipeline.ends() == 0, pipeline.text
        made = command.text.strip().splitlines()[-1]
        assert re.fullmatch(rf"{address}/savepoints/{stranger.app}-\d+-[0-9a-f]{{8}}", made)
        for machine in (first, desk):
            assert machine.files() == {"work/job.toml"}
            machine.is_lost()
        words = [word.replace(MADE, made) for word in RUN[3:]]
        with second.runs(new, *words) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            pipeline.kill_all()
        second.is_lost()
        with third.runs(new, *words) as pipeline:
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        assert third.files() == {"work/job.toml"}
    stranger.assert_each_record_came_once()


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["continuous", "state"])
def test_a_pipeline_moves_within_an_object_store(
    kind: str, stranger: Stranger, store: S3Store, tmp_path: Path
):
    moved(job_in_s3(kind, stranger, store), stranger, tmp_path, SECRETS)


@long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["continuous", "state"])
def test_a_pipeline_moves_within_hdfs(kind: str, stranger: Stranger, tmp_path: Path):
    with HdfsCluster(tmp_path / "hdfs") as hdfs:
        moved(job_in_hdfs(kind, stranger, hdfs), stranger, tmp_path, {})
