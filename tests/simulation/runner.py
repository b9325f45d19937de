"""Runs one seed, or many, with everything random taken from the seed."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from connectors.kafka.sink import (
    kafka_writer,
    producer_pool,
    record_producer,
    transactional_producer,
)
from tests.simulation.adversary import Profile
from tests.simulation.fake_producer import FakeProducer
from tests.simulation.world import World
from transactions import decision_log, log_entries
from transactions.clock import Deadline
from transactions.errors import SparkOnceError

REPLAY = "python -m tests.simulation --seed {seed} --trace"


class CurrentProcess:
    """Stands for `producer_pool._PROCESS`: the worker whose task is running."""

    def __init__(self) -> None:
        self.number = itertools.count()

    def __format__(self, _spec: str) -> str:
        return f"w{next(self.number)}"


class CallInTurn:
    """Without a thread: a seed decides the order of everything. Offsets follow the records here."""

    def __init__(self, function: Callable[[], None], *, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.failure: SparkOnceError | None = None
        self._function: Callable[[], None] | None = function

    def ended(self) -> bool:
        function, self._function = self._function, None
        try:
            if function is not None:
                function()
        except SparkOnceError as error:
            self.failure = error
        return True


class CallAtOnce(CallInTurn):
    """The other order: offsets before the records."""

    def __init__(self, function: Callable[[], None], *, name: str, seconds: float) -> None:
        super().__init__(function, name=name, seconds=seconds)
        self.ended()


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Give the product librdkafka's stand-in, and randomness that the seed decides."""

    def producer(config: dict[str, Any]) -> FakeProducer:
        return FakeProducer(
            config, lambda request: world.exchange(request, "a producer"), world.clock.sleep
        )

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(record_producer, "Producer", producer),
            mock.patch.object(transactional_producer, "_Call", CallInTurn),
            mock.patch.object(transactional_producer, "_group_metadata", str.encode),
            mock.patch.object(decision_log, "COMPACT_EVERY", world.compact_every),
            # A fenced run names the process of the newer one, in its trace too.
            mock.patch.object(log_entries, "os", SimpleNamespace(getpid=lambda: 1)),
            mock.patch.object(
                kafka_writer, "Deadline", lambda seconds: Deadline(seconds, world.clock)
            ),
            mock.patch.object(producer_pool, "_PROCESS", CurrentProcess()),
            mock.patch.object(producer_pool, "_SLOTS", itertools.count()),
            mock.patch.object(
                secrets, "token_hex", lambda size=16: world.rng.randbytes(size).hex()
            ),
        ):
            yield
    finally:
        logging.disable(before)


def traced(
    seed: int, profile: Profile | None = None, **world_options: Any
) -> tuple[World, AssertionError | None]:
    """Run one seed to its end and check it; return what happened, and what is wrong."""
    world = World(seed, profile, **world_options)
    with installed(world):
        try:
            world.run()
            world.check()
        except AssertionError as error:
            return world, error
    return world, None


def run_seed(seed: int, profile: Profile | None = None, **world_options: Any) -> World:
    """Run one seed; see `World` for the options.

    Raises:
        AssertionError: an invariant is broken; the text says how to run it again.
    """
    world, error = traced(seed, profile, **world_options)
    if error is not None:
        raise AssertionError(f"seed {seed}: {error}\nreplay: {REPLAY.format(seed=seed)}") from error
    return world


def digest(world: World) -> str:
    """Return a hash of everything that happened, in its order."""
    return hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
