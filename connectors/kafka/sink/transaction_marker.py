"""The marker of a transaction: a token, as the metadata of an offset that it commits.

It is a proof of the commit for as long as the group keeps it, which is longer than the coordinator
keeps the transaction: that is gone with the next one on the id.
"""

from __future__ import annotations

import enum

from transactions.committable import Committable


class Token(enum.Enum):
    """What stands where a token was expected."""

    COMMITTED = "the token, or that of a later transaction of the same id"
    OLDER = "that of an earlier checkpoint"
    ABSENT = "no offset at all"
    FOREIGN = "what somebody else has committed"


def compare(found: tuple[int, str] | None, one: Committable) -> Token:
    """Return what a committed (offset, metadata), or none, says of a transaction.

    In a group of its own id a later token is a proof too: the producer began that transaction when
    the commit of this one had been answered.
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
