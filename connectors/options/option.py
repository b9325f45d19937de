"""What one option is: a row of `connectors.options.table`, and how its text becomes a value."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from transactions.duration import WANTED, milliseconds_of, seconds_of
from transactions.errors import ConfigurationError, nearest

#: Names of applications and sinks: transactional ids and names of files contain them.
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

Parse = Callable[[str], object]
"""Return the value of a text, or raise ValueError."""


def checked_app_id(app_id: str) -> str:
    """Return an application id that can be part of transactional ids.

    Raises:
        ConfigurationError: it cannot be part of one.
    """
    if not NAME.fullmatch(app_id):
        raise ConfigurationError(
            "An application id may have only letters, digits, _ and -; a dot would end it.",
            cause="transactional ids are <application>.<log>.<run>.<process>.<slot>",
            option=f"app_id={app_id}",
        )
    return app_id


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """The type of an option's value.

    Attributes:
        name: the name in help and docs.
        parse: returns the value of a text.
        problem: what an error says about a text that has no value.
    """

    name: str
    parse: Parse
    problem: str = ""


def _whole(least: int, most: float = math.inf) -> Parse:
    def parse(text: str) -> int:
        # Digits only: int() reads "9_108" and "+1" too.
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return parse


def _switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _positive(text: str) -> float:
    seconds = seconds_of(text)
    if seconds <= 0.0:
        raise ValueError(text)
    return seconds


TEXT: Final = Kind("text", str)
NUMBER: Final = Kind("number", int, "it is not a whole number")
COUNT: Final = Kind("number", _whole(0), "it is not a whole number of 0 or more")
TASKS: Final = Kind("number", _whole(1), "it is not a whole number of 1 or more")
PORT: Final = Kind("number", _whole(0, 65_535), "it is not a whole number from 0 to 65535")
SWITCH: Final = Kind("true, false", _switch, "it is neither true nor false")
DURATION: Final = Kind("duration", _positive, f"it is not {WANTED} longer than zero")
MILLISECONDS: Final = Kind("duration, or milliseconds", milliseconds_of, f"it is not {WANTED}")
WORD: Final = Kind("word", lambda text: text.strip().lower())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row.

    Attributes:
        name: what a user writes in a job file, or as an option of Spark.
        says: what it does, in a sentence.
        field: its name in Python; the same by default.
        kind: the type of its value.
        default: its value when it is not given, as a user would write it; per mode if the modes
            differ; empty if there is no default.
        mode: the only mode that has it; empty: both.
        instead: what the other mode has instead.
    """

    name: str
    says: str
    field: str = ""
    kind: Kind = TEXT
    default: str | Mapping[str, str] = ""
    mode: str = ""
    instead: str = ""

    @property
    def python_name(self) -> str:
        """Its name in Python."""
        return self.field or self.name

    def default_in(self, mode: str) -> str:
        """Return the default in a mode, as text."""
        return self.default if isinstance(self.default, str) else self.default[mode]

    def value_in(self, mode: str) -> object:
        """Return the default in a mode, as a value; None when there is none."""
        text = self.default_in(mode)
        return self.kind.parse(text) if text else None


class Table:
    """The options of one place. Names are compared without regard to case, as Spark does.

    Args:
        options: its rows.
        prefix: the start of names that pass through, such as ``kafka.``.
    """

    def __init__(self, options: Iterable[Option], *, prefix: str = "") -> None:
        self.options = tuple(options)
        self.prefix = prefix
        self._by_name = {option.name.lower(): option for option in self.options}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, as a user writes them."""
        return tuple(option.name for option in self.options)

    def find(self, name: str) -> Option | None:
        """Return the row of a name, None when there is none."""
        return self._by_name.get(name.lower())

    def hint(self, name: str, *others: str) -> str:
        """Return what a user may have meant by a name that is not in the table.

        Args:
            name: what the user wrote.
            others: known names that are not in the table.
        """
        known = [*self.names, *others, *([f"{self.prefix}*"] if self.prefix else [])]
        return nearest(name, known)

    def passes(self, name: str) -> bool:
        """Return whether a name passes through to a client: it has the prefix, and is no row."""
        lowered = name.lower()
        return (
            bool(self.prefix) and lowered.startswith(self.prefix) and lowered not in self._by_name
        )
