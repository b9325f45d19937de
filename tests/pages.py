"""The code blocks of the pages: what a user copies, as a test copies it.

    block("docs/metrics.md", "parse_event(")          the one block of the page that says this
    run_python(code, names)                           its last line is the answer
    commands(block("docs/savepoints.md", "list"))     what stands behind `$`

`tests/unit/test_blocks.py` reads the calls of `block` in all tests: a block that none of them takes
must be declared there.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The pages whose blocks users copy.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for glob in (
        "README.md",
        "docs/*.md",
        "transactions/README.md",
        "connectors/README.md",
        "examples/**/README.md",
    )
    for path in ROOT.glob(glob)
)
FENCE = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    return [
        Block(page, 1 + text.count("\n", 0, one.start()), one[3], textwrap.dedent(one[4]))
        for one in FENCE.finditer(text)
    ]


def find(page: str, says: str) -> Block:
    """Return the one block of a page that says this."""
    found = [one for one in blocks_of(page) if says in one.code]
    assert len(found) == 1, f"{page}: {says!r} is in {len(found)} blocks, not in one"
    return found[0]


def block(page: str, says: str) -> str:
    """Return the code of the one block of a page that says this: a test runs it."""
    return find(page, says).code


def replaced(code: str, changes: Mapping[str, str]) -> str:
    """Put what is here (an address, a folder, a number) in the place of what the page says."""
    for theirs, ours in changes.items():
        assert theirs in code, f"the page no longer says {theirs}"
        code = code.replace(theirs, ours)
    return code


def commands(code: str) -> list[str]:
    """Return what stands behind `$`, without its comments; the other lines are answers."""
    lines = (line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ "))
    return [_COMMENT.sub("", line) for line in lines]


def run_python(code: str, names: dict[str, Any]) -> Any:
    """Run a block among these names; return the value of its last line, if that is one."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "a block of a page", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "its last line", "eval"), names)
