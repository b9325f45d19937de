"""The table is the specification: every step that it has, and every one that it has not."""

import itertools
from pathlib import Path

import pytest

from transactions.errors import IllegalTransitionError
from transactions.two_phase import TABLE, Event, Lifecycle, State, diagram, next_state

TERMINAL = {State.COMMITTED, State.HEALED, State.GIVEN_UP, State.ABORTED}


def test_every_state_has_a_row_and_terminal_rows_are_empty():
    assert set(TABLE) == set(State)
    assert {state for state, row in TABLE.items() if not row} == TERMINAL


def test_every_event_is_used():
    assert {event for row in TABLE.values() for event in row} == set(Event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_a_step_is_taken_or_refused_and_a_refusal_changes_nothing(state, event):
    walk = Lifecycle("app.log.1.p.0", state)
    if event in TABLE[state]:
        assert walk.advance(event) is TABLE[state][event]
        return
    with pytest.raises(IllegalTransitionError, match=r"app\.log\.1\.p\.0"):
        walk.advance(event)
    assert walk.state is state


def test_after_the_decision_no_way_leads_to_aborted():
    """A decided transaction ends committed or healed: nothing is logged and dropped."""
    reached, todo = set(), [State.DECIDED]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += TABLE[state].values()
    assert State.ABORTED not in reached
    assert State.OPEN not in reached
    assert reached & TERMINAL == {State.COMMITTED, State.HEALED, State.GIVEN_UP}


def test_before_the_decision_nothing_can_commit():
    for state in (State.IDLE, State.OPEN, State.PREPARED):
        for event in (Event.ACKNOWLEDGE, Event.PROVE_COMMITTED):
            with pytest.raises(IllegalTransitionError):
                next_state(state, event)


def test_the_page_shows_the_generated_diagram():
    page = Path(__file__).parents[2] / "docs/how_it_works.md"
    assert diagram() in page.read_text(encoding="utf-8")
