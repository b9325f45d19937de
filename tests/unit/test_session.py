"""What a session is given by default, by the kind of its master."""

from __future__ import annotations

import sys

import pytest

from connectors.spark.barrier_stage import explained
from connectors.spark.session import (
    default_settings,
    late_settings,
    submitted_settings,
    worker_python,
)
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


YARN = {"spark.master": "yarn", "spark.submit.deployMode": "cluster"}
ZONE, UI = "spark.sql.session.timeZone", "spark.ui.enabled"


def test_the_pipeline_wins_over_spark_submit_and_that_over_our_defaults():
    given = {"spark.master": "local[2]", ZONE: "Europe/Rome", UI: "true"}
    found = submitted_settings("app", given, None, {UI: "false"}, {})
    assert (found["spark.master"], found[UI]) == ("local[2]", "false")
    assert ZONE not in found, "the JVM has it"
    assert submitted_settings("app", YARN, None, {}, {})[ZONE] == default_settings("yarn")[ZONE]


def test_a_master_of_the_pipeline_wins_over_that_of_spark_submit():
    """Spark-submit always has one: local[*] where the user gave none."""
    given = {"spark.master": "local[*]", "spark.submit.deployMode": "client"}
    assert submitted_settings("app", given, CLUSTER, {}, {})["spark.master"] == CLUSTER
    in_file = {"spark.master": CLUSTER}
    assert submitted_settings("app", given, None, in_file, {})["spark.master"] == CLUSTER


@pytest.mark.parametrize(
    "given", [YARN, {"spark.master": "k8s://x", "spark.kubernetes.submitInDriver": "true"}]
)
def test_a_driver_that_runs_in_a_cluster_has_no_other_master(given):
    assert submitted_settings("app", given, given["spark.master"], {}, {})
    with pytest.raises(ConfigurationError, match="leave it out") as refused:
        submitted_settings("app", given, "local[2]", {}, {})
    assert given["spark.master"] in refused.value.cause


def test_a_local_worker_finds_modules_beside_the_job_file():
    """The JVM that starts it was there before the job file was read."""
    path, name = {"PYTHONPATH": "/jobs"}, "spark.executorEnv.PYTHONPATH"
    assert submitted_settings("app", {}, "local[2]", {}, path)[name] == "/jobs"
    assert name not in submitted_settings("app", YARN, None, {}, path)


def test_settings_that_come_too_late_are_named():
    late = {"spark.driver.memory": "2g", "spark.jars.packages": "a:b:1"}
    assert late_settings({**late, "spark.executor.memory": "1g"}) == sorted(late)
    assert late_settings({}) == []


def test_the_sockets_of_a_container_have_a_short_path():
    assert default_settings("yarn")["spark.python.unix.domain.socket.dir"] == "/tmp"
    assert "spark.python.unix.domain.socket.dir" not in default_settings("local[2]")


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


@pytest.mark.parametrize("had_slots", [False, True])
def test_executors_that_come_and_go_are_refused(had_slots):
    """As Spark 4.3 says it (`DAGScheduler`); another try would fail in the same way."""
    failure = RuntimeError("[SPARK-24942]: Barrier execution mode does not support dynamic ...")
    error = explained(failure, 4, had_slots=had_slots)
    assert isinstance(error, ConfigurationError)
    assert error.permanent
    assert "spark.dynamicAllocation.enabled=true" in str(error)
