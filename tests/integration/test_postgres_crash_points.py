"""Kill a pipeline into PostgreSQL at every point of the protocol; a reader sees each row once.

The reader is a session of its own. The process that is killed holds driver and tasks, so that a
point of the worker takes the driver along as well.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.postgres_main import PER_BATCH
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.tiers import long, sampled
from transactions import crash_points

ROWS = 4 * PER_BATCH
ROOT = Path(__file__).parents[2]
CHECKPOINT = 1
POINTS = [point for point in crash_points.POINTS if not point.startswith(("heal_", "recovery_"))]
HEALING = crash_points.HEALING_POINTS
RECOVERY = [point for point in crash_points.POINTS if point.startswith("recovery_")]
#: Before the decision, and behind it with nothing committed. `test_a_kill_while_it_recovers` begins
#: with a kill behind the commit.
SAMPLED = ("records_flushed", "decision_durable")
#: From here on the rows of the checkpoint may be visible.
DECIDED = POINTS[POINTS.index("decision_durable") :]


@pytest.fixture
def table(postgres: PostgresDatabase) -> PostgresDatabase:
    """A table without any constraint: a row that is written twice is seen twice."""
    postgres.execute("CREATE TABLE said (id bigint, said text)")
    return postgres


def run(folder: Path, table: PostgresDatabase, crash_at: str = "") -> int:
    """Run the pipeline to its end, or to the point at which it is killed; return its exit code."""
    variables = {"SPARKONCE_CRASH_AT": crash_at} if crash_at else {}
    command = [sys.executable, "-m", "tests.integration.postgres_main"]
    process = subprocess.run(
        [*command, str(folder), table.conninfo, str(ROWS)],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert process.returncode in (0, -signal.SIGKILL), process.stderr.decode()
    return process.returncode


def killed(folder: Path, table: PostgresDatabase, point: str) -> None:
    assert run(folder, table, point) == -signal.SIGKILL, f"{point} was not reached"


def seen(table: PostgresDatabase) -> list[tuple[int, str]]:
    return table.execute("SELECT id, said FROM said ORDER BY id")  # type: ignore[return-value]


def rows(count: int) -> list[tuple[int, str]]:
    return [(number, f"n{number}") for number in range(count)]


def check_end(table: PostgresDatabase) -> None:
    assert seen(table) == rows(ROWS)
    assert table.prepared() == []


@pytest.mark.parametrize("point", sampled(POINTS, *SAMPLED))
def test_a_kill_at_each_point(table, tmp_path, point):
    killed(tmp_path, table, f"{point}@{CHECKPOINT}")
    before, after = rows(CHECKPOINT * PER_BATCH), rows((CHECKPOINT + 1) * PER_BATCH)
    now = seen(table)
    assert now[: len(before)] == before
    if point in DECIDED:
        assert set(now) <= set(after)
        assert len(set(now)) == len(now)
    else:
        assert now == before
    assert run(tmp_path, table) == 0
    check_end(table)


@pytest.mark.parametrize("point", sampled(RECOVERY, "recovery_settled"))
@pytest.mark.parametrize(
    "first", sampled(["offsets_sent", "decision_durable", "one_committed"], "one_committed")
)
def test_a_kill_while_it_recovers(table, tmp_path, first, point):
    killed(tmp_path, table, f"{first}@{CHECKPOINT}")
    killed(tmp_path, table, point)
    assert run(tmp_path, table) == 0
    check_end(table)


@long
@pytest.mark.parametrize("point", ["", *HEALING])
def test_what_an_operator_rolled_back_after_the_decision_is_written_again(table, tmp_path, point):
    """Once the rows of both subtasks, and a kill at each point of healing them."""
    killed(tmp_path, table, f"decision_durable@{CHECKPOINT}")
    for gid in table.prepared():
        table.execute(f"ROLLBACK PREPARED '{gid}'")
    if point:
        killed(tmp_path, table, f"{point}@{CHECKPOINT}")
    assert run(tmp_path, table) == 0
    check_end(table)


@long
@pytest.mark.parametrize("point", ["offsets_sent", "decision_durable", "all_committed"])
def test_the_server_is_killed_along(table, tmp_path, point):
    killed(tmp_path, table, f"{point}@{CHECKPOINT}")
    table.server.kill()
    table.server.start()
    assert run(tmp_path, table) == 0
    check_end(table)
