"""What every tier shares: the closing lines name the brokers on which tests ran."""

from __future__ import annotations

import pytest

BROKERS_THAT_RAN: pytest.StashKey[dict[str, str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BROKERS_THAT_RAN] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = terminalreporter.config.stash[BROKERS_THAT_RAN]
    terminalreporter.section("brokers")
    for kind, what in ran.items():
        terminalreporter.line(f"{kind}: {what}")
    if not ran:
        terminalreporter.line("no shared broker was started")
