"""What every tier shares: closing lines that name the brokers, and count what was left out."""

from __future__ import annotations

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The journeys first: a run that ends with the longest tests ends with idle processes."""
    items.sort(key=lambda item: "journeys" not in item.path.parts)


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
