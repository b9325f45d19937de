"""Reads a whole output topic after the end of the job, and checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from confluent_kafka import KafkaException

from connectors.bench.audit import Audit
from connectors.bench.committed_reader import committed_reader, raise_if_error
from connectors.bench.end_watcher import Ints
from connectors.bench.shape import DONE, number_of
from connectors.clients.client_errors import is_end_of_partition, translate
from transactions.clock import Deadline

_PATIENCE_S: Final = 20.0
_BATCH: Final = 20_000
_POLL_S: Final = 0.2


def audit_topic(
    kafka: Mapping[str, str],
    topic: str,
    ends: tuple[int, ...],
    records: int,
    watch: Callable[[int], None] = lambda _read: None,
) -> tuple[Audit, list[Ints]]:
    """Read everything below `ends`; return the verdict and each partition's first offsets.

    Raises:
        SparkOnceError: the brokers refused the read.
    """
    audit, seen = Audit(), np.zeros(records, dtype=bool)
    offsets: list[list[int]] = [[] for _ in ends]
    unread = {partition: end for partition, end in enumerate(ends) if end > 0}
    consumer = committed_reader(kafka, topic, len(ends), tell_ends=True)
    patience = Deadline(_PATIENCE_S)
    try:
        while unread and not patience.expired():
            for message in consumer.consume(_BATCH, timeout=_POLL_S):
                patience = Deadline(_PATIENCE_S)
                if message.error() is not None and is_end_of_partition(message.error()):
                    if message.offset() >= unread.get(message.partition(), 0):
                        unread.pop(message.partition(), None)
                    continue
                raise_if_error(message)
                number = number_of(message.key())
                audit.untransformed += message.value()[-1:] != DONE
                if not 0 <= number < records:
                    audit.foreign += 1
                elif seen[number]:
                    audit.dup += 1
                else:
                    seen[number] = True
                    offsets[message.partition()].append(message.offset())
            watch(int(seen.sum()))
    except KafkaException as error:
        raise translate(error.args[0], topic, kafka) from error
    finally:
        consumer.close()
    audit.lost = records - int(seen.sum())
    return audit, [np.array(one, dtype=np.int64) for one in offsets]
