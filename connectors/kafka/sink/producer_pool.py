"""Chooses a task's producer: the pool of one worker process.

A pool lives as long as tasks of its run come to the process. Each producer has an id that no other
producer takes over. A task looks at the producers in turn. Its closure says how to treat the
transaction that it finds on each, by rule 7 (docs/design.md):

* decided, of an earlier checkpoint: resync it (the driver has committed it), take it;
* not decided, of an earlier checkpoint: abort it (its attempt failed), take it;
* of this checkpoint: leave it: another task of the batch in this process, or a lost attempt;
* of a later checkpoint: this task is a zombie, and stops;
* of a checkpoint more than `MOST_IDLE_CHECKPOINTS` old: drop the producer: the driver no longer
  says whether its id was retired.

A producer that met a doubt is dropped with its id; the sweep ends what it left open.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from connectors.clients.offsets_topic import offsets_partition
from connectors.kafka.sink.idle_cache import IdleCache
from connectors.kafka.sink.retired_ids import MOST_IDLE_CHECKPOINTS
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from transactions.clock import Deadline
from transactions.errors import FencedError, InitInDoubtError, PhaseOneError
from transactions.sink import Attempt, Owner

logger = logging.getLogger(__name__)

#: One producer tries this many ids; an id meets a doubt only when a connection breaks.
_IDS = 3


class _ProcessName:
    """One random name per process, forks included: two workers with one name would fence each
    other's producers. A process number could repeat (containers, two hosts).
    """

    def __init__(self) -> None:
        self._choose()
        os.register_at_fork(after_in_child=self._choose)

    def __str__(self) -> str:
        return self._text

    def _choose(self) -> None:
        self._text = secrets.token_hex(4)


_PROCESS = _ProcessName()
_SLOTS = itertools.count()


@dataclasses.dataclass(slots=True)
class Slot:
    """A producer, and the last transaction that was begun on it.

    Attributes:
        producer: the live client.
        checkpoint_id: of the last transaction, -1 before the first.
        token: of the last transaction.
        ended: that transaction is over for this producer.
    """

    producer: TransactionalProducer
    checkpoint_id: int = -1
    token: str = ""
    ended: bool = True


class Producers(Protocol):
    """The source of a task's producers: this process's pool, or a stage task's own two."""

    def take(self, attempt: Attempt, token: str, deadline: Deadline) -> Slot:
        """Return a slot whose producer has no open transaction."""

    def drop(self, slot: Slot) -> None:
        """Forget a producer that failed or met a doubt, and its id with it."""


class ProducerPool:
    """The producers of one run, one cluster and one process. Not thread-safe: a Python worker
    runs one task at a time.
    """

    def __init__(
        self,
        owner: Owner,
        settings: Mapping[str, Any],
        *,
        timeout_ms: int,
        offsets_partitions: int = 0,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._timeout_ms = timeout_ms
        self._offsets_partitions = offsets_partitions
        self._slots: list[Slot] = []

    def take(self, attempt: Attempt, token: str, deadline: Deadline) -> Slot:
        """Return a slot whose producer has no open transaction, and mark it as this attempt's.

        Raises:
            FencedError: the attempt belongs to a zombie.
            PhaseOneError: no producer could be made.
        """
        self.serve()
        for slot in list(self._slots):
            idle = attempt.checkpoint_id - slot.checkpoint_id
            if slot.producer.transactional_id in attempt.retired or (
                idle > MOST_IDLE_CHECKPOINTS or (slot.producer.spent and idle > 0)
            ):
                self._slots.remove(slot)
            elif slot.checkpoint_id > attempt.checkpoint_id:
                raise FencedError(
                    "A task of an old batch is still running after a newer task; it stops.",
                    where=f"checkpoint {attempt.checkpoint_id}, attempt {attempt.attempt_id}",
                    cause="a cancelled or speculative task continued to run",
                )
            elif slot.checkpoint_id < attempt.checkpoint_id and self._clear(
                slot, attempt, deadline
            ):
                return self._mark(slot, attempt, token)
        return self._mark(self._make(deadline), attempt, token)

    def serve(self) -> None:
        """Serve the callbacks of every producer: statistics, and errors."""
        for slot in self._slots:
            slot.producer.serve()

    def drop(self, slot: Slot) -> None:
        """Forget a producer that failed or met a doubt, and its id with it."""
        if slot in self._slots:
            self._slots.remove(slot)

    def _mark(self, slot: Slot, attempt: Attempt, token: str) -> Slot:
        slot.checkpoint_id = attempt.checkpoint_id
        slot.token = token
        slot.ended = False
        return slot

    def _clear(self, slot: Slot, attempt: Attempt, deadline: Deadline) -> bool:
        """End what an earlier checkpoint left on the producer; return False if that dropped it."""
        if slot.ended:
            return True
        decided = attempt.last_decided.get(slot.producer.transactional_id)
        try:
            if decided is not None and decided.token == slot.token:
                slot.producer.resync(deadline)
            else:
                slot.producer.abort(deadline)
        except PhaseOneError as error:
            logger.warning("the producer %s is retired: %s", slot.producer.transactional_id, error)
            self.drop(slot)
            return False
        slot.ended = True
        return True

    def _make(self, deadline: Deadline) -> Slot:
        make = functools.partial(
            new_slot,
            self._owner,
            self._settings,
            timeout_ms=self._timeout_ms,
            offsets_partitions=self._offsets_partitions,
        )
        slot = initialised(make(), make, deadline)
        self._slots.append(slot)
        return slot


def initialised(slot: Slot, make: Callable[[], Slot], deadline: Deadline) -> Slot:
    """Register a slot's producer, or after a doubt another slot's; return the registered one.

    An id in doubt has no transaction and never gets one, so there is nothing to undo. Even a
    coordinator that starts or moves causes a doubt: librdkafka drops its connection when
    InitProducerId is answered by NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE
    (rdkafka_idempotence.c, rd_kafka_idemp_request_pid_failed).

    Args:
        slot: the first to try; its producer may be connecting already.
        make: makes another slot, each time under an id of its own.
        deadline: the deadline of all tries together.

    Raises:
        InitInDoubtError: each of three ids is in doubt.
        PhaseOneError: see `TransactionalProducer.init`.
    """
    for _ in range(_IDS - 1):
        try:
            slot.producer.init(deadline)
            return slot
        except InitInDoubtError as error:
            logger.info("another transactional id is used: %s", error)
            slot = make()
    slot.producer.init(deadline)
    return slot


def new_slot(
    owner: Owner,
    settings: Mapping[str, Any],
    *,
    timeout_ms: int,
    offsets_partitions: int = 0,
    kind: type[TransactionalProducer] = TransactionalProducer,
) -> Slot:
    """Return a producer under an id that no other producer ever has; `init` is still to come.

    Args:
        owner: the owner of the producer.
        settings: of the client.
        timeout_ms: of its transactions.
        offsets_partitions: the number of `__consumer_offsets` partitions: see
            `transaction_marker`. If it is 1 or unknown (0), any id will do.
        kind: the producer's class.
    """
    while True:
        name = f"{owner.application_id}.{owner.log_id}.{owner.run_epoch}.{_PROCESS}.{next(_SLOTS)}"
        if offsets_partitions <= 1 or offsets_partition(
            name, offsets_partitions
        ) != offsets_partition(owner.application_id, offsets_partitions):
            return Slot(kind(settings, name, timeout_ms=timeout_ms))


#: Owner, sink and brokers -> the pool of this process.
_pools: IdleCache[tuple[Owner, str, str], ProducerPool] = IdleCache()


def pool_for(
    owner: Owner,
    sink: str,
    settings: Mapping[str, Any],
    *,
    timeout_ms: int,
    offsets_partitions: int = 0,
) -> ProducerPool:
    """Return this process's pool for a run and a sink; pools of older runs are dropped.

    It serves all pools. Otherwise statistics would fill the memory (100 KB a second, measured):
    those of a branch without records, or of another query whose tasks run in this worker. For the
    same reason a pool that no task asks for is dropped: the driver ends the transactions that its
    producers have prepared, and the sweep ends all others.
    """
    for pool in _pools.values():
        pool.serve()
    _pools.discard(lambda key, _: key[0].run_epoch < owner.run_epoch and one_log(key[0], owner))
    return _pools.get(
        (owner, sink, settings["bootstrap.servers"]),
        lambda: ProducerPool(
            owner, settings, timeout_ms=timeout_ms, offsets_partitions=offsets_partitions
        ),
    )


def one_log(one: Owner, other: Owner) -> bool:
    """Return whether two owners write to the same decision log."""
    return (one.application_id, one.log_id) == (other.application_id, other.log_id)
