"""What a session is given by default, by the kind of its master."""

from __future__ import annotations

import sys

import pytest

from connectors.spark.barrier_stage import explained
from connectors.spark.session import default_settings, worker_python
from transactions.errors import ConfigurationError, PhaseOneError

CLUSTER = "spark://host:7077"


def test_only_a_local_driver_hides_on_the_loopback_interface():
    assert default_settings("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert default_settings("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & set(default_settings(CLUSTER))


@pytest.mark.parametrize(
    ("master", "environment", "expected"),
    [
        ("local[2]", {"PYSPARK_PYTHON": "/other/python"}, sys.executable),
        (CLUSTER, {}, sys.executable),
        (CLUSTER, {"PYSPARK_PYTHON": "/other/python"}, "/other/python"),
    ],
)
def test_a_cluster_may_keep_its_python_elsewhere(master, environment, expected):
    assert worker_python(master, environment) == expected


def test_a_cluster_gets_the_time_to_bring_its_executors():
    name = "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures"
    assert default_settings("local[2]")[name] == "1"
    assert int(default_settings(CLUSTER)[name]) >= 10


@pytest.mark.parametrize(
    ("had_slots", "kind"), [(False, ConfigurationError), (True, PhaseOneError)]
)
def test_slots_that_a_stage_once_had_may_come_back(had_slots, kind):
    """A wrong option ends the pipeline; an executor that died is the restart strategy's case."""
    failure = RuntimeError("[SPARK-24819]: Barrier execution mode ... requires more slots than")
    error = explained(failure, 4, had_slots=had_slots)
    assert type(error) is kind
    assert error.permanent is not had_slots
    for part in ("too few slots", "4 tasks", "parallelism=4"):
        assert part in str(error)
