"""py4j's debug log, without what Python and the JVM tell each other.

Options of a query go to the JVM as they are, passwords among them, and the first command of each
connection is the key to this JVM. At the level DEBUG py4j would log all of it.
"""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway")
_SAID: Final = re.compile(r"(Command to send|Answer received): (.*)", re.DOTALL)
#: Kind of a command -> how many of its next lines are names: object and method; class.
_NAMES: Final = {"c": 2, "i": 1}


def hide_arguments() -> None:
    """Let py4j log whom it calls, and not with what; from now on in this process."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_arguments)


def _without_arguments(record: logging.LogRecord) -> bool:
    if record.levelno == logging.ERROR and record.exc_info and _is_of_a_driver(record.exc_info[2]):
        return False  # the batch has failed: the driver says so itself
    said = _SAID.fullmatch(record.getMessage())
    if said is not None:
        kind, *lines = said[2].split("\n")
        # An answer is in one line, and its first three characters say of which type it is.
        shown = " ".join([kind[:3], *lines[: _NAMES.get(kind, 0)]])
        record.msg, record.args = f"{said[1]}: {shown} ({len(said[2])} characters)", ()
    return True


def _is_of_a_driver(raised: TracebackType | None) -> bool:
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))
    return str(Path(__file__).with_name("streaming_driver.py")) in files
