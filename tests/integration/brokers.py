"""The brokers behind the fixture `kafka_cluster`: those of `connectors.testing`, by a variable.

All processes of one run of pytest share one: a broker costs ten seconds of CPU to start, and some
more per minute while it does nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.brokers import Broker, RunningBroker, running_broker
from connectors.testing.containers import IMAGE

__all__ = ["IMAGE", "Broker", "running_broker", "selected_kinds", "shared_broker"]

KINDS = {
    "embedded": ("embedded",),
    "testcontainers": ("testcontainers",),
    "both": ("embedded", "testcontainers"),
}


def selected_kinds() -> tuple[str, ...]:
    selected = os.environ.get("SPARKONCE_TEST_BROKER", "embedded")
    if selected not in KINDS:
        raise ValueError(f"SPARKONCE_TEST_BROKER={selected}: one of {', '.join(KINDS)}")
    return KINDS[selected]


def shared_broker(kind: str, factory: pytest.TempPathFactory, config: pytest.Config) -> Broker:
    """Return the broker of this run; the first process that asks for one starts it.

    That process stops it as its last act, after all others have ended.
    """
    base = factory.getbasetemp()
    folder = base.parent if hasattr(config, "workerinput") else base  # pytest-xdist: one per worker
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    return stack.enter_context(_one_for_all(kind, folder))


@contextlib.contextmanager
def _one_for_all(kind: str, folder: Path) -> Iterator[Broker]:
    """One process at a time starts it, or finds it started. Its users share a second lock; who has
    started it waits until that one is his alone. The kernel takes the locks of a dead process.
    """
    address = folder / f"broker-{kind}"
    with contextlib.ExitStack() as used:
        users = used.enter_context((folder / f"broker-{kind}.users").open("w"))
        with _alone(folder, kind):
            if address.exists():
                broker: Broker = RunningBroker(address.read_text())
            else:
                broker = used.enter_context(running_broker(kind))
                used.callback(fcntl.flock, users, fcntl.LOCK_EX)
                address.write_text(broker.bootstrap_servers)
                used.callback(_forget, address, folder, kind)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield broker


@contextlib.contextmanager
def _alone(folder: Path, kind: str) -> Iterator[None]:
    with (folder / f"broker-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget(address: Path, folder: Path, kind: str) -> None:
    with _alone(folder, kind):
        address.unlink()
