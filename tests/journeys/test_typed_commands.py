"""A stranger types what README and docs say, line by line, and gets what they say.

`flights.toml` is the README's. The topics and folders have the names of the pages.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from connectors.testing.auditor.reader import Follower, assert_no_open_transaction, read_committed
from tests.journeys.conftest import PATIENCE_S, Process
from tests.journeys.terminal import Terminal, terminal  # noqa: F401 - a fixture
from tests.pages import block, commands
from tests.tiers import long

UP, FILL, RUN, VERIFY = commands(block("README.md", "sparkonce kafka up"))
FLIGHTS = block("README.md", "[app]")
WRITER = block("README.md", "Producer(")
TRANSACTION = re.compile(r"flights\.\w{8}\.1\.\w{8}\.\d")


def assert_each_came_once(terminal: Terminal, numbers: range) -> None:
    """Read what a consumer of committed records sees, with the README's transform on it."""
    assert_no_open_transaction(terminal.bootstrap, "flights-clean")
    seen = read_committed(terminal.bootstrap, "flights-clean")
    assert Counter((one.key, one.value) for one in seen) == Counter(
        (b"k%d" % number, b"V%d" % number) for number in numbers
    )


def first_columns(table: str, columns: int) -> list[tuple[str, ...]]:
    """Return what stands in the first columns of the rows of a printed table."""
    rows = [line.strip("│┃").split("│") for line in table.splitlines() if line[:1] == "│"]
    found = [tuple(cell.strip() for cell in row[:columns]) for row in rows]
    return [row for row in found if row[0]]  # a long text goes on in the next line


def test_the_readmes_commands(terminal: Terminal):
    """Start a Kafka, fill a topic, run the job file, stop it with ctrl-C, prove the result."""
    assert block("docs/getting_started.md", "[app]") == FLIGHTS
    assert block("docs/getting_started.md", "Producer(") == WRITER
    assert commands(block("docs/getting_started.md", "kafka up")) == [UP]
    assert commands(block("docs/getting_started.md", "run flights.toml")) == [FILL, RUN]
    assert commands(block("docs/getting_started.md", "verify")) == [VERIFY]
    run_again, check = commands(block("docs/running.md", "sparkonce run"))
    verify_again, by_hand = commands(block("docs/running.md", "sparkonce verify --job"))
    assert (run_again, verify_again) == (RUN, VERIFY)

    terminal.writes("flights.toml", FLIGHTS)
    assert terminal.types(check) == "flights: flights -> flights-clean\n"
    terminal.types(UP)
    terminal.writes("fill.py", WRITER)
    terminal.types(FILL)
    with terminal.starts(RUN) as pipeline, Follower(terminal.bootstrap, "flights-clean") as reader:
        reader.until(lambda seen: len(seen) == 100, timeout=PATIENCE_S)
        terminal.produces("flights", range(100, 150))
        reader.until(lambda seen: len(seen) == 150, timeout=PATIENCE_S)
        assert pipeline.ctrl_c() == 0, pipeline.text
    assert_each_came_once(terminal, range(150))

    assert "exactly once" in terminal.types(VERIFY)
    by_hand = by_hand.replace("HOST:PORT", terminal.bootstrap)
    assert "exactly once" in terminal.types(by_hand.replace("FOLDER", "checkpoints/flights"))

    shown = block("docs/operations.md", "sparkonce doctor --bootstrap")
    (doctor,) = commands(shown)
    assert first_columns(terminal.types(doctor), 2) == first_columns(shown, 2)


@long
@pytest.mark.timeout(600)
def test_the_commands_of_an_operator_and_of_a_move(terminal: Terminal):
    """A driver dies between decision and commit; a person commits. Then the pipeline moves."""
    terminal.types(UP)
    for name in ("flights.toml", "job.toml"):  # the pages have two names for this job
        terminal.writes(name, FLIGHTS)
    terminal.produces("flights", range(100))
    refused = block("docs/operations.md", "transactions abort")
    _, _, run = commands(refused)
    with terminal.starts(run, SPARKONCE_CRASH_AT="decision_durable") as pipeline:
        assert pipeline.ends() == -signal.SIGKILL, pipeline.text
    a_person_looks_and_commits(terminal, refused)
    assert_each_came_once(terminal, range(100))

    with Follower(terminal.bootstrap, "flights-clean") as reader:
        with terminal.starts(run) as pipeline:
            terminal.produces("flights", range(100, 150))
            reader.until(lambda seen: len(seen) == 150, timeout=PATIENCE_S)
            it_moves(terminal, pipeline)
        assert_each_came_once(terminal, range(250))


def a_person_looks_and_commits(terminal: Terminal, refused: str) -> None:
    """Each answer is that of the page, with other numbers in it."""
    shown_all = block("docs/operations.md", "transactions list")
    shown_one = block("docs/operations.md", "transactions describe")
    abort, commit, _ = commands(refused)
    (list_all,), (describe,) = commands(shown_all), commands(shown_one)
    (markers,) = commands(block("docs/operations.md", "transactions write-markers"))
    (page_one,) = set(TRANSACTION.findall(describe))

    def type_here(command: str, *, ends_with: int = 0) -> str:
        command = command.replace("state/flights", "checkpoints/flights").replace(page_one, one)
        return terminal.types(command, ends_with=ends_with)

    one = page_one
    table = type_here(list_all)
    (header,) = (line for line in shown_all.splitlines() if line[:1] == "┃")
    assert all(column.strip() in table for column in header.split("┃"))
    one = min(TRANSACTION.findall(table))
    assert first_columns(type_here(describe), 1) == first_columns(shown_one, 1)
    told = type_here(abort, ends_with=2)
    assert refused.replace(page_one, one).splitlines()[1:5] == told.splitlines()
    told = type_here(commit)
    assert "fencing run 1 of flights (" in told
    assert told.endswith("2 transaction(s) committed.\n")
    assert type_here(markers) == "Nothing is hidden.\n"


def it_moves(terminal: Terminal, pipeline: Process) -> None:
    """A savepoint is taken while it runs; one is taken with its stop, and goes on elsewhere."""
    shown = block("docs/savepoints.md", "savepoint list")
    take, take_and_stop, list_them, show, move, delete = commands(shown)
    short = block("docs/getting_started.md", "sparkonce savepoint take")
    assert commands(short) == [take_and_stop, move]
    first, last = (command.split()[-1] for command in (delete, show))
    printed = [line for line in shown.splitlines() if line[:1] != "$"]
    assert printed == [f"/srv/jobs/{first}", f"/srv/jobs/{last}"]

    kept = terminal.types(take).strip()
    terminal.produces("flights", range(150, 200))
    left_with = terminal.types(take_and_stop).strip()
    assert pipeline.ends() == 0, pipeline.text
    for place in (kept, left_with):
        assert re.fullmatch(rf"{terminal.folder}/savepoints/flights-\d+-[0-9a-f]{{8}}", place)
        assert Path(place).name in terminal.types(list_them)
    assert "flights" in terminal.types(show.replace(last, left_with))

    checkpoint = 'checkpoint = "checkpoints/flights"'
    terminal.writes("moved.toml", FLIGHTS, {checkpoint: 'checkpoint = "moved"'})
    with (
        Follower(terminal.bootstrap, "flights-clean") as reader,
        terminal.starts(move.replace(last, left_with)) as moved,
    ):
        terminal.produces("flights", range(200, 250))
        reader.until(lambda seen: len(seen) == 250, timeout=PATIENCE_S)
        assert moved.sigterm() == 0, moved.text
    terminal.types(delete.replace(first, kept), answer="y\n")
    assert Path(kept).name not in terminal.types(list_them)
