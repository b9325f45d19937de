"""Every right that a pipeline asks brokers for, by what a login is used for: one table.

An ACL that allows READ or WRITE also allows DESCRIBE (Kafka's StandardAuthorizer), so DESCRIBE
stands only where it is alone. A producer without transactions is idempotent: since Kafka 3.0 it
needs no more for that than WRITE on a topic.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from typing import Final

from connectors.clients.offsets_topic import OFFSETS_TOPIC

LITERAL: Final = "LITERAL"
PREFIXED: Final = "PREFIXED"


@dataclasses.dataclass(frozen=True, slots=True)
class AclRule:
    """One right, in the words of Kafka's API.

    Attributes:
        resource_type: CLUSTER, TOPIC, GROUP or TRANSACTIONAL_ID.
        pattern_type: LITERAL or PREFIXED.
        name: of the resource, or its beginning.
        operations: READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS; sorted.
        reason: what for.
    """

    resource_type: str
    pattern_type: str
    name: str
    operations: tuple[str, ...]
    reason: str


class Role(enum.Enum):
    """What a job uses a login for."""

    TRANSACTIONS = "a sink that is exactly-once"
    PLAIN = "a Kafka sink with another guarantee"
    READER = "the source; the sink whose transactions carry its offsets"
    LAG = "the source, where no transaction carries its offsets"
    STARTING_GROUP = "the source with `startingGroupId`"


#: The names in `TABLE` that stand for those of a job.
APP, OF_APP, GROUP = "<application>", "<application>.", "<startingGroupId>"
INPUT, BEGINNING, OUTPUT = "<input>", "<beginning of subscribePattern>", "<output>"
_RECORDS: Final = "its records; its offsets, which a broker takes only from who may read it"

#: What a login is used for, and what that needs. docs/operations.md shows the same table.
TABLE: Final = tuple(
    (role, AclRule(resource, pattern, name, operations, reason))
    for role, resource, pattern, name, operations, reason in (
        (
            *(Role.TRANSACTIONS, "CLUSTER", LITERAL, "kafka-cluster", ("DESCRIBE_CONFIGS",)),
            "the longest transaction timeout, and how long offsets are kept",
        ),
        (
            *(Role.TRANSACTIONS, "TRANSACTIONAL_ID", PREFIXED, OF_APP, ("WRITE",)),
            "its transactions",
        ),
        (
            *(Role.TRANSACTIONS, "GROUP", LITERAL, APP, ("READ",)),
            "source offsets; each start reads them",
        ),
        (
            *(Role.TRANSACTIONS, "GROUP", PREFIXED, OF_APP, ("READ",)),
            "the markers that prove its commits",
        ),
        (
            *(Role.LAG, "GROUP", LITERAL, APP, ("READ",)),
            "source offsets for lag tools; without it there are only warnings",
        ),
        (
            *(Role.STARTING_GROUP, "GROUP", LITERAL, GROUP, ("DESCRIBE",)),
            "the first start begins where this group stands",
        ),
        (Role.READER, "TOPIC", LITERAL, INPUT, ("READ",), _RECORDS),
        (Role.READER, "TOPIC", PREFIXED, BEGINNING, ("READ",), _RECORDS),
        (
            *(Role.TRANSACTIONS, "TOPIC", LITERAL, OUTPUT, ("READ", "WRITE")),
            "records; markers of tasks without source offsets, and hidden commits, need READ",
        ),
        (Role.PLAIN, "TOPIC", LITERAL, OUTPUT, ("WRITE",), "records"),
        (
            *(Role.TRANSACTIONS, "TOPIC", LITERAL, OFFSETS_TOPIC, ("DESCRIBE",)),
            "without it a broker hides the topic where it describes transactions",
        ),
    )
)


def merged(rules: Iterable[AclRule]) -> Iterator[AclRule]:
    """Yield one rule for each resource, without what its other operations allow anyway."""
    found: dict[tuple[str, str, str], list[AclRule]] = {}
    for one in rules:
        found.setdefault((one.resource_type, one.pattern_type, one.name), []).append(one)
    for same in found.values():
        operations = {each for one in same for each in one.operations}
        if operations & {"READ", "WRITE"}:
            operations.discard("DESCRIBE")
        reason = "; ".join(dict.fromkeys(one.reason for one in same))
        yield dataclasses.replace(same[0], operations=tuple(sorted(operations)), reason=reason)
