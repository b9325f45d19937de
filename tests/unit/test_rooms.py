"""The READMEs of the packages say where everything is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_room_of_connectors_is_described():
    rooms = {path.parent.name for path in (ROOT / "connectors").glob("*/__init__.py")}
    assert described("connectors") == rooms


def test_each_file_of_transactions_is_described():
    files = {path.stem for path in (ROOT / "transactions").glob("*.py")} - {"__init__"}
    assert described("transactions") == files | {"testing"}


def test_no_file_lies_loose():
    assert [path.name for path in (ROOT / "connectors").glob("*.py")] == ["__init__.py"]


def test_no_room_is_above_a_fifth():
    lines = {
        room.name: sum(len(file.read_text("utf-8").splitlines()) for file in room.rglob("*.py"))
        for room in (ROOT / "connectors").iterdir()
        if room.is_dir()
    }
    assert max(lines.values()) < sum(lines.values()) / 5, lines


def described(package: str) -> set[str]:
    text = (ROOT / package / "README.md").read_text("utf-8")
    first = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
