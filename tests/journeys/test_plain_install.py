"""A stranger installs the package, without any extra, and runs a job file.

Every other test runs where all extras are installed: what only the plain package lacks, they do not
see.
"""

from __future__ import annotations

import subprocess
import sys

from tests.journeys.conftest import PATIENCE_S, ROOT, Stranger, started


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
