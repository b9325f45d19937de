"""One librdkafka producer with one transactional id, for as long as its pool lives.

The driver's raw EndTxn bypasses librdkafka's own error check, so this file makes that check itself
(`record_producer`): a transaction is prepared only if nothing is in flight and no delivery failed.
After the driver's EndTxn (version 4 at most: it does not change the epoch) the producer is
*resynced*: it sends its own commit, the broker answers "committed" again, and the producer can
begin its next transaction.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.clients.client_errors import is_refused, lacks_token, translate
from connectors.clients.client_log import LIBRDKAFKA, least_level, log_settings
from connectors.clients.client_version import check_client_version
from connectors.clients.transaction_timeout import request_timeout_ms
from connectors.clients.weak_callback import weakly
from connectors.kafka.sink.record_producer import RecordProducer
from transactions.clock import Deadline
from transactions.errors import (
    AuthenticationError,
    DeliveryError,
    InitInDoubtError,
    PhaseOneError,
    SparkOnceError,
)

_STATISTICS_MS: Final = 100
#: A debug context of librdkafka and, in it, the facility that logs a closed connection.
_CONNECTIONS: Final = "broker"
_BROKEN: Final = "FAIL"
#: The thread of the connection that EndTxn and InitProducerId use.
_COORDINATOR: Final = "TxnCoordinator"
_STATE = re.compile(r" in state ([A-Z_]+)")
_SENDING_STATES: Final = frozenset({"UP", "REAUTH"})
_CLOSED, _SUPPRESSED = "Disconnected", "error log suppressed"
#: Usually two milliseconds; a group coordinator moves to another broker within some seconds.
_OFFSETS_S: Final = 10.0
_GRACE_S: Final = 1.0
#: A broker creates a topic at its first use within half a second (seen).
_CREATED_S: Final = 5.0
_LOOK_S: Final = 0.1
_SEND_OFFSETS: Final = "send_offsets_to_transaction"
_UNKNOWN_TOPIC: Final = KafkaError.UNKNOWN_TOPIC_OR_PART


class TransactionalProducer(RecordProducer):
    """Begins, fills, prepares and resyncs transactions. In a task; not thread-safe.

    Attributes:
        transactional_id: its id, never used by another producer, before or after.
        producer_id: Kafka's pid, -1 before `init`.
        producer_epoch: Kafka's epoch, -1 before `init`.
        spent: a connection broke during a call. Then librdkafka silently repeats EndTxn and
            TxnOffsetCommit (rdkafka_txnmgr.c), and a copy may still be under way. The open
            transaction is whole, but this producer may not begin another one.

    Only librdkafka's log shows a broken connection, as FAIL under the debug context `broker`. Its
    `error_cb` is not called if the other end has closed the connection (since 2.12), nor for the
    same error again within 30 seconds (rdkafka_broker.c, rd_kafka_broker_set_error).
    """

    def __init__(
        self, settings: Mapping[str, Any], transactional_id: str, *, timeout_ms: int
    ) -> None:
        check_client_version(transactional_id)
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.producer_epoch = -1
        self.spent = False
        self._coordinator_broke = False
        self._offsets_call: _Call | None = None
        self._found: set[str] = set()
        # A second bootstrap closes every broker to which a cached coordinator points, and
        # send_offsets waits for that broker for ever (librdkafka issues 5511 and 5456).
        defaults = {
            "metadata.recovery.strategy": "none",
            "statistics.interval.ms": _STATISTICS_MS,
            "socket.timeout.ms": request_timeout_ms(timeout_ms),
        }
        ours = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "socket.max.fails": 1,  # a timed-out request breaks the connection, so we see it
            "stats_cb": weakly(self._read_statistics),
            "log.connection.close": True,  # else such a line has no second one: see `_is_doubt`
            "debug": ",".join(filter(None, (_CONNECTIONS, settings.get("debug")))),
            "logger": _Log(weakly(self._note_break), shows_all="debug" in settings),
        }
        super().__init__({**defaults, **settings}, transactional_id, ours)

    def init(self, deadline: Deadline) -> None:
        """Register the id and read pid and epoch, once, from librdkafka's statistics.

        Raises:
            InitInDoubtError: a connection broke, and the request was repeated: a late copy would
                abort a transaction and fence its producer. Take another id.
            PhaseOneError: the coordinator did not answer in time, or refused.
            AuthenticationError: a right is missing.
            TokenUnavailableError: there is no token for the login.
        """
        init = self._producer.init_transactions
        try:
            self._call("init_transactions", init, deadline.remaining())
        except PhaseOneError as error:
            self.serve()
            if (missing := self._trouble.explaining) is None:
                raise
            raise translate(missing, self.transactional_id, {}) from error
        while self.producer_id < 0:
            if deadline.expired():
                raise PhaseOneError(
                    "The producer did not get its id and epoch in time.",
                    where=self.transactional_id,
                    cause="the machine is overloaded",
                )
            self._producer.poll(0.02)
        self.serve()
        if self._coordinator_broke:
            raise InitInDoubtError(
                "A connection broke during init_transactions; a repeated request may be under way.",
                where=self.transactional_id,
                cause="the broker or the network; another id is used",
            )

    def begin(self) -> None:
        """Begin a transaction; local, nothing is sent.

        Raises:
            PhaseOneError: the producer was fenced.
        """
        self.forget_failures()
        self._call("begin_transaction", self._producer.begin_transaction)

    def find_topic(self, topic: str, deadline: Deadline) -> None:
        """Ask for a topic, once: a broker with `auto.create.topics.enable` then creates it, as it
        does for a record.

        Raises:
            DeliveryError: the topic does not exist a few seconds later.
            AuthenticationError: a right is missing.
            PhaseOneError: no broker answered.
        """
        patience = deadline.remaining()
        until = Deadline(min(patience, _CREATED_S))
        while topic not in self._found:
            found = self._call("list_topics", self._producer.list_topics, topic, patience)
            error = found.topics[topic].error
            if error is None:
                self._found.add(topic)
            elif until.expired():
                raise self._lost("list_topics", KafkaException(error))
            else:
                until.pause(_LOOK_S)

    def send_offsets(
        self, group: str, offsets: Mapping[str, int], token: str, deadline: Deadline
    ) -> None:
        """Put offsets, with the token as metadata, into the transaction; `await_offsets` waits for
        the answer. Meanwhile records may be under way: the two requests go to two coordinators, and
        take as long as the records do.

        An empty list, or a negative offset, would succeed and send nothing (seen): refused here.

        librdkafka waits for ever for a group coordinator whose connection broke in the wrong moment
        (its issue 5456). So the call has a thread, which is then left behind with its producer.
        """
        assert offsets
        assert min(offsets.values()) >= 0
        assert self._offsets_call is None, "offsets are sent once in a transaction"
        positions = []
        for name, offset in offsets.items():
            topic, _, partition = name.rpartition("-")
            positions.append(TopicPartition(topic, int(partition), offset, metadata=token))
        seconds = min(deadline.remaining(), _OFFSETS_S)
        metadata = _group_metadata(group)

        def send() -> None:
            self._connections_broke()
            send_offsets = self._producer.send_offsets_to_transaction
            self._call(_SEND_OFFSETS, send_offsets, positions, metadata, seconds)
            self.spent |= self._connections_broke()

        self._offsets_call = _Call(send, name=f"offsets-{self.transactional_id}", seconds=seconds)

    def await_offsets(self) -> None:
        """Wait until the offsets are in the transaction.

        Raises:
            PhaseOneError: the group coordinator refused, or did not answer in time.
            DeliveryError: see `flush`.
        """
        call, self._offsets_call = self._offsets_call, None
        assert call is not None, "offsets are waited for once, after they were sent"
        if not call.ended():
            raise self._lost(
                _SEND_OFFSETS, TimeoutError(f"it did not return within {call.seconds:g} s")
            )
        if call.failure is not None:
            raise call.failure
        self._check_failures()  # the call's thread serves callbacks, and may have got a report

    def resync(self, deadline: Deadline) -> None:
        """End, on this side, a transaction that the driver has committed on the broker.

        Raises:
            PhaseOneError: no clear answer: retire this producer and its id.
        """
        self._end("commit_transaction", self._producer.commit_transaction, deadline)

    def abort(self, deadline: Deadline) -> None:
        """Abort the open transaction. Its first request, for the marker, must have been answered.

        If the answer to the *first* request of a transaction comes while librdkafka begins to
        abort, librdkafka counts that request as never made. It sends no EndTxn and says "aborted",
        and the transaction stays open on the broker (rdkafka_txnmgr.c, "outdated"; seen).

        Raises:
            PhaseOneError: no clear answer: retire this producer and its id.
        """
        if self._offsets_call is not None:
            self._offsets_call.ended()  # librdkafka allows one call of a transaction at a time
            self._offsets_call = None
        self._producer.purge(in_flight=False)
        self._end("abort_transaction", self._producer.abort_transaction, deadline)
        self.forget_failures()

    def _end(self, name: str, function: Callable[[float], Any], deadline: Deadline) -> None:
        """Send EndTxn. After a broken connection a second answer may exist: not clear (rule 3)."""
        self._connections_broke()
        self._call(name, function, deadline.remaining())
        if self._connections_broke():
            self.spent = True
            raise PhaseOneError(
                f"A connection broke during {name}; a repeated request may still be under way.",
                where=self.transactional_id,
                cause="the broker or the network; this producer is replaced",
            )

    def _note_break(self, line: str) -> None:
        self._broke = True
        self._coordinator_broke |= _COORDINATOR in line

    def _read_statistics(self, text: str) -> None:
        if self.producer_id < 0:
            facts = orjson.loads(text).get("eos", {})
            if facts.get("producer_id", -1) >= 0 and facts.get("txn_state") != "Init":
                self.producer_epoch = facts["producer_epoch"]
                self.producer_id = facts["producer_id"]

    def _lost(self, name: str, error: Exception) -> SparkOnceError:
        if isinstance(error, KafkaException) and lacks_token(error.args[0]):
            return translate(error.args[0], self.transactional_id, {})
        if isinstance(error, KafkaException) and is_refused(error.args[0]):
            return AuthenticationError(
                f"The broker refuses {name} of the transactional producer.",
                where=self.transactional_id,
                cause=str(error),
                option="ACLs: WRITE and DESCRIBE on the transactional ids, READ on the groups "
                "of the application, and on the topics of their offsets",
            )
        if isinstance(error, KafkaException) and error.args[0].code() == _UNKNOWN_TOPIC:
            return DeliveryError(
                "A topic of the transaction does not exist; its batch is aborted.",
                where=self.transactional_id,
                cause=str(error),
            )
        return PhaseOneError(
            f"The transactional producer failed in {name}; its transaction is not decided.",
            where=self.transactional_id,
            cause=str(error),
            option=f"transaction.timeout.ms={self.timeout_ms}",
        )


class _Log:
    """Takes librdkafka's log, in place of a `logging.Logger`, while callbacks are served.

    Args:
        broke: called with the log line of a broken connection that may have carried a request.
        shows_all: the user has asked for a debug context.
    """

    def __init__(self, broke: Callable[[str], None], *, shows_all: bool) -> None:
        self._broke = broke
        self._least = logging.DEBUG if shows_all else least_level()

    def log(self, level: int, text: str, facility: str, *others: str) -> None:
        """Take a line from confluent-kafka: `others` are the client's name and the line."""
        if facility == _BROKEN and _is_doubt(level, others[-1]):
            self._broke(others[-1])
        if level >= self._least:
            LIBRDKAFKA.log(level, text, facility, *others)


def _is_doubt(level: int, line: str) -> bool:
    """Return whether a request may have been under way on a closed connection.

    None was under way before the connection was up, or when the other end closed an idle one.
    librdkafka logs the latter only at debug level. It logs every other closing once more at its own
    level, or with the remark that the second line was left out (rdkafka_broker.c,
    rd_kafka_broker_conn_closed and rd_kafka_broker_set_error). Every other line is a doubt.
    """
    state = _STATE.search(line)
    if state is not None and state[1] not in _SENDING_STATES:
        return False
    return level > logging.DEBUG or _CLOSED not in line or _SUPPRESSED in line


class _Call:
    """A call on a thread of its own; it can outlive its own timeout."""

    def __init__(self, function: Callable[[], None], *, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.failure: BaseException | None = None
        self._patience = Deadline(seconds + _GRACE_S)
        # The function refers to the producer, which keeps this call; a thread drops its function.
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        """Wait for the call's end, at most for its timeout; return whether it has ended."""
        self._thread.join(self._patience.remaining())
        return not self._thread.is_alive()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised where the call is waited for
            self.failure = error


_GROUPS: dict[str, bytes] = {}


def _group_metadata(group: str) -> bytes:
    """Return a group's metadata; a consumer that never polls gives it without a broker."""
    if group not in _GROUPS:
        consumer = Consumer({"group.id": group, **log_settings()})
        try:
            _GROUPS[group] = consumer.consumer_group_metadata()
        finally:
            consumer.close()
    return _GROUPS[group]
