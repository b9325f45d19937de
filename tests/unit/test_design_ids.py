"""docs/design.md stays true: what the files refer to is in it, and what it names is in the files.

A reference is "rule 7", "finding B1", "hole C17", or the id of a scenario ("X16"), in a text or in
the name of a test. A file is named in backticks; functions that are named behind it, in
parentheses, are defined in it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs/design.md"
FOLDERS = ("connectors", "transactions", "tests", "docs", "examples")
MOST_FILES_OF_A_WALK = 12

RULES, FINDINGS, HOLES, SCENARIOS = "rule", "finding", "hole", "scenario"
ANY_ID = (FINDINGS, HOLES, SCENARIOS)

#: "A3", "A3 and B1", "F6 to F8"; behind one of these words it is of one table only.
_ID = r"[A-FKPSWX][0-9]{1,2}"
_JOINED = r"(?:(?:,| and|,? or| to)\s+{0})*"
_WORD = {
    RULES: re.compile(rf"\b[Rr]ules?\s+([0-9]{{1,2}}{_JOINED.format('[0-9]{1,2}')})\b"),
    FINDINGS: re.compile(rf"\b[Ff]indings?\s+({_ID}{_JOINED.format(_ID)})\b"),
    HOLES: re.compile(rf"\b[Hh]oles?\s+({_ID}{_JOINED.format(_ID)})\b"),
}
_BARE = re.compile(rf"(?<![\w.\"'/=-])({_ID}(?:\s+to\s+{_ID})?)(?![\w/=-])")
_RANGE = re.compile(r"([A-Z]?)([0-9]+)\s+to\s+[A-Z]?([0-9]+)")
#: A test, or one of its cases: ``test_rule_1_x13_x21_a_sweep``, ``"k3_one_of_each_class"``.
_NAMES = (
    re.compile(r"\btest_((?:rule_[0-9]+|[a-fkpswx][0-9]{1,2})(?:_(?:[a-fkpswx][0-9]{1,2}))*)_"),
    re.compile(r"[\"\[]((?:[a-fkpswx][0-9]{1,2}_)+)[a-z]"),
)
_PERCENTILE = re.compile(r"p(50|90|95|99)")
#: A word that looks like an id: Amazon's object store.
_NO_IDS = {"S3"}
#: Documents that nobody has: a section of one, or an issue (those of libraries have four digits).
_ELSEWHERE = re.compile(r"\bdesign section\b|\b[Ss]ection [0-9]+, rule\b|\b[Ii]ssue [0-9]{1,3}\b")

_PATH = re.compile(r"`((?:connectors|transactions|tests|docs|examples)/[\w./-]+)`")
_DEFINED = re.compile(
    r"`((?:connectors|transactions|tests)/[\w./-]+\.py)`\s+\(((?:`[\w.]+`,?\s*)+)\)"
)


def known_in(text: str) -> dict[str, set[str]]:
    """Read the ids of the tables, by the headings above them."""
    known: dict[str, set[str]] = {
        RULES: set(re.findall(r"^\*\*Rule ([0-9]+)\. ", text, re.MULTILINE))
    }
    for kind in ANY_ID:
        _, found, rest = text.partition(f"\n### {kind.capitalize()}s\n")
        assert found, f"docs/design.md has no table of {kind}s"
        table = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
        rows = re.findall(rf"^\| ({_ID}) \|", table, re.MULTILINE)
        assert len(rows) == len(set(rows)), f"a {kind} stands twice in docs/design.md"
        known[kind] = set(rows)
    return known


def expanded(text: str) -> Iterator[str]:
    """Yield each id or number of a list; all of a range."""
    for letter, first, last in _RANGE.findall(text):
        yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))
    yield from re.findall(rf"{_ID}|\b[0-9]+\b", text)


def references_in(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield what is referred to: the kind ("" for any), the id, and the place in the text."""
    for kind, pattern in _WORD.items():
        for match in pattern.finditer(text):
            yield from ((kind, one, match.start()) for one in expanded(match[1]))
    for match in _BARE.finditer(text):
        yield from (("", one, match.start()) for one in expanded(match[1]) if one not in _NO_IDS)
    for pattern in _NAMES:
        for match in pattern.finditer(text):
            name = match[1].removeprefix("rule_")
            for part in filter(None, name.split("_")):
                if part.isdecimal():
                    yield RULES, part, match.start()
                elif not _PERCENTILE.fullmatch(part):
                    yield "", part.upper(), match.start()


def unresolved(text: str, known: dict[str, set[str]]) -> list[str]:
    """Return the references of a text that docs/design.md does not explain, with their lines."""
    wrong = []
    for kind, one, place in references_in(text):
        tables = (kind,) if kind else ANY_ID
        if not any(one in known[table] for table in tables):
            wrong.append(f"line {text.count(chr(10), 0, place) + 1}: {kind} {one}")
    return wrong


@functools.cache
def design() -> str:
    return DESIGN.read_text(encoding="utf-8")


@functools.cache
def texts() -> dict[str, str]:
    files = [ROOT / "README.md"]
    for folder in FOLDERS:
        files += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]
    found = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    del found[Path(__file__).relative_to(ROOT).as_posix()]  # it has wrong ones on purpose
    return found


def test_every_reference_is_explained_in_the_design():
    known = known_in(design())
    assert known[RULES] == {str(number) for number in range(1, 15)}
    wrong = {name: found for name, text in texts().items() if (found := unresolved(text, known))}
    assert not wrong


def test_references_are_found_at_all():
    found = [
        (kind, one)
        for name, text in texts().items()
        if name != "docs/design.md"
        for kind, one, _ in references_in(text)
    ]
    assert len(found) > 500
    assert {"3", "5", "7", "14"} <= {one for kind, one in found if kind == RULES}
    assert {"B1", "E1"} <= {one for kind, one in found if kind == FINDINGS}
    assert "C17" in {one for kind, one in found if kind == HOLES}


@pytest.mark.parametrize(
    "text",
    [
        "see rule 15",
        "rules 3 and 15",
        "# (Rule 0)",
        "finding X7",
        "findings A1 and A11",
        "finding C17",
        "holes C3, C4 and C22",
        "as K26 says",
        "(X24)",
        "F50 to F55",
        "def test_x24_a_late_end_txn():",
        "def test_rule_15_is_kept():",
        "def test_k16_x24_a_broker_is_down():",
        '"k26_sigkill"',
        "`[x4_x24_driver]`",
    ],
)
def test_a_wrong_reference_is_found(text: str):
    assert unresolved(text, known_in(design()))


@pytest.mark.parametrize(
    "text", ["the rules of this file", "S3 answers 409", '"p50_ms"', "UTF8", "0.A5", "x.C99"]
)
def test_what_is_no_reference_is_left_alone(text: str):
    assert not unresolved(text, known_in(design()))


def test_nothing_refers_to_a_document_outside_the_repository():
    for name, text in texts().items():
        found = _ELSEWHERE.search(text)
        assert found is None, f"{name}: {found and found[0]!r}: say it by rule, finding or id"


def test_every_path_in_the_design_exists():
    paths = _PATH.findall(design())
    assert len(paths) > 100
    for path in paths:
        assert (ROOT / path).exists(), path


def test_every_function_in_the_design_is_defined_in_its_file():
    named = _DEFINED.findall(design())
    assert len(named) > 100
    for path, names in named:
        defined = definitions_of(ROOT / path)
        for name in re.findall(r"[\w.]+", names):
            assert name in defined, f"{path} defines no {name}"


def test_no_function_in_the_design_escapes_the_check():
    """Each path that is followed by a name in parentheses has the form that is read above."""
    loose = re.findall(r"`[\w./-]+\.py`\s*\(`", design())
    assert len(loose) == len(_DEFINED.findall(design()))


def test_a_walk_has_no_more_files_than_a_reader_can_keep():
    section = design().partition("\n## 7. ")[2].partition("\n## 8. ")[0]
    walks = section.split("\n### ")[1:]
    assert len(walks) == 4
    for walk in walks:
        steps = re.findall(r"^[0-9]+\. `([\w./]+)` ", walk, re.MULTILINE)
        assert 0 < len(steps) <= MOST_FILES_OF_A_WALK
        assert len(steps) == len(set(steps)), "a walk goes one way"


@functools.cache
def definitions_of(path: Path) -> set[str]:
    """Return the names that a file defines at its top, and ``Class.name`` of its classes."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found
