"""docs/classic_systems.md names tests and examples: each of them exists, and none is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/classic_systems.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
EXAMPLES = ROOT / "examples"


def named_in(cell: str) -> list[tuple[str, str]]:
    """Return file and function of each test in a cell; ``::name`` is of the file before it."""
    found, file = [], ""
    for name in re.findall(r"`(.*?)`", cell):
        match = re.fullmatch(r"([\w/]+\.py)?(?:::(\w+))?", name)
        assert match, f"{name} is no test"
        file = match[1] or file
        found.append((file, match[2] or ""))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_has_an_example_that_a_test_runs_and_failure_tests(row: str):
    *_, example, failures = (cell.strip() for cell in row.strip("|").split("|"))
    shown, _, ran = example.partition(" -> ")
    assert shown, row
    assert named_in(ran), row
    assert named_in(failures), row
    for file, function in named_in(example) + named_in(failures):
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not function or function in names, f"{file} has no {function}"
    for link in re.findall(r"\]\(([^)#]+)", row):
        assert (ROOT / "docs" / link).exists(), link


def test_the_page_of_the_examples_names_each_of_them():
    page = (EXAMPLES / "README.md").read_text("utf-8")
    links = re.findall(r"^\| \[.*?\]\((.*?)\)", page, re.MULTILINE)
    there = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith((".", "__"))}
    assert {link.partition("/")[0] for link in links} == there - {"README.md"}
