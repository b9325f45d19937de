"""What a check says: a level, what was found, why it matters, what to change."""

from __future__ import annotations

import dataclasses
import enum


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


class Kind(enum.Enum):
    """The kind of cause of a refusal; it says whether the refusal can pass by itself."""

    SETTING = "setting"
    MISSING = "missing"
    RIGHTS = "rights"
    OUTAGE = "outage"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table.

    Attributes:
        check: what was looked at.
        level: how bad it is.
        found: what was seen.
        reason: why it matters; "" when all is well.
        option: what to change; "" when nothing.
        kind: the kind of a refusal: it decides what a driver raises.
    """

    check: str
    level: Level
    found: str
    reason: str = ""
    option: str = ""
    kind: Kind = Kind.SETTING
