"""What an older driver wrote over after a decision is brought back; other pipelines' files stay.

With two real drivers: `integration/test_held_plans.py`.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from connectors.spark.checkpoint_files import bring_back
from connectors.spark.query_files import FolderFiles
from tests.unit.samples import decision
from tests.unit.test_fitted_offsets import FACTS, batch
from transactions.log_state import LogState

START, END, OTHER = (f'{{"in":{{"0":{at}}}}}' for at in (3, 7, 9))
DECIDED = dataclasses.replace(decision(7), start_offsets=(START, ""), end_offsets=(END, END))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    batch(tmp_path, 6, START, "-")
    batch(tmp_path, 7, END, END)
    _name(tmp_path, DECIDED.query_id)
    return tmp_path


def _name(checkpoint: Path, query_id: str) -> None:
    (checkpoint / "spark" / "metadata").write_text(f'{{"id":"{query_id}"}}')


def _texts(checkpoint: Path) -> dict[str, str]:
    spark = checkpoint / "spark"
    names = ("metadata", "offsets/6", "offsets/7")
    return {name: (spark / name).read_text() for name in names if (spark / name).exists()}


@pytest.mark.parametrize(
    "replaced", [{6: (OTHER, "-")}, {6: (START, OTHER)}, {7: (OTHER, END)}, {7: (END, "-")}]
)
def test_offsets_are_those_of_the_decision(checkpoint, replaced, caplog):
    right = _texts(checkpoint)
    for number, lines in replaced.items():
        batch(checkpoint, number, *lines)
    bring_back(FolderFiles(checkpoint), DECIDED)
    assert _texts(checkpoint) == right
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert f"offsets/{next(iter(replaced))}" in caplog.text
    before = (checkpoint / "spark/offsets/7").stat().st_ino
    bring_back(FolderFiles(checkpoint), DECIDED)
    assert (checkpoint / "spark/offsets/7").stat().st_ino == before
    assert len(caplog.records) == 1


def test_the_name_of_the_query_is_that_of_the_decision(checkpoint):
    right = _texts(checkpoint)
    _name(checkpoint, "another")
    bring_back(FolderFiles(checkpoint), DECIDED)
    assert _texts(checkpoint) == right


@pytest.mark.parametrize(("generation", "is_mended"), [(0, True), (1, False)])
def test_a_start_mends_the_plan_of_a_decision_on_these_files(checkpoint, generation, is_mended):
    """A savepoint that was restored since then may have other topics, or other sources."""
    right = _texts(checkpoint)
    batch(checkpoint, 7, OTHER, END)
    FolderFiles(checkpoint).begin_run(LogState(decision=DECIDED, generation=generation))
    assert (_texts(checkpoint) == right) is is_mended


def test_the_same_offsets_in_other_words_or_places_stay(checkpoint):
    batch(checkpoint, 6, START)
    batch(checkpoint, 7, '{"in": {"0": 7}}')
    before = _texts(checkpoint)
    bring_back(FolderFiles(checkpoint), dataclasses.replace(DECIDED, start_offsets=(START, START)))
    assert _texts(checkpoint) == before


def test_files_of_another_pipeline_stay(checkpoint):
    _name(checkpoint, "another")
    batch(checkpoint, 7, OTHER, OTHER)
    before = _texts(checkpoint)
    bring_back(FolderFiles(checkpoint), DECIDED)
    assert _texts(checkpoint) == before


@pytest.mark.parametrize("query_id", ["another", DECIDED.query_id])
def test_what_is_not_there_or_of_another_format_stays(checkpoint, query_id):
    _name(checkpoint, query_id)
    (checkpoint / "spark/offsets/6").unlink()
    (checkpoint / "spark/offsets/7").write_text(f"v2\n{FACTS}\n0:{OTHER}")
    before = _texts(checkpoint)
    bring_back(FolderFiles(checkpoint), DECIDED)
    assert _texts(checkpoint) == before


def test_before_the_first_batch_there_is_no_plan(tmp_path):
    batch(tmp_path, 0, OTHER)
    bring_back(FolderFiles(tmp_path), dataclasses.replace(DECIDED, checkpoint_id=0))
    assert (tmp_path / "spark/offsets/0").read_text().splitlines()[2:] == [END, END]
