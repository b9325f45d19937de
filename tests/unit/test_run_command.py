"""`sparkonce run --check`: what the real command would refuse, it refuses too, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from connectors.cli.run import command
from tests.unit.test_job import text


@pytest.mark.parametrize("address", ["dbfs:/log", "s3:/bucket/log", "file://elsewhere/log"])
def test_check_refuses_an_address_of_the_log_that_cannot_be_used(tmp_path: Path, address: str):
    assert address in refused(tmp_path, text(more=f'[decision_log]\naddress = "{address}"'))


def refused(folder: Path, content: str) -> str:
    """Check a job file; return the error."""
    job = folder / "job.toml"
    job.write_text(content)
    done = CliRunner().invoke(command, [str(job), "--check"])
    assert done.exit_code == 2, done.output
    assert "look at:" in done.output
    return done.output
