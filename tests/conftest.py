"""What every tier shares: closing lines that name the brokers, and count what was left out."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

# How long one example takes says more of the machine than of the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# A pipeline that a test starts lives for seconds: the second compiler of its JVM would take a fifth
# of its CPU time, and several collectors give nothing back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

pytest_plugins = ["tests.shared_broker", "tests.parity.report"]

BROKERS_THAT_RAN: pytest.StashKey[dict[str, str]] = pytest.StashKey()
#: How many tests with the marker `long` a choice by markers left out.
LEFT: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BROKERS_THAT_RAN] = {}
    config.stash[LEFT] = 0
    if any("::" in one for one in config.args):
        config.option.markexpr = config.option.markexpr.replace("not long", "")  # it is named


@pytest.hookimpl(trylast=True)  # what is left out is no part of a share
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each process of pytest-xdist begins with an equal share of the list, and takes from the end
    of another one's when it is through. So what begins a share mostly stays in its process. Tests
    with a Spark session are there in every second process: a session costs forty seconds of CPU.
    Journeys begin the last one: a run that ends with the longest tests ends with idle processes.
    """
    shares: int = getattr(config, "workerinput", {}).get("workercount", 1)
    sessions = [item for item in items if _has_session(item)]
    journeys = [item for item in items if "journeys" in item.path.parts]
    first = {*sessions, *journeys}
    others = [item for item in items if item not in first]
    begins: list[list[pytest.Item]] = [[] for _ in range(shares)]
    begins[-1] = journeys
    in_each = -(-len(sessions) // max(1, shares // 2))
    for share in range(max(1, shares // 2)):
        begins[share] = [*sessions[share * in_each :][:in_each], *begins[share]]
    tests = len(items)
    items.clear()
    for share, begin in enumerate(begins):
        size = (tests - len(items)) // (shares - share)
        fill = max(0, size - len(begin))
        items += begin + others[:fill]
        del others[:fill]
    items += others


def _has_session(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ()) and not {"unit", "journeys"} & {
        *item.path.parts
    }


def pytest_collection_finish() -> None:
    """What is there now stays: thousands of tests, and modules. Each collection of garbage would
    look at all of it again, a third of a second.
    """
    gc.collect()
    gc.freeze()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT] += item.get_closest_marker("long") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process of xdist hands what it saw to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["brokers"] = session.config.stash[BROKERS_THAT_RAN]
        output["left"] = session.config.stash[LEFT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect what a worker process of xdist handed over; each of them collects all tests."""
    output = getattr(node, "workeroutput", {})
    stash = node.config.stash
    for kind, what in output.get("brokers", {}).items():
        stash[BROKERS_THAT_RAN].setdefault(kind, what)
    stash[LEFT] = max(stash[LEFT], output.get("left", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = terminalreporter.config.stash[BROKERS_THAT_RAN]
    terminalreporter.section("brokers")
    for kind, what in ran.items():
        terminalreporter.line(f"{kind}: {what}")
    if not ran:
        terminalreporter.line("no shared broker was started")
    if left := terminalreporter.config.stash[LEFT]:
        terminalreporter.section("left out")
        terminalreporter.line(f"{left} tests with the marker `long`: make test-all runs them too")
