"""What is fixed at the beginning of a regular expression for names of topics. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

#: One piece of a regular expression: an escape, a class, or a character.
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
#: A piece that means one character of a topic's name.
_FIXED: Final = re.compile(r"[\w-]|\\\W", re.ASCII)
#: What can make the piece before it none.
_MAY_BE_NONE: Final = ("*", "?", "{")


def beginnings(pattern: str) -> Iterator[tuple[str, bool]]:
    """Yield what each alternative of a pattern begins with, and whether that is all of it. In doubt
    it is less than what is fixed.

    Args:
        pattern: as in `subscribePattern`: a whole name matches.
    """
    alternatives: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            alternatives.append([])
        else:
            alternatives[-1].append(piece)
    for pieces in alternatives:
        body = pieces[pieces[:1] == ["^"] : len(pieces) - (pieces[-1:] == ["$"])]
        fixed = [*itertools.takewhile(_FIXED.fullmatch, body)]
        is_whole = len(fixed) == len(body)
        if fixed and not is_whole and body[len(fixed)] in _MAY_BE_NONE:
            fixed.pop()
        yield "".join(one[-1] for one in fixed), is_whole
