"""The marker of a transaction: a token in the metadata of an offset that it commits.

The marker proves the commit while the group keeps it. That is longer than the coordinator keeps the
transaction, which the next transaction on the id replaces.

**The marker is the first operation of a transaction, and comes once** (rule 9). A late EndTxn of an
earlier transaction can end the first half of this one. The rest then goes into a second transaction
without any error. That second one lacks the marker's partition of `__consumer_offsets`, and the
broker's description of the transaction shows this. Source offsets are the last operation, and use
the application's group. If one partition kept both groups, the source offsets would bring it back.
So an id is chosen whose group lies in another partition.
"""

from __future__ import annotations

import enum

from transactions.committable import Committable


class Token(enum.Enum):
    """What stands in the place of an expected token."""

    COMMITTED = "the token, or that of a later transaction of the same id"
    OLDER = "that of an earlier checkpoint"
    ABSENT = "no offset at all"
    FOREIGN = "what somebody else has committed"


def compare(found: tuple[int, str] | None, one: Committable) -> Token:
    """Return what a committed (offset, metadata), or None, says about a transaction.

    In a group of the id's own, a later token is also a proof: the producer began that transaction
    after the commit of this one was answered.
    """
    if found is None:
        return Token.ABSENT
    _, metadata = found
    if metadata == one.token:
        return Token.COMMITTED
    checkpoint, _, rest = metadata.partition(".")
    if not rest or not checkpoint.isdigit():
        return Token.FOREIGN
    if int(checkpoint) < one.checkpoint_id:
        return Token.OLDER
    of_its_id = one.marker_group.startswith(one.transactional_id)
    later = int(checkpoint) > one.checkpoint_id
    return Token.COMMITTED if of_its_id and later else Token.FOREIGN
