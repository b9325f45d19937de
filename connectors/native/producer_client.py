"""The part of confluent's Producer that the transactional producer uses, on our own handle.

Method names, seconds and exceptions are the same, so the protocol around it exists once. Only
`produce`, which takes one record, is replaced by calls that take arrays of pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ClusterMetadata

from connectors.clients.client_errors import FATAL, QUEUE_FULL
from connectors.clients.client_log import log_settings
from connectors.native import librdkafka
from connectors.native.client_handle import CALLBACKS, ClientHandle
from connectors.native.librdkafka import check_code, check_error


class ProducerClient:
    """An rd_kafka_t that produces; see `ClientHandle` for its settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._lib = librdkafka.library()
        self._handle = ClientHandle(librdkafka.PRODUCER, settings)
        self._settings = settings

    def poll(self, timeout: float) -> int:
        """Serve callbacks; wait at most `timeout` seconds for the first one."""
        return self._handle.poll(timeout)

    def topic(self, name: str) -> int:
        """Return a topic's handle for `produce_messages`. KafkaException: the name is invalid."""
        return self._handle.topic(name)

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
        """See confluent's Producer. A client of its own asks: it happens once for a topic.

        Raises:
            KafkaException: no broker answered.
        """
        left_out = {"transactional.id", "transaction.timeout.ms", *CALLBACKS}
        asks = {name: value for name, value in self._settings.items() if name not in left_out}
        return Producer(asks | log_settings()).list_topics(topic, timeout)

    def produce_messages(self, topic: int, partition: int, messages: npt.NDArray[Any]) -> int:
        """Queue copies of messages, in order; return how many: fewer if the queue is full.

        Args:
            topic: from `topic`.
            partition: of all messages; ANY_PARTITION: by their keys. Never a partition for each
                (RD_KAFKA_MSG_F_PARTITION): if one does not exist, librdkafka would count its record
                as queued for ever, and no flush would end.
            messages: array of librdkafka.MESSAGE, contiguous in memory; `err` is overwritten.

        Raises:
            KafkaException: a message was refused; others may be queued: abort the transaction.
        """
        queued: int = self._lib.rd_kafka_produce_batch(
            topic, partition, librdkafka.COPY, messages.ctypes.data, len(messages)
        )
        if queued == len(messages):
            return queued
        errors = messages["err"]
        refused = errors[(errors != 0) & (errors != QUEUE_FULL)]
        if len(refused):
            raise self._refusal(int(refused[0]))
        if errors[:queued].any():  # a later message must not overtake one that found no room
            raise self._refusal(QUEUE_FULL)
        return queued

    def produce_described(self, rows: Iterable[int], count: int) -> int:
        """Queue copies of records with headers or a time; stop if full; return how many.

        Args:
            rows: address of each record's librdkafka.ARGUMENT fields. Headers among them belong
                to the library once the record is queued, and to the caller otherwise.
            count: the number of a record's arguments.

        Raises:
            KafkaException: a record was refused; those before it are queued.
        """
        produce, client = self._lib.rd_kafka_produceva, self._handle.address
        queued = 0
        for row in rows:
            error = produce(client, row, count)
            if error:
                full = self._lib.rd_kafka_error_code(error) == QUEUE_FULL
                if full:
                    self._lib.rd_kafka_error_destroy(error)
                    break
                check_error(error)
            queued += 1
        return queued

    def headers(self, pairs: Sequence[tuple[str, bytes | str | None]]) -> int:
        """Return new headers; they belong to the caller until a record with them is queued.

        Raises:
            TypeError: a header has no name, or a name that contains NUL.
        """
        wrong = [name for name, _ in pairs if not isinstance(name, str) or "\0" in name]
        if wrong:
            raise TypeError(f"a header's name is text without NUL, not {wrong[0]!r}")
        made: int = self._lib.rd_kafka_headers_new(len(pairs))
        for name, value in pairs:
            raw = value.encode() if isinstance(value, str) else value
            size = 0 if raw is None else len(raw)
            check_code(self._lib.rd_kafka_header_add(made, name.encode(), -1, raw, size))
        return made

    def drop_headers(self, headers: int) -> None:
        """Free headers that no record took; 0 means none."""
        if headers:
            self._lib.rd_kafka_headers_destroy(headers)

    def flush(self, timeout: float) -> int:
        """Wait until no record is queued or in flight; return how many remain.

        Raises:
            KafkaException: the client is no longer usable, for example fenced.
        """

        def once(milliseconds: int) -> int:
            return int(self._lib.rd_kafka_flush(self._handle.address, milliseconds))

        answer = self._handle.in_slices(once, timeout, done=lambda code: code == 0)
        code, text = self._handle.fatal_error()
        if code:
            raise KafkaException(KafkaError(code, text, True))
        if answer == 0:
            return 0
        return max(1, int(self._lib.rd_kafka_outq_len(self._handle.address)))

    def purge(self, *, in_flight: bool = True) -> None:
        """Drop queued records; each is reported as failed."""
        flags = librdkafka.PURGE_QUEUE | (librdkafka.PURGE_IN_FLIGHT if in_flight else 0)
        check_code(self._lib.rd_kafka_purge(self._handle.address, flags))

    def init_transactions(self, timeout: float) -> None:
        """See rdkafka.h, also for the next four. KafkaException: refused, or not in time."""
        self._end(self._lib.rd_kafka_init_transactions, int(timeout * 1000))

    def begin_transaction(self) -> None:
        """Begin; local."""
        self._end(self._lib.rd_kafka_begin_transaction)

    def commit_transaction(self, timeout: float) -> None:
        """Flush and commit."""
        self._end(self._lib.rd_kafka_commit_transaction, int(timeout * 1000))

    def abort_transaction(self, timeout: float) -> None:
        """Purge and abort."""
        self._end(self._lib.rd_kafka_abort_transaction, int(timeout * 1000))

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group_metadata: bytes, timeout: float
    ) -> None:
        """Put offsets and their metadata into the transaction, for a group."""
        group = ctypes.c_void_p()
        check_error(
            self._lib.rd_kafka_consumer_group_metadata_read(
                ctypes.byref(group), group_metadata, len(group_metadata)
            )
        )
        offsets = self._lib.rd_kafka_topic_partition_list_new(len(positions))
        try:
            for position in positions:
                self._add(offsets, position)
            send = self._lib.rd_kafka_send_offsets_to_transaction
            self._end(send, offsets, group, int(timeout * 1000))
        finally:
            self._lib.rd_kafka_topic_partition_list_destroy(offsets)
            self._lib.rd_kafka_consumer_group_metadata_destroy(group)

    def _add(self, offsets: Any, position: TopicPartition) -> None:
        added = self._lib.rd_kafka_topic_partition_list_add(
            offsets, position.topic.encode(), position.partition
        ).contents
        added.offset = position.offset
        metadata = (position.metadata or "").encode()
        if metadata:  # freed with the list, by the library's own allocator
            added.metadata = self._lib.rd_kafka_mem_malloc(self._handle.address, len(metadata))
            ctypes.memmove(added.metadata, metadata, len(metadata))
            added.metadata_size = len(metadata)

    def _end(self, function: Any, *arguments: Any) -> None:
        check_error(function(self._handle.address, *arguments))
        self._handle.check()

    def _refusal(self, code: int) -> KafkaException:
        if code == FATAL:
            return librdkafka.error_of(FATAL, self._handle.fatal_error()[1])
        reason = self._lib.rd_kafka_err2str(code).decode()
        return librdkafka.error_of(code, f"Unable to produce message: {reason}")
