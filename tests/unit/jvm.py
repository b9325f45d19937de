"""What a driver asks the JVM of its session at its start, where a test has no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def jvm_in(folder: str, **environment: str) -> Any:
    """Return a JVM that was started in a folder, with these variables of the environment."""
    system = SimpleNamespace(getenv=environment.get, getProperty={"user.dir": folder}.get)
    return SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))


JVM: Any = jvm_in("/")
