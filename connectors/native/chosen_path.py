"""Native or plain: the classes with which a task reads and writes, and a log line if plain."""

from __future__ import annotations

import functools
import logging

from connectors.kafka.sink.plain_producer import PlainProducer
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native import librdkafka

logger = logging.getLogger(__name__)


def producer_kind(*, native: bool = True) -> type[TransactionalProducer]:
    """Return the class of transactional producers; the plain one if the native one cannot work."""
    if not (native and _is_available()):
        return TransactionalProducer
    # Imported here: a process on the plain path imports none of it.
    from connectors.native.native_producer import NativeTransactionalProducer  # noqa: PLC0415

    return NativeTransactionalProducer


def plain_producer_kind(*, native: bool = True) -> type[PlainProducer]:
    """Return the class of producers without transactions, in the same way."""
    if not (native and _is_available()):
        return PlainProducer
    from connectors.native.native_producer import NativePlainProducer  # noqa: PLC0415

    return NativePlainProducer


def reader_kind(*, native: bool = True) -> type[PartitionReader]:
    """Return the class of the continuous mode's readers, in the same way."""
    if not (native and _is_available()):
        return PartitionReader
    from connectors.native.native_reader import NativePartitionReader  # noqa: PLC0415

    return NativePartitionReader


@functools.cache
def _is_available() -> bool:
    """Check once per process, and log the reason once."""
    reason = librdkafka.available()
    if not reason:
        from connectors.native import self_test  # noqa: PLC0415 - as below

        reason = self_test.failure()
    if reason:
        logger.warning("the native path to librdkafka is off, the plain one is used: %s", reason)
    return not reason
