"""What a read_committed consumer sees of a partition log; imports nothing of ours.

It knows the log's format only: data and control records by producer. It reads up to the last
stable offset, which is the first record of the oldest transaction without a marker, and leaves
out what an abort marker follows.
"""

from __future__ import annotations

from collections.abc import Iterable


def read_committed(log: Iterable[object]) -> list[str]:
    """Return the values that a consumer is given, in the order of the log.

    Args:
        log: entries with `kind` (data, commit, abort; plain for a record of no transaction),
            `producer_id` and `value`.
    """
    entries = list(log)
    ends: dict[int, list[str]] = {}
    for entry in entries:
        if entry.kind in ("commit", "abort"):  # type: ignore[attr-defined]
            ends.setdefault(entry.producer_id, []).append(entry.kind)  # type: ignore[attr-defined]
    passed: dict[int, int] = {}
    seen = []
    for entry in entries:
        producer = entry.producer_id  # type: ignore[attr-defined]
        at = passed.get(producer, 0)
        if entry.kind == "plain":  # type: ignore[attr-defined]
            seen.append(entry.value)  # type: ignore[attr-defined]
        elif entry.kind != "data":  # type: ignore[attr-defined]
            passed[producer] = at + 1
        elif at == len(ends.get(producer, [])):
            break  # still open: the last stable offset
        elif ends[producer][at] == "commit":
            seen.append(entry.value)  # type: ignore[attr-defined]
    return seen
