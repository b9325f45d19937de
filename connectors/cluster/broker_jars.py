"""The jars of a real Apache Kafka broker; `broker_jars.sha256` beside this file pins them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from connectors.machine.notices import Say, say
from connectors.machine.pinned_jars import IvyResolver, PinnedJar, Resolver, ensure_jars, read_pins
from connectors.machine.user_folders import cache_folder

PIN_FILE = Path(__file__).with_name("broker_jars.sha256")


def kafka_version(pins: Sequence[PinnedJar]) -> str:
    """Return the pinned version of Apache Kafka."""
    return next(pin.version for pin in pins if pin.module.startswith("kafka_"))


def ensure_broker_jars(
    java_home: str,
    *,
    cache: Path | None = None,
    pins: Sequence[PinnedJar] | None = None,
    resolver: Resolver | None = None,
    tell: Say = say,
) -> tuple[Path, ...]:
    """Return the paths of all jars of the broker; download them if they are not cached.

    Raises:
        BrokerUnavailableError: the download failed; a retry is safe.
        ConfigurationError: a jar differs from the pinned one.
    """
    pins = read_pins(PIN_FILE) if pins is None else pins
    cache = cache_folder() / "kafka" if cache is None else cache
    resolver = IvyResolver(java_home) if resolver is None else resolver
    version = kafka_version(pins)
    return ensure_jars("Apache Kafka", version, pins, cache=cache, resolver=resolver, tell=tell)
