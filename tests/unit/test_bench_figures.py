"""What `sparkonce bench` makes of its measurements: figures, notes, tables and the picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from connectors.bench import broker_pauses, figures, measurements, picture, tables, workbench
from connectors.bench.audit import Audit
from connectors.bench.broker_pauses import Pause
from connectors.bench.measurements import Measurements, rates
from connectors.bench.replace_last_byte import ReplaceLastByte
from connectors.bench.shape import Shape, number_of, stamp_of
from connectors.bench.system import our_system
from transactions.errors import SparkOnceError

PHASES = {"start": 1.0, "write": 9.0, "check": 2.0, "decide": 3.0, "commit": 4.0, "finish": 1.0}


def checkpoint(number: int, **more: float) -> dict[str, Any]:
    row = {"id": number, "end_ns": number * 100_000_000, "records": 2, "transactions": 2}
    return row | PHASES | more


def report(**more: Any) -> dict[str, Any]:
    return {"progress": [], "phases": [], "first_record_ns": 0, "commits": 0} | more


def line(**more: Any) -> dict[str, Any]:
    return {
        "what": "latency",
        "system": "sparkonce continuous",
        "rate": 2000,
        "partitions": 2,
        "value_bytes": 92,
        "master": "local[2]",
        "cpus": 2,
        "at": "2026-11-22T05:00:00+00:00",
        **vars(Audit()),
        **more,
    }


def test_a_record_carries_its_id_and_its_moment():
    shape = Shape(partitions=3, value_bytes=9)
    assert [shape.partition(n) for n in range(4)] == [0, 1, 2, 0]
    assert number_of(shape.key(-2)) == -2
    assert stamp_of(shape.value(1_700_000_000_123_456_789)) == 1_700_000_000_123_456_789
    assert len(shape.value(1)) == 9


def test_the_job_changes_the_last_byte_and_says_when_it_began(tmp_path: Path):
    shape, first = Shape(value_bytes=12), tmp_path / "first"
    rows = [{"key": shape.key(n), "value": shape.value(n)} for n in range(5)]
    batch = pa.RecordBatch.from_pylist(rows).slice(1)
    job = ReplaceLastByte(str(first))

    made = [job(batch).to_pylist() for _ in range(2)][1]

    assert [row["value"] for row in made] == [row["value"][:-1] + b"T" for row in rows[1:]]
    assert [row["key"] for row in made] == [row["key"] for row in rows[1:]]
    assert int(first.read_text()) > 0


def test_a_job_on_another_host_cannot_write_there_and_goes_on(tmp_path: Path):
    batch = pa.RecordBatch.from_pylist([{"key": b"k", "value": b"vv"}])
    job = ReplaceLastByte(str(tmp_path / "not" / "here"))
    assert job(batch).to_pylist() == [{"key": b"k", "value": b"vT"}]


def test_percentiles_and_the_curve():
    values = np.arange(1, 101, dtype=float)
    assert figures.percentiles(values) == {
        "p50_ms": 50.5,
        "p95_ms": 95.0,
        "p99_ms": 99.0,
        "max_ms": 100.0,
    }
    curve = figures.curve(values)["curve_ms"]
    assert len(curve) == len(figures.SHARES)
    assert curve == sorted(curve)
    assert figures.percentiles([]) == {}
    assert figures.curve([]) == {}


def test_the_commit_is_what_comes_after_phase_one():
    assert figures.commit_ms(checkpoint(1)) == 9.0
    assert figures.commit_phases([checkpoint(1), checkpoint(2, commit=8.0)])["commit"] == {
        "p50_ms": 6.0,
        "p95_ms": 7.8,
        "p99_ms": 7.96,
        "max_ms": 8.0,
    }
    assert figures.commit_phases([]) == {}


def test_checkpoints_a_second_are_counted_between_the_first_and_the_last():
    rows = [checkpoint(number) for number in range(1, 12)]
    assert figures.per_second(rows) == 10.0
    assert figures.per_second(rows[:1]) is None
    assert len(figures.checkpoints_of(report(phases=rows), since_ns=600_000_000)) == 6
    empty = report(phases=[checkpoint(1, records=0)])
    assert figures.checkpoints_of(empty) == []


def test_a_rate_is_held_while_latency_does_not_grow():
    calm = np.tile([50.0, 60.0, 55.0, 400.0], 250)
    behind = np.linspace(50.0, 20_000.0, 1000)
    assert figures.growth_ms(calm) == 0.0
    assert figures.rate_held(1000, 1000, figures.growth_ms(calm), 30.0)
    assert not figures.rate_held(1000, 1000, figures.growth_ms(behind), 30.0)
    assert not figures.rate_held(1000, 900, 0.0, 30.0)
    assert figures.growth_ms([1.0, 2.0]) == 0.0


def test_a_few_hundred_ms_more_in_a_short_run_are_noise():
    assert figures.rate_held(1000, 1000, 400.0, 3.0)
    assert not figures.rate_held(1000, 1000, 600.0, 3.0)


def test_what_one_more_subtask_costs():
    assert figures.slope([(1, 5.0), (2, 6.0), (4, 8.0)]) == 1.0
    assert figures.slope([(2, 5.0)]) is None
    lines = [line(what="commit", subtasks=n, commit_ms={"p50_ms": 4.0 + n}) for n in (1, 2, 4, 8)]
    series = workbench.series(lines)
    assert (series["subtasks"], series["ms_per_subtask"]) == ([1, 2, 4, 8], 1.0)


def test_throughput_from_what_a_watcher_saw():
    visible = np.array([0, 400, 1000], dtype=np.int64)
    times = [1_000_000_000, 3_000_000_000, 5_000_000_000]
    told = rates(1000, times, visible, report(first_record_ns=1_000_000_000))
    assert told == {
        "first_visible_records": 400,
        "first_visible_s": 2.0,
        "records_per_s_total": 250,
        "records_per_s_steady": 300,
    }
    at_once = rates(1000, times, np.array([0, 0, 1000]), report(first_record_ns=1_000_000_000))
    assert at_once["records_per_s_steady"] is None


def test_a_job_that_ends_without_progress_or_first_record_is_an_error():
    with pytest.raises(SparkOnceError, match="without a result"):
        rates(10, [1, 2], np.array([0, 10]), report())
    with pytest.raises(SparkOnceError, match="0 records in the output"):
        rates(0, [1], np.array([0]), report(first_record_ns=5))


class Silent:
    """A job process that is killed before it reports, on brokers that exist nowhere."""

    ends = ((5, 5),)
    times = (1,)
    pid = 0

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.report = report()

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def create(self, what: str, _partitions: int) -> str:
        return what

    def check(self) -> None:
        pass

    def load(self, records: int, _watch: Any) -> float:
        return float(records)

    def wait_for(self, *_records: int, **_options: Any) -> None:
        pass

    def visible(self, _offsets: Any) -> Any:
        return np.array([10])


def test_that_error_is_a_line_and_what_was_read_is_in_it(monkeypatch: pytest.MonkeyPatch):
    for name in ("JobProcess", "EndWatcher", "MeasuringProducer"):
        monkeypatch.setattr(measurements, name, Silent)
    monkeypatch.setattr(measurements, "audit_topic", lambda *_: (Audit(dup=1), []))
    lines: list[dict[str, Any]] = []
    bench = Measurements(
        {"bootstrap.servers": "nowhere:9"},
        Silent(),  # type: ignore[arg-type]
        Path(),
        shape=Shape(),
        emit=lines.append,
        watch=lambda *_: None,
    )

    bench.throughput(our_system("micro-batch"), records=10, batch_records=5)

    (only,) = lines
    assert "without a result" in only["error"]
    assert only["dup"] == 1
    assert [str(error) for error in bench.errors] == [only["error"]]


def test_notes_name_what_is_wrong_and_a_rate_that_was_not_held():
    assert list(tables.notes(line(rate_held=True))) == []
    (lost,) = tables.notes(line(lost=3, dup=1))
    assert lost == "NOT exactly once: 3 lost, 1 dup"
    told = {"rate_held": False, "produced_per_s": 1500.0, "producer_late_max_ms": 900.0}
    (held,) = tables.notes(line(**told, latency_growth_ms=12.0))
    assert "2,000/s was NOT held: 1,500.0 produced/s" in held


@pytest.mark.parametrize("name", ["lost", "dup", "foreign", "untransformed"])
def test_every_kind_of_wrong_record_is_a_failure(name: str):
    assert not tables.is_wrong(line())
    assert tables.is_wrong(line(**{name: 1}))
    assert tables.is_wrong(line(error="no"))
    assert not Audit(**{name: 1}).clean


def commits() -> list[dict[str, Any]]:
    rows = [checkpoint(number) for number in range(1, 9)]
    values = [figures.commit_ms(row) for row in rows]
    commit_ms = {**figures.percentiles(values), **figures.curve(values)}
    phases = figures.commit_phases(rows)
    common = {"what": "commit", "commit_ms": commit_ms, "phase_ms": phases, "checkpoints": 8}
    return [line(**common, subtasks=number) for number in (1, 2)]


def test_the_table_of_the_phases_has_every_phase_of_every_run():
    out = io.StringIO()
    tables.show([*commits(), workbench.series(commits())], Console(file=out, width=140))
    shown = out.getvalue()
    assert all(shown.count(f" {phase} ") >= 2 for phase in PHASES)
    assert shown.count("in all") == 2
    assert "One more subtask costs 0.0 ms" in shown


@pytest.mark.parametrize(
    ("suffix", "begins"),
    [("svg", b"<?xml"), ("png", b"\x89PNG"), ("html", b"<!doctype html>")],
)
def test_the_picture_of_a_series(tmp_path: Path, suffix: str, begins: bytes):
    path = tmp_path / f"commit.{suffix}"
    assert list(picture.curves(commits())) == ["commit, 1 subtask(s)", "commit, 2 subtask(s)"]
    picture.draw(commits(), path)
    assert path.read_bytes().startswith(begins)
    if suffix == "html":
        assert path.read_text().count("<svg") == 1


def test_records_between_are_those_of_whole_intervals():
    ends = [100, 1100, 2100, 3100, 3150]
    rows = [{"end_ns": ms * 1_000_000, "records": 1000 + ms} for ms in ends]
    assert figures.records_between(rows) == round((3100 + 4100) / 2.0)
    assert figures.records_between(rows[:3]) is None
    assert figures.records_between([]) is None


#: As JDK 17, 21 and 25 write them; the first lines of a log say what the JVM is.
JVM_LOG = """\
[1764392000000ms] Using G1
[1764392000123ms] Safepoint "G1CollectForAllocation", Time since last: 1007411 ns, \
Reaching safepoint: 148 ns, Cleanup: 1000 ns, At safepoint: 2000000 ns, Total: 2001148 ns
[1764392000500ms] Safepoint "ICBufferFull", Time since last: 3 ns, Reaching safepoint: 1 ns, \
Cleanup: 1 ns, At safepoint: 1 ns, Leaving safepoint: 5 ns, Total: 8 ns, Threads: 0 runnable
[1764392000600ms] Safepoint "Cut
"""


def test_the_pauses_of_a_broker_from_its_log(tmp_path: Path):
    of_two = tmp_path / "broker-pauses-12.log", tmp_path / "broker-pauses-13.log.0"
    of_two[0].write_text(JVM_LOG)
    of_two[1].write_text(JVM_LOG.splitlines()[1])
    (tmp_path / "job.log").write_text(JVM_LOG)
    one = Pause(1764392000123_000_000, 2_001_148, "G1CollectForAllocation")
    other = Pause(1764392000500_000_000, 8, "ICBufferFull")
    assert broker_pauses.read(tmp_path) == [one, other, one]
    assert str(tmp_path) in broker_pauses.log_option(tmp_path)


@pytest.mark.parametrize(
    ("start", "end", "shared"),
    [(0, 100, 10), (95, 100, 5), (0, 93, 3), (92, 95, 3), (100, 200, 0), (0, 90, 0)],
)
def test_how_much_of_a_pause_lies_between_two_moments(start: int, end: int, shared: int):
    assert Pause(100, 10, "any").shared_ns(start, end) == shared


def test_the_slowest_checkpoints_and_the_pauses_in_them():
    # Each ends 100 ms behind the one before and takes 20 ms; the second one takes 60.
    rows = [checkpoint(1), checkpoint(2, write=49.0), checkpoint(3)]
    pauses = [Pause(170_000_000, 50_000_000, "G1"), Pause(400_000_000, 1_000_000, "later")]
    found = broker_pauses.slowest(rows, 2, pauses)
    assert [(one["id"], one["total_ms"], one["broker_pause_ms"]) for one in found] == [
        (2, 60.0, 30.0),
        (1, 20.0, 0.0),
    ]
    assert found[0]["write"] == 49.0
    # From 80 to 300 ms the broker stood still for 50.
    assert broker_pauses.share(rows, pauses) == round(50 / 220, 4)
    assert "broker_pause_ms" not in broker_pauses.slowest(rows, 2, None)[0]


@pytest.mark.parametrize("known", [True, False])
def test_the_table_of_the_slowest_checkpoints(known: bool):
    rows = [checkpoint(1), checkpoint(2, write=49.0)]
    pauses = [Pause(170_000_000, 50_000_000, "G1")] if known else None
    more: dict[str, Any] = {"slowest": broker_pauses.slowest(rows, 5, pauses)}
    if pauses:
        more["broker_paused_share"] = broker_pauses.share(rows, pauses)
    out = io.StringIO()
    phases = line(what="latency phases", **more)
    tables.show([line(), phases], Console(file=out, width=140))
    shown = out.getvalue()
    assert "60.0" in shown
    assert ("broker pause" in shown) == known
    assert ("lies in 1 of these 2 checkpoints" in shown) == known
    assert ("not known: this command did not start it" in shown) != known
