"""Checks what an independent reader finds; the checks know only the data set and the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from connectors.demo.dataset import FLIGHT_ID, arrivals

Records = Iterable[tuple[bytes, bytes]]

_COPIED: Final = ("carrier", "flight", "origin", "dest", "distance", "dep_delay")
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One statement of the proof, and whether it holds."""

    name: str
    holds: bool
    detail: str


def check_flights(records: Records, flights: Any) -> Check:
    """Check that each flight of the data set is in the clean topic exactly once and unaltered."""
    total = flights.num_rows
    seen = np.zeros(total, dtype=np.int64)
    columns = [flights[name].to_pylist() for name in _COPIED]
    foreign: list[str] = []
    altered: list[str] = []
    for key, value in records:
        number = int(key) if key is not None and key.isdigit() else -1
        if not 0 <= number < total:
            foreign.append(repr(key))
            continue
        seen[number] += 1
        found = orjson.loads(value)
        if found[FLIGHT_ID] != number or any(
            found.get(name) != column[number] for name, column in zip(_COPIED, columns, strict=True)
        ):
            altered.append(str(number))
    findings = {
        "lost": [str(one) for one in np.flatnonzero(seen == 0)],
        "duplicated": [str(one) for one in np.flatnonzero(seen > 1)],
        "foreign": foreign,
        "altered": altered,
    }
    wrong = "; ".join(f"{len(ids):,} {name}: {_some(ids)}" for name, ids in findings.items() if ids)
    detail = wrong or f"{total:,} flights, none lost, duplicated, foreign or altered"
    return Check("every flight exactly once", not wrong, detail)


def check_counts(records: Records, flights: Any) -> Check:
    """Check that counts per airport only grow, and end at the counts of a single machine."""
    expected = arrivals(flights)
    last: dict[str, int] = {}
    back: list[str] = []
    for key, value in records:
        airport, count = key.decode(), orjson.loads(value)["count"]
        if count <= last.get(airport, 0):
            back.append(airport)
        last[airport] = count
    wrong = [
        f"{airport} {last.get(airport, 0):,} instead of {expected.get(airport, 0):,}"
        for airport in sorted(expected.keys() | last.keys())
        if last.get(airport) != expected.get(airport)
    ]
    findings = [f"{len(wrong)} wrong: {_some(wrong)}"] if wrong else []
    findings += [f"{len(back)} not growing: {_some(back)}"] if back else []
    detail = f"{len(expected)} airports, {sum(expected.values()):,} arrivals, as on one machine"
    return Check("counts per airport", not findings, "; ".join(findings) or detail)


def check_nothing_open(hidden: Sequence[str], transactions: Sequence[str]) -> Check:
    """Check that no transaction is open: neither in a partition nor at a coordinator."""
    found = [*hidden, *transactions]
    detail = _some(found) if found else "every partition is readable to its end"
    return Check("no open transaction", not found, detail)


def check_plot(kills: int, planned: int, exit_code: int) -> Check:
    """Check that all planned kills happened, and that the last run stopped by itself."""
    detail = f"{kills} of {planned} SIGKILLs; the last run stopped with exit code {exit_code}"
    return Check("killed, restarted, stopped", kills == planned and exit_code == 0, detail)


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
