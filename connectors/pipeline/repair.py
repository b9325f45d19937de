"""A person's repair of a pipeline's transactions, from its Fence on. In the command's process.

A repair does not claim the application on its clusters, as a start does. That would stop a pipeline
that goes on elsewhere from a savepoint, and readers of its output may wait for what the old run
left: this is what `abort` is for. So before its Fence, and behind it, a repair looks whether its
log is the newest one *of this log's id*. After the Fence no driver can begin on this log unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from connectors.clients.transactional_id import TransactionalId
from connectors.operations.transaction_table import (
    Row,
    Standing,
    abortable,
    refuse_to_abort,
)
from connectors.pipeline.witness import MOST_LOOKS, newer_than, read_tokens
from connectors.wire.wire_requests import OPEN_STATES
from transactions.clock import Deadline
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import HiddenCommitError, IdentityMismatchError
from transactions.log_state import LogState

if TYPE_CHECKING:
    from connectors.operations.transaction_reader import TransactionReader

_SHOWN: Final = 5


def take_over(reader: TransactionReader, deadline: Deadline) -> DecisionLog:
    """Append a Fence: after it no older run can decide or continue.

    What a person has accepted stays accepted: only the newest Fence says it.

    Raises:
        IdentityMismatchError: the log is an old copy; nobody was fenced, but for a driver that
            writes this copy all the time.
        FencedError: a driver has taken over meanwhile; see also `DecisionLog.open`.
        DecisionLogError: see `DecisionLog.open`.
        BrokerUnavailableError, AuthenticationError: a cluster could not be asked.
    """
    looks = 0

    def check(log: LogState) -> tuple[str, ...]:
        nonlocal looks
        looks += 1
        if looks > MOST_LOOKS:  # a busy driver: it takes each number while the cluster answers
            return log.accepted
        newer = _newer_history(reader, log, deadline)
        # A driver may have gone on since the log was read. Then the Fence finds its number taken,
        # and all of this is done again.
        if newer and read_log(reader.backend).tail == log.tail:
            raise _old_copy(reader, log, newer)
        return log.accepted

    log = DecisionLog.open(
        reader.backend,
        application_id=reader.state.application_id,
        identity=reader.state.identity,
        check=check,
    )
    # The log now has every decision of the older run, and that run cannot decide any more.
    if newer := _newer_history(reader, log.state, deadline):
        log.check_newest()
        raise _old_copy(reader, log.state, newer)
    return log


def abort_lingering(
    reader: TransactionReader, log: DecisionLog, names: Sequence[str], deadline: Deadline
) -> Iterator[str]:
    """Abort open transactions that no checkpoint owns, and yield the id of each.

    Args:
        reader: of the checkpoint folder.
        log: after `take_over`.
        names: ids or tokens; all if empty.
        deadline: when to give up.

    Raises:
        ConfigurationError: a name is not of such a transaction.
        FencedError: a driver has taken over; the rest is its own.
        HiddenCommitError: readers do not see the last checkpoint.
        BrokerUnavailableError, AuthenticationError: a cluster could not be asked.
    """
    rows = reader.rows(deadline)  # again, behind the Fence
    log.check_newest()
    refuse_to_abort(rows, names)
    # Also for ids that are not aborted now: a log that says `Settled` is believed for good.
    refuse_hidden(reader, rows, deadline)
    if all(row.standing is Standing.COMMITTED for row in rows if row.decided is not None):
        log.settle()  # an abort removes the broker's proof of the transaction before it
    for row in abortable(rows, names):
        ours = TransactionalId.of(log.state.application_id, row.transactional_id)
        if ours is None or ours.run_epoch >= log.run_epoch:
            continue  # a newer run's
        log.check_newest()
        owner = next(s for s, ids in reader.open_ids.items() if row.transactional_id in ids)
        reader.sinks[owner].wire.fence(row.transactional_id, row.timeout_ms, deadline)
        yield row.transactional_id


def refuse_hidden(reader: TransactionReader, rows: list[Row], deadline: Deadline) -> None:
    """Check that readers see what is committed of the last checkpoint.

    Raises:
        HiddenCommitError: they do not.
        BrokerUnavailableError: a partition has no leader that answers.
    """
    if places := reader.hidden_places(rows, deadline):
        raise HiddenCommitError(
            "Records of the last checkpoint are committed, and readers do not see all of them.",
            where="; ".join(places[:_SHOWN]),
            cause="the broker has completed a transaction without a marker there (KAFKA-20734); an "
            "abort under the same producer id would remove the committed records, so nothing was "
            "aborted",
            option="sparkonce transactions write-markers; then repeat this command",
        )


def _newer_history(reader: TransactionReader, log: LogState, deadline: Deadline) -> list[str]:
    """Return what the clusters have of this log's id and the log itself does not know. Tokens in
    the application's own group do not count: another log writes there too.
    """
    app, found = log.application_id, []
    for sink in reader.sinks.values():
        ids = sink.wire.list_open(app, log.log_id, deadline, states=())
        for row in ids:
            one = TransactionalId.of(app, row.transactional_id)
            if one is not None and row.state in OPEN_STATES and one.run_epoch > log.run_epoch:
                found.append(f"{row.transactional_id} is open")
        # Without an id no group is ours. A sink with a lower guarantee needs no right on one.
        tokens = read_tokens(sink.wire, app, log, ids, deadline) if ids else []
        found += map(str, newer_than(log, [one for one in tokens if one.group != app]))
    return sorted(set(found))


def _old_copy(
    reader: TransactionReader, log: LogState, newer: Sequence[str]
) -> IdentityMismatchError:
    last = log.decision
    number = "none" if last is None else f"checkpoint {last.checkpoint_id}"
    return IdentityMismatchError(
        "The clusters have transactions of this decision log that the log itself does not know; "
        "nothing was repaired.",
        where=f"last in the log: {number} ({reader.backend.describe()}); "
        f"on the clusters: {'; '.join(newer[:_SHOWN])}",
        cause="the pipeline went on on another copy of this folder, and its transactions are not "
        "this log's to end",
        option="--checkpoint: the folder of the newest run",
    )
