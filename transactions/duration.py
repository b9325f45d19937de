"""One grammar of durations for every option: 500ms, 10s, 1min, 10 minutes, 1h."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: How the text of an error describes a duration.
WANTED: Final = "a duration: 500ms, 10s, 1min, 10 minutes, 1h"

_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_SECONDS: Final[Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
        **dict.fromkeys(("h", "hour", "hours"), 3600.0),
        **dict.fromkeys(("d", "day", "days"), 86400.0),
    }
)


def seconds_of(text: str, *, unit: str = "s") -> float:
    """Return the seconds of a duration.

    Args:
        text: a number and a unit, with or without a space; upper and lower case are the same.
        unit: the unit of a number that stands alone.

    Raises:
        ValueError: the text is no duration; `WANTED` describes one.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    factor = _SECONDS.get(match[2] or unit) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {WANTED}")
    return float(match[1]) * factor


def milliseconds_of(text: str) -> int:
    """Return the milliseconds of a duration; a number that stands alone is in milliseconds.

    Raises:
        ValueError: the text is no duration, or is not whole milliseconds.
    """
    value = round(seconds_of(text, unit="ms") * 1000, 6)
    if value != int(value):
        raise ValueError(f"{text!r} is a part of a millisecond")
    return int(value)
