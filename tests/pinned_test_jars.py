"""Jars that only tests need: a pin file beside this one names each set of them."""

from __future__ import annotations

from pathlib import Path

from connectors.machine.java import ensure_java_home
from connectors.machine.pinned_jars import IvyResolver, ensure_jars, read_pins
from connectors.machine.user_folders import cache_folder


def pinned_jars(name: str) -> list[Path]:
    """Return the jars of ``NAME.sha256``; they are fetched once per machine."""
    pins = read_pins(Path(__file__).with_name(f"{name}.sha256"))
    return [
        *ensure_jars(
            name,
            pins[0].version,
            pins,
            cache=cache_folder() / name,
            resolver=IvyResolver(ensure_java_home()),
            tell=print,
        )
    ]
