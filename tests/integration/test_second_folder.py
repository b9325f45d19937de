"""A checkpoint folder that was restored from a backup, as a stranger does it: cp -r, rm, mv."""

from __future__ import annotations

import shutil

import pytest

from tests.auditor.reader import read_committed
from tests.integration.job_process import running
from tests.integration.test_run import Job, job
from tests.tiers import long

__all__ = ["job"]  # the fixture


@long  # four starts of `sparkonce run`
@pytest.mark.timeout(600)
def test_a_backup_is_refused_until_duplicates_are_accepted(job: Job):
    path = job.write(app='trigger = "available-now"')
    folder, backup = job.folder / "state", job.folder / "backup"

    def run(*options: str) -> tuple[int, str]:
        with running(path, *options, BROKERS=job.bootstrap) as process:
            return process.wait(), process.text

    job.produce(100)
    code, said = run()
    assert code == 0, said
    shutil.copytree(folder, backup)
    job.produce(100)
    code, said = run()
    assert code == 0, said
    job.audit(job.output)

    shutil.rmtree(folder)
    backup.rename(folder)
    code, said = run()
    assert code == 2, said
    for part in (
        "The cluster has output of this application that the decision log does not know",
        "last in the log: checkpoint 0",
        f"checkpoint 1 in group {job.application_id}",
        "restored from a backup",
        "--accept-duplicates",
    ):
        assert part in said
    job.audit(job.output)  # nothing came twice, and nobody waits for an open transaction

    code, said = run("--accept-duplicates")
    assert code == 0, said
    assert "because duplicates are accepted" in said
    seen = sorted(record.value for record in read_committed(job.bootstrap, job.output))
    wanted = [f"RECORD {number}".encode() for number in range(200)]
    assert seen == sorted([*wanted, *wanted[100:]])
