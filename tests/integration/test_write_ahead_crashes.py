"""A driver is killed at every moment of a checkpoint, and started again until its input is done.

The target is read by this process: a file of lines as a target without transactions, tables of
SQLite and PostgreSQL as targets with. The plain one shows duplicates in exactly the two windows
that connectors/wal/write_ahead_sink.py names, and nowhere else; the others show none at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.integration.job_process import PATIENCE_S
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.integration.write_ahead_main import PER_BATCH, TOTAL, numbers_of
from tests.tiers import long, sampled

ROOT = Path(__file__).parents[2]
KINDS = ("plain", "sqlite", "postgres")
WITH_TRANSACTIONS = ("sqlite", "postgres")
TABLE = "CREATE TABLE numbers (written bigserial, n bigint NOT NULL)"
#: In the third checkpoint of the first run; that run has three subtasks.
KILLED_IN, SUBTASKS = 2, 3

POINTS = (
    "batch_started",
    "records_queued",
    "records_flushed",
    "offsets_sent",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "one_committed",
    "all_committed",
    "batch_finished",
)
#: Before the decision, and behind it: nothing is sent, one subtask is, all are.
ONE_OF_EACH_CLASS = ("records_flushed", "decision_durable", "one_committed", "all_committed")
RECOVERY = ("recovery_fenced", "recovery_settled")
HEALING = ("heal_started", "heal_produced", "heal_durable", "heal_committed")


def run(folder: Path, kind: str, **crash_at: str) -> int:
    """Start the driver; return 0 for done, or minus the signal that killed it."""
    once = folder / f"crashed-{len(list(folder.glob('started-*')))}"
    (folder / once.name.replace("crashed", "started")).touch()
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.write_ahead_main", str(folder), kind],
        env=os.environ | crash_at | {"SPARKONCE_CRASH_ONCE": str(once)},
        cwd=ROOT,
        check=False,
        timeout=PATIENCE_S,
    )
    assert once.exists() == bool(crash_at), "the moment was not reached"
    return done.returncode


def killed(folder: Path, kind: str, *, point: str = "", moment: str = "") -> None:
    variables = {"SPARKONCE_CRASH_AT": point} if point else {"WRITE_AHEAD_CRASH_AT": moment}
    assert run(folder, kind, **variables) == -signal.SIGKILL


def written(folder: Path, kind: str) -> list[int]:
    """What a reader of the target sees, in the order of its writes."""
    if kind == "plain":
        lines = (folder / "target.jsonl").read_text().splitlines()
        return [json.loads(line)[2] for line in lines]
    if kind == "postgres":
        with psycopg.connect(os.environ["WRITE_AHEAD_DATABASE"]) as connection:
            rows = connection.execute("SELECT n FROM numbers ORDER BY written").fetchall()
        return [row[0] for row in rows]
    with contextlib.closing(sqlite3.connect(folder / "target.db")) as database:
        return [row[0] for row in database.execute("SELECT n FROM rows ORDER BY rowid")]


def doubled(folder: Path, kind: str) -> list[int]:
    """Return the duplicates; nothing may be lost or foreign, and no checkpoint may overtake."""
    found = written(folder, kind)
    assert set(found) == set(range(TOTAL))
    checkpoints = [number // PER_BATCH for number in found]
    assert checkpoints == sorted(checkpoints)
    return sorted((Counter(found) - Counter(range(TOTAL))).elements())


def nothing_is_left(folder: Path) -> bool:
    return not list(folder.glob("buffer/**/*.arrow"))


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of its own, for the tests that need one."""
    if "postgres" in request.node.name:
        made: PostgresDatabase = request.getfixturevalue("postgres")
        made.execute(TABLE)
        monkeypatch.setenv("WRITE_AHEAD_DATABASE", made.conninfo)


@pytest.mark.parametrize("kind", sampled(KINDS, "postgres"))
def test_without_a_crash(tmp_path: Path, kind: str):
    assert run(tmp_path, kind) == 0
    assert doubled(tmp_path, kind) == []
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("kind", sampled(KINDS, "plain"))
@pytest.mark.parametrize("point", sampled(POINTS, *ONE_OF_EACH_CLASS))
def test_killed_at_a_point_of_the_protocol_nothing_is_lost_or_doubled(
    tmp_path: Path, kind: str, point: str
):
    killed(tmp_path, kind, point=f"{point}@{KILLED_IN}")
    assert run(tmp_path, kind) == 0
    assert doubled(tmp_path, kind) == []
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("kind", sampled(KINDS, "plain"))
@pytest.mark.parametrize(
    "point", sampled(["recovery_fenced", "recovery_settled"], "recovery_settled")
)
def test_killed_while_it_recovers(tmp_path: Path, kind: str, point: str):
    killed(tmp_path, kind, point=f"decision_durable@{KILLED_IN}")
    killed(tmp_path, kind, point=point)
    assert run(tmp_path, kind) == 0
    assert doubled(tmp_path, kind) == []
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("kind", sampled(KINDS, "plain"))
@pytest.mark.parametrize("point", sampled(HEALING, "heal_durable"))
def test_killed_while_a_lost_buffer_is_healed(tmp_path: Path, kind: str, point: str):
    """One of the decided buffers is gone; the engine's replay writes it, and only it, again."""
    killed(tmp_path, kind, point=f"decision_durable@{KILLED_IN}")
    kept = sorted(tmp_path.glob("buffer/out/*.1.arrow"))
    assert len(kept) == 1
    kept[0].unlink()
    killed(tmp_path, kind, point=f"{point}@{KILLED_IN}")
    assert run(tmp_path, kind) == 0
    assert doubled(tmp_path, kind) == []
    assert nothing_is_left(tmp_path)


def at(moment: str) -> str:
    return f"{moment}@{KILLED_IN}.1"


def test_the_first_window_killed_inside_send_values(tmp_path: Path):
    """A plain target keeps what it took of the buffer, and is sent all of it again."""
    killed(tmp_path, "plain", moment=at("sending"))
    assert run(tmp_path, "plain") == 0
    mine = list(numbers_of(KILLED_IN, 1, SUBTASKS))
    assert doubled(tmp_path, "plain") == mine[: len(mine) // 2] != []


@long
def test_the_second_window_killed_between_send_values_and_the_mark(tmp_path: Path):
    """A plain target has all of the buffer, and is sent all of it again."""
    killed(tmp_path, "plain", moment=at("sent"))
    assert run(tmp_path, "plain") == 0
    assert doubled(tmp_path, "plain") == list(numbers_of(KILLED_IN, 1, SUBTASKS))


@long
def test_behind_the_mark_there_is_no_window(tmp_path: Path):
    """The buffer is still there, and is not sent again: its subtask is marked, the next is not."""
    killed(tmp_path, "plain", moment=at("marked"))
    assert len(list(tmp_path.glob("buffer/out/*.[012].arrow"))) == 2
    assert run(tmp_path, "plain") == 0
    assert doubled(tmp_path, "plain") == []
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("kind", sampled(WITH_TRANSACTIONS, "postgres"))
@pytest.mark.parametrize("moment", sampled(["sending", "sent", "marked"], "sent"))
def test_rows_and_mark_in_one_transaction_leave_no_window(tmp_path: Path, moment: str, kind: str):
    killed(tmp_path, kind, moment=at(moment))
    assert run(tmp_path, kind) == 0
    assert doubled(tmp_path, kind) == []
    assert nothing_is_left(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again(tmp_path: Path, kind: str):
    """Every start dies at another moment; each one of the plain windows doubles what it says."""
    killed(tmp_path, kind, moment="sending@0.2")
    killed(tmp_path, kind, moment="sent@0.2")
    killed(tmp_path, kind, point="recovery_settled")
    killed(tmp_path, kind, moment="marked@1.0")
    killed(tmp_path, kind, point="offsets_sent@2")
    killed(tmp_path, kind, point="all_committed@3")
    assert run(tmp_path, kind) == 0
    last = list(numbers_of(0, 2, SUBTASKS))
    windows = [*last[: len(last) // 2], *last] if kind == "plain" else []
    assert doubled(tmp_path, kind) == sorted(windows)
    assert nothing_is_left(tmp_path)
