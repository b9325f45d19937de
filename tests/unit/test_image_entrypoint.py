"""docker/app/entrypoint.sh: what Spark gives a container on Kubernetes, and what runs then."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "docker" / "app" / "entrypoint.sh"
#: As `BasicExecutorFeatureStep` of Spark 4.3 sets them.
EXECUTOR = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


@pytest.fixture
def started(tmp_path):
    """Return what the container's first process is given to start."""
    shown = tmp_path / "tini"
    shown.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    shown.chmod(0o755)

    def start(*args: str, **environment: str) -> list[str]:
        path = f"{tmp_path}:/usr/bin:/bin"
        command = ["bash", str(ENTRYPOINT), *args]
        environment = {"PATH": path, **environment}
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        first, second, *rest = said.stdout.splitlines()
        assert (first, second) == ("-s", "--")
        return rest

    return start


def test_an_executor(started):
    options = {f"SPARK_JAVA_OPT_{number}": f"-Done{number}=a b" for number in range(12)}
    command = started("executor", **EXECUTOR, **options)
    assert command[0] == "java"
    assert command[1:13] == list(options.values())
    assert command[13:17] == ["-Xms1024m", "-Xmx1024m", "-cp", "/opt/spark/conf:/opt/spark/jars/*"]
    assert command[17] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    said = command[18:]
    assert dict(zip(said[::2], said[1::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "flights-exec-3",
    }


def test_the_classes_of_the_user_come_before_those_of_spark(started):
    command = started(
        "executor", **EXECUTOR, SPARK_CLASSPATH="/opt/more/*", HADOOP_CONF_DIR="/etc/hadoop"
    )
    assert "/opt/spark/conf:/etc/hadoop:/opt/more/*:/opt/spark/jars/*" in command


def test_a_driver_of_cluster_mode(started):
    told = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///opt/job.py", "a b"]
    command = started(
        "driver", *told, SPARK_HOME="/opt/spark", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1"
    )
    assert command == [
        "/opt/spark/bin/spark-submit",
        *("--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.0.0.1"),
        *told,
    ]


def test_any_other_command(started):
    assert started("sparkonce", "run", "a b.toml") == ["sparkonce", "run", "a b.toml"]
