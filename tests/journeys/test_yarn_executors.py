"""On YARN executors stop, die and move, and nodes are taken out of service, one after the other.

YARN and HDFS are real, and each server is a process of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from connectors.spark.spark_home import installed_home
from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import MICRO_BATCH, MODES, Stranger
from tests.journeys.test_spark_submit import submitted
from tests.journeys.test_yarn import (
    PATIENCE_S,
    PROGRAM,
    comes_to_end_of_input,
    command_of_page,
    finish,
    write_job,
)
from tests.tiers import long
from tests.yarn_cluster import YarnCluster

pytestmark = [long, pytest.mark.timeout(1500)]

#: A node has the memory of one container, so that each process of Spark has a node of its own.
ONE_CONTAINER_MB = 2000
SETTINGS = (
    "--driver-memory 700m --executor-memory 700m"
    " --conf 'spark.yarn.jars=local:{jars}/*'"
    " --conf spark.decommission.enabled=true"
    " --conf spark.speculation=true --conf spark.speculation.interval=200ms"
    " --conf spark.speculation.quantile=0.5 --conf spark.speculation.multiplier=2"
    " --conf spark.speculation.minTaskRuntime=2s"
    " --conf spark.executorEnv.SPARKONCE_CRASH_AT=offsets_sent"
    " --conf spark.executorEnv.SPARKONCE_CRASH_SIGNAL=STOP"
    " --conf spark.executorEnv.SPARKONCE_CRASH_WHEN={folder}/may-stop"
    " --conf spark.executorEnv.SPARKONCE_CRASH_ONCE={folder}/stopped"
)
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
NODES = 4


@MODES
def test_executors_and_nodes_go_away(stranger: Stranger, mode: str, tmp_path: Path):
    """A task stops with its transaction ready, then an executor dies; one node is drained, and the
    driver's node is closed at once. The driver itself starts only twice.
    """
    with (
        HdfsCluster(tmp_path / "hdfs") as hdfs,
        YarnCluster(
            tmp_path / "yarn", hdfs.address, nodes=NODES, node_memory_mb=ONE_CONTAINER_MB
        ) as yarn,
        stranger.busy_topic(),
        stranger.follows_output() as reader,
    ):
        write_job(stranger, mode)
        settings = SETTINGS.format(jars=installed_home() / "jars", folder=stranger.folder)
        command = command_of_page(settings, executors=2)
        with submitted(stranger.folder, command, yarn.environment()) as submit:
            assert submit.ends() == 0, submit.text
        (application,) = set(re.findall(r"application_\d+_\d+", submit.text))
        comes_to_end_of_input(stranger, reader)

        def until(true: Callable[[], object]) -> None:
            reader.until(lambda _: true(), timeout=PATIENCE_S)

        until(lambda: len(yarn.nodes_of(EXECUTOR)) == 2)
        (stranger.folder / "may-stop").touch()
        until(lambda: stopped_workers(yarn))
        (stopped,) = stopped_workers(yarn)
        if mode != MICRO_BATCH:  # Spark makes no copies of tasks that wait for each other
            executor_around(stopped).kill()
        comes_to_end_of_input(stranger, reader)

        until(lambda: len(yarn.nodes_of(EXECUTOR)) == 2)
        yarn.the_process(EXECUTOR, yarn.nodes_of(EXECUTOR)[0]).kill()
        comes_to_end_of_input(stranger, reader)
        until(lambda: len(yarn.nodes_of(EXECUTOR)) == 2)

        drained = yarn.nodes_of(EXECUTOR)[0]
        yarn.decommission(drained, graceful_s=20)
        until(lambda: not yarn.is_in_service(drained))
        comes_to_end_of_input(stranger, reader)
        assert drained not in yarn.nodes_of(EXECUTOR)
        assert yarn.attempts(application) == 1

        closed = yarn.node_of(PROGRAM)
        yarn.decommission(closed)
        until(lambda: yarn.attempts(application) == 2)
        comes_to_end_of_input(stranger, reader)
        assert not {closed, drained} & {yarn.node_of(PROGRAM), *yarn.nodes_of(EXECUTOR)}

        yarn.end(application)
        until(lambda: not yarn.processes(range(NODES)))
        finish(stranger, yarn, reader)
    stranger.assert_each_record_came_once()


def stopped_workers(yarn: YarnCluster) -> list[psutil.Process]:
    """Return the Python workers that have stopped themselves."""
    every = yarn.processes(range(NODES))
    return [one for one in every if one.info["status"] == psutil.STATUS_STOPPED]


def executor_around(worker: psutil.Process) -> psutil.Process:
    """Return the JVM that has started a Python worker."""
    (found,) = (one for one in worker.parents() if EXECUTOR in one.cmdline())
    return found
