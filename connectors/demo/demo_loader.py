"""The demo's input: a plain producer that loads the flights at a steady pace.

It is a separate process: the supervisor starts ``python -m connectors.demo.demo_loader``.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import click
from confluent_kafka import KafkaError, Producer

from connectors.clients.client_log import log_settings
from connectors.clients.client_settings import librdkafka_settings
from connectors.demo.child import tell
from connectors.demo.dataset import load_flights, messages
from connectors.machine.parent_watch import live_as_long_as_parent
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import BrokerUnavailableError

_TICK_S: Final = 0.05
_SHOW_EVERY: Final = 4
_FLUSH_S: Final = 60.0


class Loader:
    """Produces the flights, and counts the acknowledged records."""

    def __init__(self, bootstrap: str, topic: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._topic = topic
        self._clock = clock
        self._refused: KafkaError | None = None
        self.acknowledged = 0
        # Idempotent, not transactional: the input must not hold a flight twice.
        settings: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 20}
        settings |= {"queue.buffering.max.messages": 1_000_000, "compression.type": "lz4"}
        client = librdkafka_settings({"bootstrap.servers": bootstrap})
        self._producer = Producer(log_settings() | client | settings)

    def load(self, flights: Any, seconds: float) -> None:
        """Produce every flight within about `seconds`.

        Raises:
            BrokerUnavailableError: the brokers refused a record, or were too slow.
        """
        waiting = messages(flights)
        total, sent = flights.num_rows, 0
        begin = self._clock.monotonic()
        for tick in itertools.count():
            share = (self._clock.monotonic() - begin) / seconds if seconds > 0 else 1.0
            due = min(total, int(total * share) + 1)
            for key, value in itertools.islice(waiting, due - sent):
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            sent = due
            self._producer.poll(0)
            if tick % _SHOW_EVERY == 0:
                tell("loaded", records=self.acknowledged)
            if sent == total:
                break
            self._clock.sleep(_TICK_S)
        self._flush(Deadline(_FLUSH_S, self._clock))

    def _flush(self, deadline: Deadline) -> None:
        while self._producer.flush(0.2) and not deadline.expired():
            tell("loaded", records=self.acknowledged)
        if self._refused is not None or len(self._producer):
            raise BrokerUnavailableError(
                "Not every flight could be loaded.",
                where=self._topic,
                cause=str(self._refused or "the brokers did not acknowledge in time"),
            )
        tell("loaded", records=self.acknowledged)

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._refused = error


@click.command()
@click.option("--bootstrap", required=True)
@click.option("--topic", required=True)
@click.option("--flights", type=int, required=True)
@click.option("--seconds", type=float, required=True)
def main(*, bootstrap: str, topic: str, flights: int, seconds: float) -> None:
    """Load the flights; send the progress five times a second."""
    live_as_long_as_parent()
    Loader(bootstrap, topic).load(load_flights(flights), seconds)


if __name__ == "__main__":
    main()
