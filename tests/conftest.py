"""What every tier shares: the closing lines name the brokers on which tests ran."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

# How long one example takes says more of the machine than of the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

BROKERS_THAT_RAN: pytest.StashKey[dict[str, str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BROKERS_THAT_RAN] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process of xdist hands what it saw to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["brokers"] = session.config.stash[BROKERS_THAT_RAN]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect what a worker process of xdist handed over."""
    for kind, what in getattr(node, "workeroutput", {}).get("brokers", {}).items():
        node.config.stash[BROKERS_THAT_RAN].setdefault(kind, what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = terminalreporter.config.stash[BROKERS_THAT_RAN]
    terminalreporter.section("brokers")
    for kind, what in ran.items():
        terminalreporter.line(f"{kind}: {what}")
    if not ran:
        terminalreporter.line("no shared broker was started")
