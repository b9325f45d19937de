"""The house rules, as tests: sizes, banned calls, public names, and what tests may share.

Who may import whom is in pyproject.toml (`tool.importlinter`); `make lint` checks it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("transactions", "connectors")
FILES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
MOST_LINES, MOST_FUNCTION_LINES = 430, 70

#: Banned call -> what to use; the one file that may make it.
BANNED = {
    "time.time": ("transactions.clock", "transactions/clock.py"),
    "time.sleep": ("transactions.clock", "transactions/clock.py"),
    "random.random": ("secrets, or a seeded generator that is passed in", ""),
    "print": ("click.echo, rich or logging", ""),
}
#: It runs as a script of its own beside the broker, with the standard library only.
STANDALONE = {"connectors/cluster/process_keeper.py"}
#: It judges the product, so it shares nothing with it, not even the clock.
AUDITOR = "connectors/testing/auditor/"

#: What a user's tests inherit: it has Arrow and pytest, and nothing in production imports it.
CONTRACT = "transactions/testing/"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in imports_of(path))


def test_production_imports_nothing_that_tests():
    for path in FILES:
        name = name_of(path)
        if not name.startswith(CONTRACT):
            assert not uses(path, "transactions.testing"), f"{name} imports what tests a sink"
        if not name.startswith((CONTRACT, "connectors/testing/")):
            assert not uses(path, "pytest"), f"{name} imports pytest"


def test_the_auditor_imports_nothing_of_ours():
    files = [path for path in FILES if name_of(path).startswith(AUDITOR)]
    assert len(files) >= 3
    for path in files:
        for name in imports_of(path):
            own = name.startswith("connectors.testing.auditor")
            package = name.partition(".")[0]
            standard = package in sys.stdlib_module_names
            assert own or standard or package == "confluent_kafka", f"{name_of(path)}: {name}"


def test_the_two_phase_table_does_no_io():
    allowed = {"__future__", "enum", "collections.abc", "types", "typing", "transactions.errors"}
    modules = {
        node.module
        for node in ast.walk(ast.parse((ROOT / "transactions/two_phase.py").read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    } | {name for name in imports_of(ROOT / "transactions/two_phase.py") if "." not in name}
    assert modules <= allowed


def test_sizes():
    for path in FILES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MOST_LINES, f"{name_of(path)} has {lines} lines"
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                lines -= (ast.get_docstring(node, clean=False) or "").count("\n")
                assert lines <= MOST_FUNCTION_LINES, f"{name_of(path)}: {node.name}: {lines} lines"


def test_banned_calls():
    for path in FILES:
        name = name_of(path)
        if name in STANDALONE or name.startswith(AUDITOR):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                instead, allowed = BANNED.get(call, ("", name))
                assert name == allowed, f"{name}:{node.lineno}: {call}: use {instead}"


@pytest.mark.parametrize(
    "module",
    [
        "transactions",
        "transactions.testing",
        "connectors",
        "connectors.cluster",
        "connectors.files",
        "connectors.postgres",
        "connectors.spark",
        "connectors.wal",
    ],
)
def test_public_names_are_sorted_and_real(module: str):
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == loaded.__all__
    for name in loaded.__all__:
        documented = getattr(loaded, name).__doc__
        assert documented, f"{module}.{name} has no docstring"


def test_no_module_is_named_after_nothing():
    for path in FILES:
        assert path.stem not in {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
