"""The two-phase matrix of both modes with the checkpoint in HDFS and in S3, by Hadoop's clients.

Each run has nothing of the one before but the address. On the wire to S3 requests and answers are
lost, and the store is too busy for a while, all the time.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from tests.faulty_store import Fault, FaultyStore
from tests.hdfs_cluster import HdfsCluster
from tests.integration import test_continuous, test_exactly_once
from tests.integration.pipeline_process import Pipeline
from tests.integration.test_continuous import Copy, copy  # noqa: F401
from tests.integration.test_exactly_once import DECIDED, RECORDS, pipeline  # noqa: F401
from tests.s3_store import BUCKET, hadoop_settings, variables
from tests.tiers import long

pytestmark = [long, pytest.mark.timeout(900)]


@dataclass
class Place:
    """Where checkpoints can lie, and how a process finds it.

    Attributes:
        address: of a folder that no other test has.
        environment: returns the variables of the next process. It shares no folder with those
            before.
        conf: of Spark, JSON.
    """

    address: str
    environment: Callable[[], dict[str, str]]
    conf: str = "{}"


@pytest.fixture(params=["hdfs", "s3"])
def place(request: pytest.FixtureRequest, application_id: str, tmp_path: Path) -> Iterator[Place]:
    machines = (tmp_path / f"machine-{number}" for number in itertools.count())
    store = request.getfixturevalue(request.param)
    if isinstance(store, HdfsCluster):
        yield Place(f"{store.address}/{application_id}", lambda: _on(next(machines)))
        return
    with FaultyStore(store.endpoint, shift=len(request.node.name)) as wire:
        conf = {f"spark.{name}": it for name, it in hadoop_settings(wire.endpoint).items()}
        yield Place(
            f"s3://{BUCKET}/{application_id}",
            lambda: variables(wire.endpoint) | _on(next(machines)),
            orjson.dumps(conf).decode(),
        )
        print(*wire.history, sep="\n")
    assert {*wire.met} == {*Fault}, wire.met
    assert {name.partition("/")[0] for name in store.keys(application_id)} >= {"decisions"}


def _on(machine: Path) -> dict[str, str]:
    found = {}
    for variable in ("TMPDIR", "SPARK_LOCAL_DIRS", "XDG_STATE_HOME"):
        (machine / variable).mkdir(parents=True)
        found[variable] = str(machine / variable)
    return found


@pytest.mark.parametrize(
    "crashes", test_exactly_once.STORIES.values(), ids=test_exactly_once.STORIES.keys()
)
def test_a_sigkill_at_each_step_without_and_with_state(
    pipeline: Pipeline, place: Place, crashes: list[str], request: pytest.FixtureRequest
):
    """One query copies, another one counts with state; both commit under one decision."""
    pipeline.checkpoint, pipeline.environment = place.address, place.environment
    by_worker = "worker" in request.node.callspec.id
    test_exactly_once.tell(pipeline, crashes, by_worker=by_worker, conf=place.conf)


@pytest.mark.parametrize(
    "crashes", test_continuous.STORIES.values(), ids=test_continuous.STORIES.keys()
)
def test_a_sigkill_at_each_step_of_continuous_mode(
    copy: Copy, place: Place, crashes: list[str], request: pytest.FixtureRequest
):
    copy.address, copy.environment = place.address, place.environment
    by_task = "_task_" in request.node.callspec.id
    test_continuous.tell(copy, crashes, by_task=by_task, conf=place.conf)
