"""Finds the error that a user's function raised, in a text with Python's tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import transactions

_BEGINS: Final = re.compile(r'Traceback \(most recent call last\):\n(?=\s+File ")')
_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<name>, in .+)?')
#: What Python writes before each line of an exception group.
_BARS: Final = re.compile(r"^(?: *[|+])+-* ?", re.MULTILINE)
#: What Spark and Java write behind a message.
_ENDS: Final = re.compile(r"\s*(?:SQLSTATE|Caused by|JVM stacktrace|== |at [\w.$]+\()|\s*$")
#: Py4J's own words, and below them the exception of the JVM.
_OF_THE_JVM: Final = re.compile(r"py4j\.protocol\.Py4JJavaError: [^\n]*\n: (?=\S)")
#: Of nobody's function: what is installed, what Python brings (also on another machine), what is
#: ours.
_NOT_THEIRS: Final = re.compile(
    r"<frozen |.*/(?:site|dist)-packages/|.*/lib/python3\.\d+/|.*/pyspark\.zip/|"
    + "|".join(
        re.escape(f"{folder}/")
        for folder in (Path(__file__).parents[1], Path(transactions.__file__).parent)
    )
)
_MOST: Final = 500


def last_raised(text: str) -> str | None:
    """Return in one line what ends the last traceback of a text, and the last place in the user's
    own code.

    Spark puts the traceback of a worker into the message of an exception, whose traceback it puts
    into the next message: the last one is where it began.

    Returns:
        Such as `ValueError: no number (/jobs/clean.py, line 7, in upper)`; None when the text has
        no whole traceback.
    """
    if "Exception Group Traceback" in text:
        text = _BARS.sub("", text)
    text = _OF_THE_JVM.sub("", text)
    *_, below = _BEGINS.split(text)
    if below == text:
        return None
    place = ""
    lines = iter(below.splitlines())
    for line in lines:
        frame = _FRAME.fullmatch(line)
        if frame is not None:
            if _is_theirs(frame["file"]):
                place = f" ({frame['file']}, line {frame['line']}{frame['name'] or ''})"
        elif _ENDS.match(line) and line.strip():
            return None  # the traceback was cut off
        elif line.strip() and not line[0].isspace():
            return _message(line, lines) + place
    return None


def _message(first: str, more: Iterator[str]) -> str:
    said = [first.strip()]
    for line in more:
        if _ENDS.match(line):
            break
        said.append(line.strip())
    text = " ".join(said)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _is_theirs(file: str) -> bool:
    # A path that is not whole is a part of a library that was compiled elsewhere.
    return file.startswith(("/", "<")) and _NOT_THEIRS.match(file) is None
