"""A company runs its pipelines on YARN: a driver moves, and nothing but its job file and the
checkpoint's address goes with it.

YARN and HDFS are real, and each server is a process of this machine.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from connectors.spark.spark_home import installed_home
from connectors.testing.auditor.reader import Follower
from tests.hdfs_cluster import HdfsCluster
from tests.journeys.conftest import CLEAN, CONTINUOUS, MODES, Stranger
from tests.journeys.test_spark_submit import submitted
from tests.pages import block, commands, replaced
from tests.tiers import long
from tests.yarn_cluster import YarnCluster

pytestmark = [long, pytest.mark.timeout(1500)]

#: The company's settings: small, since all of it is on one machine, and where Spark's jars lie.
SMALL = (
    "--driver-memory 700m --executor-memory 700m"
    " --conf 'spark.yarn.jars=local:{jars}/*'"
    " --conf spark.yarn.appMasterEnv.SPARKONCE_CRASH_AT=decision_durable"
    " --conf spark.yarn.appMasterEnv.SPARKONCE_CRASH_WHEN={folder}/may-crash"
    " --conf spark.yarn.appMasterEnv.SPARKONCE_CRASH_ONCE={folder}/crashed"
)
PROGRAM = "sparkonce_run.py"
APPLICATION_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
#: The driver starts three times on two cores, beside the servers of YARN, HDFS and Kafka.
PATIENCE_S = 300.0


@MODES
def test_the_driver_moves(stranger: Stranger, mode: str, tmp_path: Path):
    """Its program is killed between decision and commit; its node is lost, with its disk; the
    next one asks it to end.
    """
    with (
        HdfsCluster(tmp_path / "hdfs") as hdfs,
        YarnCluster(tmp_path / "yarn", hdfs.address) as yarn,
        stranger.busy_topic(),
        stranger.follows_output() as reader,
    ):
        write_job(stranger, mode)
        settings = SMALL.format(jars=installed_home() / "jars", folder=stranger.folder)
        command = command_of_page(settings, executors=1)
        with submitted(stranger.folder, command, yarn.environment()) as submit:
            assert submit.ends() == 0, submit.text
        (application,) = set(re.findall(r"application_\d+_\d+", submit.text))
        comes_to_end_of_input(stranger, reader)
        (stranger.folder / "may-crash").touch()
        reader.until(lambda _: (stranger.folder / "crashed").exists(), timeout=PATIENCE_S)
        comes_to_end_of_input(stranger, reader)
        assert yarn.attempts(application) == 2
        first = yarn.node_of(PROGRAM)
        yarn.lose_node(first)
        comes_to_end_of_input(stranger, reader)
        assert yarn.attempts(application) == 3
        assert yarn.node_of(PROGRAM) != first
        yarn.ask_to_end(APPLICATION_MASTER)
        reader.until(lambda _: yarn.attempts(application) == 4, timeout=PATIENCE_S)
        comes_to_end_of_input(stranger, reader)
        yarn.end(application)
        reader.until(lambda _: not yarn.processes(range(2)), timeout=PATIENCE_S)
        finish(stranger, yarn, reader)
    stranger.assert_each_record_came_once()


def write_job(stranger: Stranger, mode: str) -> None:
    """Write the job file, with a checkpoint in HDFS as on the page, and a module of its own."""
    tasks = "parallelism = 2" if mode == CONTINUOUS else ""
    job = stranger.job(mode, app=tasks, source='startingOffsets = "earliest"')
    address = block("docs/spark_submit.md", 'checkpoint = "hdfs:///').splitlines()[2]
    text = replaced(job.read_text(), {'checkpoint = "checkpoint"': address})
    job.write_text(text + '[transform]\narrow = "my_module:clean"\n')
    (stranger.folder / "my_module.py").write_text(CLEAN)


def command_of_page(settings: str, *, executors: int) -> str:
    """Return the command of the page, with the settings of a company behind its first word."""
    (command,) = commands(
        block("docs/spark_submit.md", "--deploy-mode cluster").replace("\\\n", "")
    )
    return replaced(
        command,
        {
            "spark-submit": f"spark-submit {settings}",
            "/opt/pipeline/bin/python": sys.executable,
            "--num-executors 2": f"--num-executors {executors}",
        },
    )


def finish(stranger: Stranger, yarn: YarnCluster, reader: Follower) -> None:
    """Go on without YARN; a stop in order leaves no transaction open."""
    conf = yarn.environment()["HADOOP_CONF_DIR"]
    with stranger.runs(stranger.folder / "job.toml", HADOOP_CONF_DIR=conf) as run:
        stranger.comes_to(stranger.input_ends(), reader, run)
        assert run.sigterm() == 0, run.text


def comes_to_end_of_input(stranger: Stranger, reader: Follower) -> None:
    """Wait until a read_committed reader has seen what is written now."""
    last = {f"{number}-{end - 1}".encode() for number, end in stranger.input_ends().items()}
    reader.until(lambda seen: last <= {one.value for one in seen}, timeout=PATIENCE_S)
