"""A stranger installs the package, without any extra, and runs a job file.

Every other test runs where all extras are installed: what only the plain package lacks, they do not
see. Most of the test's minute is pip's; CI runs the test as a step of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from connectors.machine.java import ensure_java_home
from tests.journeys.conftest import PATIENCE_S, ROOT, Stranger, started
from tests.tiers import long

#: One word differs from Spark's own source: no import of ours, no call of `register`. The file for
#: spark-submit is there, too.
BY_NAME = """
import sparkonce_run
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
rows = spark.read.format("kafka-exactly-once").option("kafka.bootstrap.servers", "{}")
print(rows.option("subscribe", "{}").load().count())
"""


@long
@pytest.mark.timeout(600)  # five steps, each with a limit of its own
def test_the_package_alone_runs_a_job(stranger: Stranger):
    made = stranger.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True, timeout=PATIENCE_S)
    install = [str(made / "bin/pip"), "install", "--quiet", "--no-compile", str(ROOT)]
    subprocess.run(install, check=True, timeout=PATIENCE_S)
    command = (str(made / "bin/sparkonce"), "run", str(stranger.job()))
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        started(*command, folder=stranger.folder, environment={}) as pipeline,
    ):
        stranger.more_comes_out(reader, pipeline)
        assert pipeline.sigterm() == 0, pipeline.text
    by_name = subprocess.run(
        [str(made / "bin/python"), "-c", BY_NAME.format(stranger.bootstrap, stranger.topic)],
        env=os.environ
        | {"JAVA_HOME": ensure_java_home(), "PYSPARK_PYTHON": str(made / "bin/python")},
        cwd=stranger.folder,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert int(by_name.stdout) > 0, by_name.stderr
