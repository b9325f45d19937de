"""Finds our errors, and those of a user's function, in the text of a failed query.

Python workers and the source's planner run in processes of their own. Spark passes on their
errors as the text of a traceback.
"""

from __future__ import annotations

import re
import traceback

from pyspark.errors import PySparkException

from connectors.records.user_traceback import last_raised
from transactions import errors
from transactions.errors import SparkOnceError

_RAISED = re.compile(
    r"transactions\.errors\.(?P<kind>[A-Z]\w+): (?P<what>[^\n]*)"
    r"(?:\n  where:  (?P<where>[^\n]*))?"
    r"(?:\n  cause:  (?P<cause>[^\n]*))?"
    r"(?:\n  look at: (?P<option>[^\n]*))?"
)


def error_in(text: str) -> SparkOnceError | None:
    """Return the last of our errors that a text quotes, None when it quotes none.

    The last one is the end of a chain of exceptions.
    """
    for match in reversed(list(_RAISED.finditer(text))):
        kind = getattr(errors, match["kind"], None)
        if isinstance(kind, type) and issubclass(kind, SparkOnceError):
            where, cause, option = (match[name] or "" for name in ("where", "cause", "option"))
            return kind(match["what"], where=where, cause=cause, option=option)
    return None


def reason(error: BaseException) -> str:
    """Return in one line why Spark, or a function of the user, has failed.

    What a worker raised stands in the message of Spark's exception, below Java's stack.
    """
    text = str(error)  # it outlives the JVM, other than getMessage()
    raised = last_raised(text) if isinstance(error, PySparkException) else None
    raised = raised or last_raised("".join(traceback.format_exception(error)))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return raised or f"{type(error).__name__}: {first}"
