"""How `sparkonce transactions` shows rows: as a table for people, as plain data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.operations.transaction_reader import TransactionReader
    from connectors.operations.transaction_table import Row

_STYLE = {
    "committed": "green",
    "pending": "yellow",
    "lingering": "yellow",
    "aborted": "red",
    "unknown": "red",
    "hidden": "red",
    "other log": "red",
}


def head(reader: TransactionReader) -> dict[str, Any]:
    """Return the application of the log and its newest run."""
    state = reader.state
    return {
        "application": state.application_id,
        "log": state.log_id,
        "run": state.run_epoch,
        "host": state.host,
        "run_alive": reader.run_alive(),
        "checkpoint": None if state.decision is None else state.decision.checkpoint_id,
    }


def plain(row: Row) -> dict[str, Any]:
    """Return one transaction as data for JSON."""
    one = row.decided
    fields: dict[str, Any] = {
        "verdict": row.standing.value,
        "proof": row.proof,
        "do": row.advice,
        "transactional_id": row.transactional_id,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "state": row.state,
        "age_s": None if row.age_ms < 0 else round(row.age_ms / 1000, 1),
        "timeout_s": row.timeout_ms / 1000,
        "partitions": list(row.partitions),
    }
    if one is None:
        return {**fields, "checkpoint": None, "sink": None, "token": None}
    return {
        **fields,
        "checkpoint": one.checkpoint_id,
        "sink": one.sink,
        "subtask": one.subtask,
        "token": one.token,
        "records": one.record_count,
        "fingerprint": one.fingerprint,
        "source_offsets": dict(one.source_offsets),
        "marker": {
            "group": one.marker_group,
            "partition": one.marker_partition,
            "offset": None if row.marker is None else row.marker[0],
            "metadata": None if row.marker is None else row.marker[1],
        },
    }


def to_json(value: Any) -> str:
    """Return indented JSON."""
    import orjson

    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def text(value: Any) -> str:
    """Return a value for a cell of a rich table."""
    from rich.markup import escape

    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    if isinstance(value, dict):
        return escape(", ".join(f"{name}={one}" for name, one in value.items()))
    return "" if value is None else escape(str(value))


def show(reader: TransactionReader, rows: Sequence[Row]) -> None:
    """Print the table of `transactions list`."""
    from rich.console import Console
    from rich.table import Table

    state = reader.state
    last = "none" if state.decision is None else state.decision.checkpoint_id
    console = Console()
    if not console.is_terminal:
        console = Console(width=250)  # a file or a pipe gets the whole text
    table = Table(
        title=f"{state.application_id}, log {state.log_id}, run {state.run_epoch} ({state.host}), "
        f"last decided checkpoint: {last}",
        title_justify="left",
    )
    names = ("checkpoint", "sink", "transactional id", "producer", "token", "broker", "age")
    for name in (*names, "verdict", "because", "what to do"):
        # people copy and search an id and a verdict: no fold there
        table.add_column(name, overflow="fold", no_wrap=name in ("transactional id", "verdict"))
    for row in rows:
        fields = plain(row)
        age = "" if row.age_ms < 0 else f"{row.age_ms / 1000:.0f} s"
        style = _STYLE.get(row.standing.value, "default")
        table.add_row(
            *(text(fields[name]) for name in ("checkpoint", "sink", "transactional_id")),
            f"{row.producer_id}/{row.producer_epoch}",
            *(text(fields["token"]), row.state, age, f"[{style}]{row.standing.value}[/]"),
            *(text(row.proof), text(row.advice)),
        )
    console.print(table)
    if not rows:
        open_ = ", and no transaction is open" if reader.sinks else ""
        console.print(f"Nothing of the last checkpoint is left to prove{open_}.")
