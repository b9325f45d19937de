"""Finds our errors in the text of a failed query.

Python workers and the source's planner run in processes of their own. Spark passes on their
errors as the text of a traceback.
"""

from __future__ import annotations

import re

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
