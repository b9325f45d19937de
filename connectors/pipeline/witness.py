"""What a cluster says about an application's output, compared with what the decision log says.

A log is not the only witness. Each transaction carries a token (checkpoint, subtask, and something
random), in its marker under a group of its own id, and with its source offsets under the
application's group. A token is committed only together with its records. So the newest token shows
how far the output has come, whatever folder wrote it. A log that knows less was restored from a
backup, or is a copy: newer output would be written a second time. The same shows when a late EndTxn
has made half of an undecided transaction visible.

The cluster forgets a token `offsets.retention.minutes` after the last commit in its group (7 days
by default). Later than that only the log is left.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from connectors.clients.transactional_id import TransactionalId
from connectors.kafka.source.offsets import merged_offsets
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError
from transactions.log_state import LogState

if TYPE_CHECKING:
    from connectors.wire.coordinator_wire import CoordinatorWire
    from connectors.wire.wire_requests import OpenTransaction

#: Looks at a cluster before the Fence, while a driver goes on to write the log.
MOST_LOOKS: Final = 3

_TOKEN: Final = re.compile(r"([0-9]{1,18})\.[0-9]+\.[0-9a-f]{16}")
_PAUSE_S: Final = 0.02
#: A look that the deadline cuts off would say that no broker answers.
_LAST_LOOK_S: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommittedToken:
    """A committed token, and its place.

    Attributes:
        checkpoint_id: of its transaction.
        token: the whole token.
        group: the application's, or one named like the transactional id.
        partition: ``topic-partition``, the key in the group.
        offset: the offset that was committed with it.
    """

    checkpoint_id: int
    token: str
    group: str
    partition: str
    offset: int

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id} in group {self.group}, {self.partition}"


def read_tokens(
    wire: CoordinatorWire,
    application_id: str,
    log: LogState,
    ids: Sequence[OpenTransaction],
    deadline: Deadline,
) -> list[CommittedToken]:
    """Read the tokens that can be newer than a log.

    Args:
        wire: to the cluster.
        application_id: the application whose tokens are read.
        log: it has everything from runs that are older than the run of its last decision. So only
            tokens of that run and later ones are read. This includes runs of a copy that has the
            same numbers: a refused start left a Fence as well.
        ids: all that the cluster knows of the application.
        deadline: when to give up.

    Raises:
        BrokerUnavailableError, AuthenticationError: see `CoordinatorWire.read_markers`.
    """
    groups = [
        application_id,
        *(
            row.transactional_id
            for row in ids
            if (one := TransactionalId.of(application_id, row.transactional_id)) is not None
            and (one.log_id != log.log_id or one.run_epoch >= log.decided_in)
        ),
    ]
    return [
        CommittedToken(
            checkpoint_id=int(match[1]),
            token=text,
            group=group,
            partition=partition,
            offset=offset,
        )
        for group, markers in wire.read_groups(groups, deadline).items()
        for partition, (offset, text) in sorted(markers.items())
        if (match := _TOKEN.fullmatch(text)) is not None
    ]


def newer_than(log: LogState, tokens: Sequence[CommittedToken]) -> list[CommittedToken]:
    """Return the tokens of output that a log does not know. Pure.

    Newer is a later checkpoint, a checkpoint of the same number in another history, or source
    offsets after those of the log: another history may have fewer and larger checkpoints.
    """
    last = log.decision
    number = -1 if last is None else last.checkpoint_id
    known = {one.token for one in log.decided}
    start = _offsets(() if last is None else last.start_offsets)
    end = _offsets(() if last is None else last.end_offsets)

    def is_newer(one: CommittedToken) -> bool:
        if one.token in known or one.token in log.accepted:
            return False
        if one.checkpoint_id > number or (one.checkpoint_id == number and known):
            return True
        if one.group != log.application_id:
            return False
        # A restored decision has no tokens: its end is known.
        limit = (end if one.checkpoint_id == number else start).get(one.partition)
        return limit is not None and one.offset > limit

    return [one for one in tokens if is_newer(one)]


def await_ends(
    wire: CoordinatorWire, application_id: str, log: LogState, deadline: Deadline
) -> list[OpenTransaction]:
    """List the application's ids when none is about to be committed, except the log's own.

    A commit that the coordinator has taken shows its token a moment later. After the writers are
    fenced, no other commit comes.

    Raises:
        BrokerUnavailableError: a commit is still being written at the deadline.
    """
    own = {one.transactional_id for one in log.decision.committables} if log.decision else set()
    while True:
        ids = wire.list_open(application_id, None, deadline, states=())
        ending = [
            row.transactional_id
            for row in ids
            if row.state == "PrepareCommit"
            and row.transactional_id not in own
            and TransactionalId.of(application_id, row.transactional_id) is not None
        ]
        if not ending:
            return ids
        if deadline.remaining() < _LAST_LOOK_S:
            raise BrokerUnavailableError(
                "A transaction of this application is still being committed.",
                where=", ".join(ending),
                cause="a partition that it wrote to has no leader",
                option=f"checkpoint_timeout={deadline.seconds:g} s: the start has waited so long",
            )
        deadline.pause(_PAUSE_S)


def _offsets(texts: Sequence[str]) -> Mapping[str, int]:
    """Read offsets of Kafka sources; a group has no offsets of other sources."""
    try:
        return merged_offsets(filter(None, texts))
    except ConfigurationError:
        return {}
