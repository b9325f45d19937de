"""A minute of chaos with a fixed seed on one broker; the long runs are `make chaos`."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.runner import Options, run
from tests.chaos.schedule import Kind, Rhythm

KINDS = (
    Kind.WORKER_KILL,
    Kind.DRIVER_KILL,
    Kind.JVM_KILL,
    Kind.DRIVER_STOP,
    Kind.BROKER_KILL,
)
RHYTHM = Rhythm(first=2.0, storm=(2, 3), between=(2.0, 5.0), quiet=(4.0, 7.0), longest_stop=3.0)
SECONDS = 34.0


def test_x16_x23_a_minute_of_kills_and_stops_is_exactly_once(tmp_path: Path):
    lines: list[str] = []
    options = Options(
        seed=9,  # the first fault is the worker's: it needs a system that runs
        seconds=SECONDS,
        folder=tmp_path,
        brokers=1,
        kinds=KINDS,
        rhythm=RHYTHM,
        patience=90.0,
    )
    report = run(options, lines.append)
    story = "\n".join(lines)
    assert report.violations == [], story
    assert set(report.faults) == {kind.name for kind in KINDS}, story
    assert report.records_out == report.records_in > 1000, story
    assert report.recoveries >= 2, story
