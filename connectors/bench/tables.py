"""The lines of a command as one table for people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from connectors.bench.figures import PHASES, Line
from connectors.bench.options import COMMIT, LATENCY

#: Phase of `CheckpointReport.phase_ms` -> its description.
_PHASES: Final = {
    "start": "checks that this run is the newest",
    "write": "phase 1: flush and offsets, in every subtask",
    "check": "brokers confirm each transaction",
    "decide": "writes the decision log, with its fsyncs",
    "commit": "EndTxn of every transaction",
    "finish": "checks the run again; compacts the log when due",
}
_AUDIT: Final = ("lost", "dup", "foreign", "untransformed")
_PERCENTILES: Final = ("p50_ms", "p95_ms", "p99_ms", "max_ms")


def show(lines: Sequence[Line], console: Console) -> None:
    """Print the table of a command, and a note for each problem."""
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a file gets whole lines
    main = [one for one in lines if "error" in one or _is_main(one)]
    if any(one["what"] == COMMIT for one in main):
        console.print(_commits(main))
    else:
        console.print(_figures(main))
    for one in lines:
        if one.get("slowest"):
            console.print(slowest_checkpoints(one))
    for one in lines:
        for note in notes(one):
            console.print(note, markup=False, highlight=False, soft_wrap=True)


def notes(line: Line) -> Iterator[str]:
    """Yield the notes that a line needs besides its figures."""
    if wrong := {name: line[name] for name in _AUDIT if line.get(name)}:
        yield "NOT exactly once: " + ", ".join(f"{n} {name}" for name, n in wrong.items())
    if line.get("rate_held") is False and line["what"] == LATENCY:
        yield (
            f"The rate of {line['rate']:,}/s was NOT held: {line['produced_per_s']:,} produced/s, "
            f"late by {line['producer_late_max_ms']:,} ms at most; latency grew by "
            f"{line['latency_growth_ms']:,} ms. The latency belongs to another rate."
        )
    if "slowest" in line:
        yield _of_pauses(line)
    if "ms_per_subtask" in line:
        yield f"One more subtask costs {line['ms_per_subtask']} ms of a commit (p50)."


def slowest_checkpoints(line: Line) -> Table:
    """Return a table of the slowest checkpoints of a line that has them."""
    rows: list[Line] = line["slowest"]
    at = f"at {line['rate']:,} records a second" if "rate" in line else ""
    title = f"The slowest checkpoints {at}, in ms"
    table = Table("checkpoint", "ended", "records", title=title)
    columns = ("total_ms", *PHASES, "broker_pause_ms")
    known = [name for name in columns if any(name in row for row in rows)]
    for name in known:
        table.add_column(name.removesuffix("_ms").replace("_", " "), justify="right")
    for row in rows:
        ended = dt.datetime.fromtimestamp(row["end_ns"] / 1e9).astimezone()
        clock = ended.strftime("%H:%M:%S.%f")[:-3]
        figures = [_cell(row.get(name)) for name in known]
        table.add_row(str(row["id"]), clock, f"{row['records']:,}", *figures)
    return table


def is_wrong(line: Line) -> bool:
    """Return whether a record is lost, duplicated, foreign or unchanged, or a figure is missing."""
    return "error" in line or any(line.get(name) for name in _AUDIT)


def _of_pauses(line: Line) -> str:
    if "broker_paused_share" not in line:
        return "The pauses of the broker are not known: this command did not start it."
    rows, share = line["slowest"], line["broker_paused_share"]
    met = sum(1 for row in rows if row["broker_pause_ms"] > 0)
    return (
        f"A pause of the broker lies in {met} of these {len(rows)} checkpoints. "
        f"It stood still for {share:.2%} of the measured time."
    )


def _is_main(line: Line) -> bool:
    return "phases" not in line["what"] and "series" not in line["what"]


def _figures(lines: Sequence[Line]) -> Table:
    table = Table("what", title_justify="left")
    for line in lines:
        table.add_column(line["system"], justify="right")
    rows = {
        "p50, ms": "p50_ms",
        "p95, ms": "p95_ms",
        "p99, ms": "p99_ms",
        "max, ms": "max_ms",
        "checkpoints/s": "checkpoints_per_s",
        "records/s until visible, total": "records_per_s_total",
        "records/s until visible, steady": "records_per_s_steady",
        "first records visible after, s": "first_visible_s",
        "records": "records",
        "records measured": "measured",
        "wanted rate, records/s": "rate",
        "producer late at most, ms": "producer_late_max_ms",
        **{name: name for name in _AUDIT},
    }
    for title, name in rows.items():
        if any(line.get(name) is not None for line in lines):
            table.add_row(title, *(_cell(line.get(name)) for line in lines))
    return table


def _commits(lines: Sequence[Line]) -> Table:
    table = Table("subtasks", "phase", *(f"{one[:-3]}, ms" for one in _PERCENTILES), "what it is")
    for line in lines:
        for name in PHASES:
            values = line.get("phase_ms", {}).get(name)
            if values:
                cells = [_cell(values.get(one)) for one in _PERCENTILES]
                table.add_row(str(line["subtasks"]), name, *cells, _PHASES[name])
        if "commit_ms" in line:
            cells = [_cell(line["commit_ms"].get(one)) for one in _PERCENTILES]
            what = f"check + decide + commit; {line['checkpoints']:,} checkpoints"
            table.add_row(
                str(line["subtasks"]), "in all", *cells, what, style="bold", end_section=True
            )
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
