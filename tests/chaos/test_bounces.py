"""Three brokers bounced all the time, under a pipeline that copies: K23."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runner import Options, run
from tests.chaos.schedule import Kind, Rhythm

KINDS = (Kind.BROKER_RESTART, Kind.COORDINATOR_KILL, Kind.BROKER_KILL)
#: One bounce after the other, and hardly a pause: a broker is back some four seconds later.
RHYTHM = Rhythm(first=1.0, storm=(3, 3), between=(4.0, 5.0), quiet=(4.0, 5.0))
SECONDS = 20.0


@pytest.mark.long
def test_k23_three_brokers_bounced_continuously_and_every_record_once(tmp_path: Path):
    """Input and output of two branches, RF 3 and min ISR 2; the auditor reads all the while."""
    lines: list[str] = []
    options = Options(
        seed=23,
        seconds=SECONDS,
        folder=tmp_path,
        brokers=3,
        kinds=KINDS,
        rate=300.0,
        rhythm=RHYTHM,
        patience=90.0,
    )
    report = run(options, lines.append)
    story = "\n".join(lines)
    assert report.violations == [], story
    assert sum(report.faults.values()) >= 4, story
    assert set(report.faults) == {kind.name for kind in KINDS}, story
    assert report.records_out == report.records_in > 3000, story
