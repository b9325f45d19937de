"""Parts of `connectors.testing` that need no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.options.modes import check_options
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from connectors.testing import child
from connectors.testing.auditor import audit as audits
from connectors.testing.auditor.audit import Audit
from connectors.testing.auditor.checkers import Expected, History, Seen, judge
from connectors.testing.auditor.reader import Record
from connectors.testing.jobs import Order, describe, python_path
from connectors.testing.pipeline import Pipeline
from transactions.errors import ConfigurationError

HEAVY = {"pyspark", "confluent_kafka", "kafka", "pyarrow", "numpy", "testcontainers", "psutil"}


def record(key: bytes | None, value: bytes | None, **headers: bytes) -> Record:
    return Record("t", 0, 7, 0, key, value, tuple(headers.items()))


def audit_of(seen: list[int], expected: int) -> Audit:
    history = History(
        tuple(Expected(n, "source", n) for n in range(expected)),
        tuple(Seen(id_, "out", offset) for offset, id_ in enumerate(seen)),
    )
    return Audit(history, tuple(judge(history)), ("in",), ("out",), ("killed at x; exit -9",))


def test_the_plugin_imports_nothing_heavy():
    """Pytest imports it in every run of every project that has sparkonce installed."""
    code = f"import sys, connectors.testing.plugin; print(sorted({HEAVY} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "[]\n"


def test_crashes_are_drawn_from_points_to_which_every_run_comes(tmp_path: Path, monkeypatch):
    """A healing needs a transaction that the broker has aborted: `kill_at` alone asks for it."""
    drawn: set[str] = set()
    monkeypatch.setattr(Pipeline, "kill_at", lambda _self, *points, **_: drawn.update(points))
    pipeline = Pipeline("job.toml", bootstrap_servers="", folder=tmp_path, app_id="a")
    for seed in range(100):
        pipeline.crashes(seed=seed)
    assert drawn == set(pipeline.crash_points)
    assert not [point for point in drawn if point.startswith("heal_")]


def test_exactly_once_is_no_failure():
    audit_of([0, 1, 2], 3).assert_exactly_once(ordered=True)


def test_order_is_asked_for():
    audit = audit_of([1, 0, 2], 3)
    audit.assert_exactly_once()
    with pytest.raises(AssertionError, match=r"out of order \(1\)"):
        audit.assert_exactly_once(ordered=True)


def test_a_failure_names_what_is_lost_and_twice_up_to_a_bound():
    audit = audit_of([*range(50, 1000), 77, 1234], 1000)
    with pytest.raises(AssertionError) as failed:
        audit.assert_exactly_once()
    text = str(failed.value)
    assert "duplicate (1), lost in the middle (50), foreign value (1)" in text
    assert "lost:       0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 40 more" in text
    assert "duplicated: 77" in text
    assert "foreign:    1234" in text
    assert "killed at x" in text
    assert len(text.splitlines()) < 25


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("key", b"k"),
        ("value", b'{"a": {"b": 5}, "c": "k"}'),
        ("record", (b"k", b'{"a": {"b": 5}, "c": "k"}')),
        ("header:id", b"h"),
        ("header:none", None),
        ("json:a.b", b"5"),
        ("json:c", b"k"),
        ("json:a.c", None),
        ("json:c.b", None),
    ],
)
def test_forms_of_an_identity(form: str, found: object):
    given = record(b"k", b'{"a": {"b": 5}, "c": "k"}', id=b"h")
    assert audits._identify(form)(given) == found


def test_an_unknown_form_and_a_record_without_an_identity():
    with pytest.raises(ValueError, match="known are record, key, value"):
        audits._identify("keys")
    identify = audits._known(audits._identify("json:a"), "id")
    with pytest.raises(AssertionError, match="t-0@7 has no identity; look at id"):
        identify(record(None, b"no json"))


def outer(driver: object) -> None:
    """Stands for a driver function."""


def test_a_job_is_described_by_its_kind(tmp_path: Path):
    job_file = tmp_path / "job.toml"
    job_file.touch()
    assert describe(outer).function == f"{__name__}:outer"
    assert describe("jobs.flights:build").function == "jobs.flights:build"
    assert describe(str(job_file)).job_file == describe(job_file).job_file == str(job_file)
    assert describe(["python", job_file]).command == ("python", str(job_file))


@pytest.mark.parametrize("job", ["flights", "jobs:", "nowhere.toml", lambda driver: None])
def test_what_is_no_job_is_refused(job: object):
    with pytest.raises(ValueError, match=r"neither|no job file|imports only functions"):
        describe(job)  # type: ignore[arg-type]


def test_the_job_finds_the_modules_that_the_test_finds(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = python_path().split(os.pathsep)
    assert found[0] == str(tmp_path)
    assert not [entry for entry in found if entry.endswith("site-packages")]


def test_an_order_comes_back_as_it_was(tmp_path: Path):
    order = Order(
        function="jobs:flights",
        arguments={"most": 40, "source": "flights"},
        bootstrap_servers="b:1",
        app_id="a",
        checkpoint="c",
        trigger="available-now",
        master="",
        restarts=True,
    )
    order.write(tmp_path / "order.json")
    assert Order.read(tmp_path / "order.json") == order


JOB = """
[app]
id = "flights"
checkpoint = "state"
mode = "{mode}"
{trigger}
[source]
kafka.bootstrap.servers = "nobody:1"
subscribe = "in"
[[sink]]
kafka.bootstrap.servers = "nobody:1"
topic = "out"
"""
TO_THE_END, UNTIL_STOPPED = "available-now", "0 seconds"  # `run`, and `run_until`


def options_of_a_run(folder: Path, patch: pytest.MonkeyPatch, job: str, trigger: str) -> object:
    """Return the driver options with which the child runs a job file."""
    (folder / "job.toml").write_text(job)
    order = Order(
        job_file=str(folder / "job.toml"),
        arguments={},
        bootstrap_servers="nobody:1",
        app_id="a",
        checkpoint="c",
        trigger=trigger,
        master="",
        restarts=True,
    )
    run = []
    patch.setattr(child, "run_job", lambda job, **_: run.append(job))
    patch.setattr(child.Stop, "install", lambda _: None)
    child._run_job_file(order)
    (one,) = run
    check_options(one.mode, one.driver)
    return one.driver


@pytest.mark.parametrize("written", ["", f'trigger = "{TO_THE_END}"'])
@pytest.mark.parametrize(
    ("mode", "trigger", "options"),
    [
        (MICRO_BATCH, TO_THE_END, {"trigger": TO_THE_END}),
        (MICRO_BATCH, UNTIL_STOPPED, {"trigger": UNTIL_STOPPED}),
        (CONTINUOUS, TO_THE_END, {"trigger": TO_THE_END}),
        (CONTINUOUS, UNTIL_STOPPED, {}),
    ],
)
def test_the_trigger_of_a_test_replaces_that_of_a_job_file(
    tmp_path: Path, monkeypatch, mode: str, trigger: str, options: object, written: str
):
    """Without it `run` on a job in continuous mode waits for an end that does not come."""
    job = JOB.format(mode=mode, trigger=written)
    assert options_of_a_run(tmp_path, monkeypatch, job, trigger) == options


def test_a_trigger_that_the_continuous_mode_does_not_have_is_refused(tmp_path: Path, monkeypatch):
    with pytest.raises(ConfigurationError, match="no batches"):
        options_of_a_run(
            tmp_path, monkeypatch, JOB.format(mode=CONTINUOUS, trigger=""), "5 seconds"
        )


def test_a_seed_chooses_the_same_points_again(tmp_path: Path):
    chosen = []

    class Recorded(Pipeline):
        def kill_at(self, *points: str, timeout: float = 0.0) -> None:
            chosen.append(points)

    pipeline = Recorded(describe(outer), bootstrap_servers="b:1", folder=tmp_path, app_id="a")
    for seed in (7, 7, 8):
        pipeline.crashes(seed=seed, times=5)
    assert chosen[0] == chosen[1] != chosen[2]
    assert "seed 7 chose" in pipeline.story[0]
