# ruff: noqa: SLF001 - librdkafka's own error codes begin with an underscore
"""The meaning of librdkafka's errors, in one table, so that no other file looks at codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    MissingTopicError,
    SparkOnceError,
    TokenUnavailableError,
)

_MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
#: A right that is missing -> what gives it, to who reads.
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "an ACL: READ on the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "an ACL: DESCRIBE on the group; READ to write offsets",
}
#: The connection broke; or it logs in again within a second, as it does with the rest of a token's
#: life, and the broker's state, not the token, forbids that (KafkaChannel.java).
_BROKEN_LOGIN: Final = (
    "handshake failed: Local: ",
    "SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL state",
)
_NO_TOKEN: Final = (
    "Failed to acquire SASL OAUTHBEARER token",
    "there is no token available",
    "OAuth token not set",  # confluent-kafka's constructor, with the code of a broker's refusal
)
#: So long after a missing token a refused login is explained by it: a fifth of a long token's life.
_EXPLAINS_S: Final = 6 * 3600.0
#: The record or its address is wrong; the broker is well. A topic that a restarting broker does not
#: know yet is not among them: checks at the start find a missing topic.
_UNWRITABLE = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_ARG,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
#: The broker or the partition is not ready now: of the retriable errors, those that readers meet.
_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
#: Three codes for the native path, which compares whole arrays with them.
QUEUE_FULL: Final[int] = KafkaError._QUEUE_FULL
END_OF_PARTITION: Final[int] = KafkaError._PARTITION_EOF
FATAL: Final[int] = KafkaError._FATAL
_TRUNCATED = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class ErrorWatch:
    """An `error_cb`: librdkafka reports why a broker is silent, and retries for ever.

    Attributes:
        last: the latest error.
        final: the latest error that this client cannot get over. A login that is refused after a
            token could not be renewed shows that missing token: `translate` says what may pass.
        missing: the reports about missing topics and partitions: ``topic [number]: ...``.
        lacking: the latest report that there is no token for the login; librdkafka gives each
            reason once.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.last: KafkaError | None = None
        self.final: KafkaError | None = None
        self.lacking: KafkaError | None = None
        self._lacked: KafkaError | None = None
        self._lacked_until = Deadline(0.0, clock)
        self.missing: set[str] = set()

    def __call__(self, error: KafkaError) -> None:
        """Remember the latest error, and the latest one that no retry can cure."""
        if is_about_the_group(error):
            return
        self.last = error
        if lacks_token(error):  # said once for each reason; the old token may still be good
            self.lacking = self._lacked = error
            self._lacked_until = Deadline(_EXPLAINS_S, self._clock)
        elif is_final(error):
            of_login = error.code() == KafkaError._AUTHENTICATION
            self.final = (self.explaining if of_login else None) or error
        if is_missing(error):
            self.missing.add(error.str())

    @property
    def explaining(self) -> KafkaError | None:
        """The missing token behind a refused login or a silence of now, None if none is."""
        return None if self._lacked_until.expired() else self._lacked

    def forget(self) -> None:
        """Forget all but `explaining`: the client turns to another range, and a missing token is
        said once, when a fifth of the old one's life is left.
        """
        self.last = self.final = self.lacking = None
        self.missing.clear()

    def describe(self) -> str:
        """Return the latest error, as the likely cause of a silence."""
        return self.last.str() if self.last else "the broker does not answer"


def silence_in(offsets: Iterable[int], lowest: int = 0) -> KafkaError | None:
    """Return the error of a leader that was silent, None if each one answered. librdkafka says no
    error then, but the offset -1001.

    Args:
        offsets: what librdkafka's admin client says.
        lowest: the lowest one that a leader can answer.
    """
    silent = any(offset < lowest for offset in offsets)
    return KafkaError(KafkaError._TIMED_OUT, "a broker did not answer") if silent else None


def is_truncated(error: KafkaError) -> bool:
    """Return whether the requested offset is not, or no longer, in the partition."""
    return error.code() in _TRUNCATED


def is_end_of_partition(error: KafkaError) -> bool:
    """Return whether this only says that all existing records have been read."""
    return bool(error.code() == KafkaError._PARTITION_EOF)


def is_about_the_group(error: KafkaError) -> bool:
    """Return whether only the consumer group is refused, which our readers do not use.

    librdkafka needs a group name and looks up its coordinator, even if partitions are assigned by
    hand and nothing is committed (rd_kafka_cgrp_serve). A principal that may read the topics need
    not have a right on the group.
    """
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def is_final(error: KafkaError) -> bool:
    """Return whether a retry cannot help."""
    return is_missing(error) or is_refused(error)


def is_passing(error: KafkaError) -> bool:
    """Return whether the same question may be answered soon, as after a leader has moved.

    `KafkaError.retriable()` does not tell: librdkafka sets it for the calls of a transaction only,
    and it is false for every other error.
    """
    return error.code() in _PASSING


def is_missing(error: KafkaError) -> bool:
    """Return whether the topic or partition does not exist."""
    return error.code() in _MISSING


def is_refused(error: KafkaError) -> bool:
    """Return whether the credentials are wrong or a right is missing.

    A connection that breaks in a login has the same code: librdkafka gives it to every error of the
    SASL handshake (rd_kafka_broker_handle_SaslHandshake); and so has a token that could not be had.
    Only its text tells them apart.
    """
    passes = any(text in error.str() for text in _BROKEN_LOGIN) or lacks_token(error)
    return error.code() in _REFUSED and not passes


def lacks_token(error: KafkaError) -> bool:
    """Return whether a login of OAUTHBEARER got no new token. Who gives them is away, or refuses
    the client: librdkafka hands on only their text. The driver asks them at its next start.
    """
    of_login = error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
    return of_login and any(text in error.str() for text in _NO_TOKEN)


def is_unwritable(error: KafkaError) -> bool:
    """Return whether the broker would refuse the record at every try."""
    return error.code() in _UNWRITABLE


def translate(error: KafkaError, where: str, client: Mapping[str, str]) -> SparkOnceError:
    """Return our error for a librdkafka error.

    Args:
        error: librdkafka's error.
        where: the requested topics or range.
        client: the client settings, for the option to look at.
    """
    brokers = client.get("bootstrap.servers", "")
    if error.code() in _MISSING:
        return MissingTopicError(
            "A topic or partition to read does not exist.",
            where=where,
            cause=f"{error.str()}: it was never created, was deleted, or the name is wrong",
            option="subscribe",
        )
    if lacks_token(error):
        return TokenUnavailableError(
            "A client got no token for its login.",
            where=where,
            cause=error.str(),
            option="kafka.sasl.oauthbearer.token.endpoint.url, or the function that gives tokens",
        )
    if is_refused(error):
        login = f"kafka.security.protocol={client.get('security.protocol', 'PLAINTEXT')}"
        return AuthenticationError(
            "The broker refused this client.",
            where=where,
            cause=error.str(),
            option=_RIGHTS.get(error.code(), login),
        )
    return unavailable(where, error.str(), brokers)


def unavailable(where: str, cause: str, brokers: str) -> BrokerUnavailableError:
    """Return the error for brokers that did not answer in time."""
    return BrokerUnavailableError(
        "The brokers did not answer in time.",
        where=where,
        cause=cause,
        option=f"kafka.bootstrap.servers={brokers}",
    )
