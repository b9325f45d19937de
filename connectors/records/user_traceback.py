"""Finds the error that a user's function raised, in a text with Python's tracebacks."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import Final

import transactions

_BEGINS: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
#: Of nobody's function: what is installed, what Python brings, what is ours.
_NOT_THEIRS: Final = (
    "<frozen ",
    sysconfig.get_paths()["stdlib"],
    str(Path(__file__).parents[1]),
    str(Path(transactions.__file__).parent),
)


def last_raised(text: str) -> str | None:
    """Return what ends the last traceback of a text, and the last place in the user's own code.

    Spark puts the traceback of a worker into the message of an exception, whose traceback it puts
    into the next message: the last one is where it began.

    Returns:
        Such as `ValueError: no number (/jobs/clean.py, line 7, in upper)`; None when the text has
        no traceback.
    """
    _, found, below = text.rpartition(_BEGINS)
    place = ""
    for line in below.splitlines() if found else ():
        frame = _FRAME.fullmatch(line)
        if frame is not None and _is_theirs(frame["file"]):
            place = f" ({frame['file']}, line {frame['line']}, in {frame['name']})"
        elif line.strip() and not line[0].isspace():
            return line.strip() + place
    return None


def _is_theirs(file: str) -> bool:
    if "/site-packages/" in file or "/pyspark.zip/" in file or file.startswith(_NOT_THEIRS):
        return False
    return file.startswith(("/", "<"))  # else a part of a library that was compiled elsewhere
