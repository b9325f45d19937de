"""The meaning of every broker answer, in one table; no other file looks at error codes.

An error code alone never proves that a decided transaction is committed or lost. The same code also
comes when the id was initialised again, has expired, or was ended before. So the row of such a code
has the meaning ASK: the recovery table (describe, then the marker) decides.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class Request(enum.Enum):
    """The requests that the driver sends."""

    END_TXN = "EndTxn(commit)"
    INIT_PRODUCER_ID = "InitProducerId"
    KEEP_PRODUCER_ID = "InitProducerId(held)"
    DESCRIBE_TRANSACTIONS = "DescribeTransactions"
    LIST_TRANSACTIONS = "ListTransactions"
    OFFSET_FETCH = "OffsetFetch"
    FIND_COORDINATOR = "FindCoordinator"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    METADATA = "Metadata"
    DESCRIBE_GROUPS = "DescribeGroups"
    DESCRIBE_ACLS = "DescribeAcls"
    ADD_OFFSETS = "AddOffsetsToTxn"
    LIST_OFFSETS = "ListOffsets"
    DESCRIBE_PRODUCERS = "DescribeProducers"
    WRITE_TXN_MARKERS = "WriteTxnMarkers"


class Meaning(enum.Enum):
    """What to do about an answer."""

    DONE = "done"
    RETRY = "retry: send the same request again, to the same broker"
    REFIND = "re-find: look the coordinator up again, then send again"
    DOUBT = "doubt: it may or may not have been carried out"
    ASK = "ask: proves nothing by itself, the recovery table decides"
    ABSENT = "absent: the broker does not know the id"
    AUTHORIZATION = "authorization: the principal lacks a right; permanent"
    CONFIGURATION = "configuration: a setting is refused; permanent"
    BUG = "bug: we sent something we must not send"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One row of the table, read for one kind of request.

    Attributes:
        code: Kafka's number.
        name: Kafka's name.
        meaning: what to do.
        sentence: why, for people.
    """

    code: int
    name: str
    meaning: Meaning
    sentence: str

    def __str__(self) -> str:
        """Return name, number and sentence, as an error text quotes them."""
        return f"{self.name} ({self.code}): {self.sentence}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    name: str
    meaning: Meaning
    sentence: str
    unless: Mapping[Request, Meaning] = dataclasses.field(default_factory=dict)


_END: Final = Request.END_TXN
_INIT: Final = Request.INIT_PRODUCER_ID
_KEEP: Final = Request.KEEP_PRODUCER_ID
_DESCRIBE: Final = Request.DESCRIBE_TRANSACTIONS

#: code -> name, meaning, sentence, and the requests for which it means something else.
TABLE: Final[Mapping[int, _Row]] = MappingProxyType(
    {
        0: _Row("NONE", Meaning.DONE, "carried out; for EndTxn, now or at an earlier try"),
        -1: _Row(
            "UNKNOWN_SERVER_ERROR",
            Meaning.RETRY,
            "an internal error of the broker; the request may be carried out or not",
            {_END: Meaning.DOUBT},
        ),
        3: _Row(
            "UNKNOWN_TOPIC_OR_PARTITION",
            Meaning.RETRY,
            "an internal topic is still being created",
            {_END: Meaning.DOUBT},
        ),
        5: _Row(
            "LEADER_NOT_AVAILABLE",
            Meaning.RETRY,
            "the partition has no leader now",
            {_END: Meaning.ASK},
        ),
        6: _Row(
            "NOT_LEADER_FOR_PARTITION",
            Meaning.RETRY,
            "the partition has another leader now",
            {_END: Meaning.ASK},
        ),
        7: _Row(
            "REQUEST_TIMED_OUT",
            Meaning.RETRY,
            "the broker began the request, but its own wait timed out",
            {_END: Meaning.DOUBT},
        ),
        14: _Row(
            "COORDINATOR_LOAD_IN_PROGRESS", Meaning.RETRY, "the coordinator is reading its log"
        ),
        15: _Row(
            "COORDINATOR_NOT_AVAILABLE",
            Meaning.REFIND,
            "no coordinator now, or its log has too few replicas to write to",
        ),
        16: _Row("NOT_COORDINATOR", Meaning.REFIND, "the coordinator has moved to another broker"),
        29: _Row("TOPIC_AUTHORIZATION_FAILED", Meaning.AUTHORIZATION, "a right on the topic"),
        30: _Row(
            "GROUP_AUTHORIZATION_FAILED",
            Meaning.AUTHORIZATION,
            "a right on the group: DESCRIBE to read its offsets, READ to commit them",
        ),
        31: _Row("CLUSTER_AUTHORIZATION_FAILED", Meaning.AUTHORIZATION, "a right on the cluster"),
        35: _Row("UNSUPPORTED_VERSION", Meaning.CONFIGURATION, "the broker is too old for this"),
        40: _Row("INVALID_CONFIG", Meaning.CONFIGURATION, "the broker knows no such setting"),
        42: _Row("INVALID_REQUEST", Meaning.BUG, "the request is malformed"),
        47: _Row(
            "INVALID_PRODUCER_EPOCH",
            Meaning.BUG,
            "the epoch has moved on: a timeout, or somebody initialised the id again",
            {_END: Meaning.ASK, _INIT: Meaning.RETRY, _KEEP: Meaning.ASK},
        ),
        48: _Row(
            "INVALID_TXN_STATE",
            Meaning.BUG,
            "no transaction is open under this epoch: empty, aborted, or a later one was open",
            {_END: Meaning.ASK},
        ),
        49: _Row(
            "INVALID_PRODUCER_ID_MAPPING",
            Meaning.BUG,
            "the id has expired, or belongs to another producer id now",
            {_END: Meaning.ASK},
        ),
        50: _Row(
            "INVALID_TRANSACTION_TIMEOUT",
            Meaning.CONFIGURATION,
            "above the broker's transaction.max.timeout.ms",
        ),
        51: _Row(
            "CONCURRENT_TRANSACTIONS",
            Meaning.RETRY,
            "the end of a transaction is still being written to its partitions",
        ),
        52: _Row("TRANSACTION_COORDINATOR_FENCED", Meaning.REFIND, "an older coordinator answered"),
        53: _Row(
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            Meaning.AUTHORIZATION,
            "WRITE and DESCRIBE on the transactional id (prefix = application id)",
        ),
        54: _Row(
            "SECURITY_DISABLED", Meaning.CONFIGURATION, "the broker has no authorizer configured"
        ),
        58: _Row("SASL_AUTHENTICATION_FAILED", Meaning.AUTHORIZATION, "wrong credentials"),
        88: _Row(
            "UNSTABLE_OFFSET_COMMIT",
            Meaning.RETRY,
            "a transaction holds the offset; the answer would be the old value",
        ),
        89: _Row("THROTTLING_QUOTA_EXCEEDED", Meaning.RETRY, "a quota throttles this client"),
        90: _Row(
            "PRODUCER_FENCED",
            Meaning.BUG,
            "the epoch has moved on: a timeout, or somebody initialised the id again",
            {_END: Meaning.ASK, _INIT: Meaning.RETRY, _KEEP: Meaning.ASK},
        ),
        105: _Row(
            "TRANSACTIONAL_ID_NOT_FOUND",
            Meaning.BUG,
            "never used, or expired (transactional.id.expiration.ms)",
            {_DESCRIBE: Meaning.ABSENT, _END: Meaning.ASK},
        ),
        120: _Row(
            "TRANSACTION_ABORTABLE",
            Meaning.BUG,
            "the broker wants this transaction aborted",
            {_END: Meaning.ASK, _INIT: Meaning.RETRY},
        ),
        128: _Row("INVALID_REGULAR_EXPRESSION", Meaning.BUG, "RE2J refuses our id pattern"),
    }
)


def read(request: Request, code: int) -> Answer:
    """Return what a code means as the answer to a request.

    A code that is not in the table proves nothing: for EndTxn the recovery table decides, every
    other request raises.
    """
    row = TABLE.get(code)
    if row is None:
        meaning = Meaning.ASK if request is Request.END_TXN else Meaning.BUG
        return Answer(code, f"error {code}", meaning, "a code that this version does not know")
    return Answer(code, row.name, row.unless.get(request, row.meaning), row.sentence)
