"""The two-phase matrix of both modes with the checkpoint in HDFS and in S3, by Hadoop's clients.

Each run has nothing of the one before but the address. On the wire to S3 requests and answers are
lost, and the store is too busy for a while, all the time.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.auditor.reader import Follower
from tests.faulty_store import Fault, FaultyStore
from tests.hdfs_cluster import HdfsCluster
from tests.integration import test_continuous, test_exactly_once
from tests.integration.pipeline_process import Pipeline
from tests.integration.test_continuous import Copy, copy  # noqa: F401
from tests.integration.test_exactly_once import DECIDED, RECORDS, pipeline  # noqa: F401
from tests.s3_store import BUCKET, S3Store, hadoop_settings, variables
from tests.tiers import long

pytestmark = [long, pytest.mark.timeout(900)]


@dataclass
class Place:
    """Where checkpoints can lie, and how a process finds it.

    Attributes:
        address: of a folder that no other test has.
        environment: variables of a process.
        settings: of Spark.
    """

    address: str
    environment: dict[str, str]
    settings: dict[str, str]

    def conf(self) -> str:
        return orjson.dumps(
            {f"spark.{name}": value for name, value in self.settings.items()}
        ).decode()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(params=["hdfs", "s3"])
def place(request: pytest.FixtureRequest, application_id: str) -> Iterator[Place]:
    store = request.getfixturevalue(request.param)
    if isinstance(store, HdfsCluster):
        yield Place(f"{store.address}/{application_id}", {}, {})
        return
    with FaultyStore(store.endpoint, shift=len(request.node.name)) as wire:
        address = f"s3://{BUCKET}/{application_id}"
        yield Place(address, variables(wire.endpoint), hadoop_settings(wire.endpoint))
        print(*wire.history, sep="\n")
    assert {*wire.met} == {*Fault}, wire.met
    assert {name.partition("/")[0] for name in store.keys(application_id)} >= {"decisions"}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield variables of a process that shares no folder with an earlier one, in turn."""
    return (_machine(tmp_path / f"machine-{number}") for number in itertools.count())


def _machine(folder: Path) -> dict[str, str]:
    found = {}
    for variable in ("TMPDIR", "SPARK_LOCAL_DIRS", "XDG_STATE_HOME"):
        (folder / variable).mkdir(parents=True)
        found[variable] = str(folder / variable)
    return found


@pytest.mark.parametrize(
    "crashes",
    test_exactly_once.STORIES.values(),
    ids=test_exactly_once.STORIES.keys(),
)
def test_a_sigkill_at_each_step_without_and_with_state(
    pipeline: Pipeline,
    place: Place,
    machines: Iterator[dict[str, str]],
    crashes: list[str],
    request: pytest.FixtureRequest,
):
    """One query copies, another one counts with state; both commit under one decision."""
    by_worker = "worker" in request.node.callspec.id
    pipeline.checkpoint = place.address
    replays = []
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        for crash_at in crashes:
            pipeline.environment = place.environment | next(machines)
            code, run = pipeline.run_once(crash_at=crash_at, conf=place.conf())
            assert code == (1 if by_worker else -signal.SIGKILL), run.text()
            replays += run.replays()
        pipeline.environment = place.environment | next(machines)
        code, run = pipeline.run_once(conf=place.conf())
        assert code == 0, run.text()
        replays += run.replays()
        assert len(replays) == sum(point.split("@")[0] in DECIDED for point in crashes)
        pipeline.audit(follower)


@pytest.mark.parametrize(
    "crashes",
    test_continuous.STORIES.values(),
    ids=test_continuous.STORIES.keys(),
)
def test_a_sigkill_at_each_step_of_continuous_mode(
    copy: Copy,
    place: Place,
    machines: Iterator[dict[str, str]],
    crashes: list[str],
    request: pytest.FixtureRequest,
):
    by_task = "_task_" in request.node.callspec.id
    copy.address = place.address
    with Follower(copy.bootstrap, copy.output) as follower:
        for crash_at in crashes:
            copy.environment = place.environment | next(machines)
            code, run = copy.run_until_killed(crash_at, conf=place.conf())
            assert code == (3 if by_task else -signal.SIGKILL), run.text()
        copy.environment = place.environment | next(machines)
        copy.run_to_the_end(follower, conf=place.conf())
        copy.audit(follower)
