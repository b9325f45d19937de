"""A minute of chaos with a fixed seed on one broker, in both modes; long runs are `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.options.table import CONTINUOUS, MICRO_BATCH
from tests.chaos.runner import Options, run
from tests.chaos.schedule import Kind, Rhythm

#: Mode -> seconds of faults, their rhythm, and which. A seed by which the first one is the
#: worker's: it needs a system that runs.
SEED = 9
STORMS = {
    MICRO_BATCH: (
        34.0,
        Rhythm(first=2.0, storm=(2, 3), between=(2.0, 5.0), quiet=(4.0, 7.0), longest_stop=3.0),
        (
            Kind.WORKER_KILL,
            Kind.DRIVER_KILL,
            Kind.JVM_KILL,
            Kind.DRIVER_STOP,
            Kind.BROKER_KILL,
        ),
    ),
    # A stage is back within seconds: one storm, each fault once; the second is of EndTxn.
    CONTINUOUS: (
        12.5,
        Rhythm(first=1.0, storm=(5, 5), between=(2.0, 3.0), quiet=(1.0, 1.0), longest_stop=2.0),
        (
            Kind.WORKER_KILL,
            Kind.REQUESTS,
            Kind.DRIVER_STOP,
            Kind.BROKER_KILL,
            Kind.JVM_KILL,
        ),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("mode", STORMS)
def test_x16_x23_a_minute_of_kills_and_stops_is_exactly_once(mode: str, tmp_path: Path):
    seconds, rhythm, kinds = STORMS[mode]
    lines: list[str] = []
    options = Options(
        seed=SEED,
        seconds=seconds,
        folder=tmp_path,
        brokers=1,
        mode=mode,
        kinds=kinds,
        rhythm=rhythm,
        patience=90.0,
    )
    report = run(options, lines.append)
    story = "\n".join(lines)
    assert report.violations == [], story
    assert set(report.faults) == {kind.name for kind in kinds}, story
    assert report.records_out == report.records_in > 1000, story
    assert report.recoveries >= 2, story
