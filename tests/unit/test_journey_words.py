"""What a journey asserts at its end fails for each kind of wrong output."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.testing.auditor.reader import Record
from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, MODES, Stranger


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Stranger:
    came = [
        Record("out", 0, offset, 0, None, value.encode())
        for offset, value in enumerate(request.param.split())
    ]
    monkeypatch.setattr(Stranger, "reads_output", lambda _: came)
    return Stranger("nobody:1", Path(), "in", "out", "app")


@pytest.mark.parametrize("stranger", ["0-0 1-0 0-1 1-1 0-2", "1-1 1-0"], indirect=True)
def test_each_record_once_from_the_first_on_in_any_order(stranger):
    stranger.assert_each_record_came_once()


@pytest.mark.parametrize(
    ("stranger", "wrong"),
    [
        ("0-0 0-1 0-1 0-2", "1 twice"),
        ("0-0 0-2", "1 lost"),
        ("0-1 0-2", "begins with record 1"),
        ("0-0 1-5", "partition 1 begins with record 5"),
        ("", "nothing came out"),
    ],
    indirect=["stranger"],
)
def test_anything_else_fails(stranger, wrong):
    with pytest.raises(AssertionError, match=wrong):
        stranger.assert_each_record_came_once()


@pytest.mark.parametrize("stranger", ["0-7 0-8"], indirect=True)
def test_where_it_may_begin_is_said(stranger):
    stranger.assert_each_record_came_once({0: range(5, 9)})
    for begins in (range(8, 12), range(7)):
        with pytest.raises(AssertionError, match="begins with record 7"):
            stranger.assert_each_record_came_once({0: begins})


@MODES
def test_a_script_is_made_of_the_snippets_of_the_pages(mode, tmp_path):
    text = Stranger("nobody:1", tmp_path, "in", "out", "app").script(mode).read_text("utf-8")
    compile(text, "flights.py", "exec")
    assert ('mode="continuous"' in text) == (mode == CONTINUOUS)
    assert ("driver.run()" in text) == (mode == MICRO_BATCH)
    assert "localhost" not in text
