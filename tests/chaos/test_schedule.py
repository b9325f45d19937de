"""A seed is a schedule: the same one at every call, with every kind of fault in it."""

from __future__ import annotations

from itertools import pairwise

from tests.chaos.schedule import EVERYTHING, Kind, Rhythm, make_schedule


def test_a_seed_replays_its_schedule():
    assert make_schedule(7, 600.0, EVERYTHING) == make_schedule(7, 600.0, EVERYTHING)
    assert make_schedule(7, 600.0, EVERYTHING) != make_schedule(8, 600.0, EVERYTHING)


def test_a_longer_run_begins_like_a_shorter_one():
    short = make_schedule(7, 600.0, EVERYTHING)
    assert make_schedule(7, 1200.0, EVERYTHING)[: len(short)] == short


def test_every_kind_comes_once_before_any_comes_again():
    faults = make_schedule(7, 3600.0, EVERYTHING)
    first = [fault.kind for fault in faults[: len(EVERYTHING)]]
    assert sorted(kind.name for kind in first) == sorted(kind.name for kind in EVERYTHING)


def test_storms_and_quiet_windows_alternate():
    rhythm = Rhythm()
    faults = make_schedule(7, 3600.0, EVERYTHING, rhythm)
    gaps = [later.at - earlier.at for earlier, later in pairwise(faults)]
    quiet = [gap for gap in gaps if gap > rhythm.between[1]]
    assert all(gap <= rhythm.between[1] or gap >= rhythm.quiet[0] for gap in gaps)
    assert len(quiet) >= len(faults) / rhythm.storm[1] - 1


def test_what_is_undone_lasts_a_while_and_a_kill_does_not():
    for fault in make_schedule(7, 3600.0, EVERYTHING):
        assert fault.seconds <= Rhythm().longest_stop
        if fault.kind in {Kind.WORKER_KILL, Kind.DRIVER_KILL, Kind.CRASH_AT_POINT}:
            assert fault.seconds == 0.0
