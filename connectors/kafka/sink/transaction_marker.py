"""The marker of a transaction: a token, as the metadata of an offset that it commits.

It is a proof of the commit for as long as the group keeps it, which is longer than the coordinator
keeps the transaction: that is gone with the next one on the id.

**The marker is the first operation of a transaction, and comes once** (rule 9). A late EndTxn of an
earlier transaction can end the first half of this one, and the rest goes into a second transaction
without any error. The second one lacks the marker's partition of `__consumer_offsets`, which the
broker names when it describes the transaction. Source offsets are the last operation, and go under
the application's group. They would bring that partition back if the two groups were kept in one, so
an id is chosen whose group lies in another partition.
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
