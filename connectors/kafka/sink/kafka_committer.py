"""The Kafka sink's half on the driver: it ends transactions whose writers may be dead.

`check_prepared`, `commit`, `recover_and_commit`, `lingering` and `recover_and_abort` send raw
requests to the transaction coordinator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from connectors.clients.transactional_id import TransactionalId, owner_id, probe_id
from connectors.kafka.sink.ownership import Ownership
from connectors.kafka.sink.prepared import not_prepared, output_partitions
from connectors.kafka.sink.retired_ids import RetiredIds
from connectors.kafka.sink.transaction_marker import Token, compare
from connectors.kafka.sink.visibility import CommitVisibility
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.errors import PhaseOneError
from transactions.sink import Owner

_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED_STATES = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class KafkaCommitter:
    """Asks the coordinator about transactions, and ends them.

    Attributes:
        name: see `Committer.name`.
        settings: client settings with the brokers in them.
        timeout_ms: the transaction timeout, checked against the broker; 0 before it was asked.
        offsets_partitions: the number of `__consumer_offsets` partitions; 0 before it was asked.
        ownership: the run's claim to its application on this cluster; None where no other run is
            possible, as in a test.

    Args:
        name: see above.
        settings: see above.
    """

    timeout_ms: int = 0

    offsets_partitions: int = 0
    ownership: Ownership | None = None

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.settings = settings
        self._wire: CoordinatorWire | None = None
        self._visibility: CommitVisibility | None = None
        self._retired = RetiredIds()

    @property
    def wire(self) -> CoordinatorWire:
        """The driver's connection to the transaction coordinator, made when first needed."""
        if self._wire is None:
            self._wire = CoordinatorWire(self.settings)
        return self._wire

    def close(self) -> None:
        """Close the driver's connections."""
        if self._visibility is not None:
            self._visibility.close()
            self._visibility = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `Committer.check_prepared`: the transaction must be Ongoing, have the same pid and
        epoch, and contain its marker's partition. (If a late EndTxn has split a transaction, the
        second half lacks it.) The same request checks whether this run still owns the application.
        """
        owner = [] if self.ownership is None else [self.ownership.transactional_id]
        ids = [one.transactional_id for one in committables]
        found = self.wire.describe([*ids, *owner], deadline)
        if self.ownership is not None:
            self.ownership.check(found[self.ownership.transactional_id])
        checked = []
        for one in committables:
            now = found[one.transactional_id]
            if problem := not_prepared(one, now, self.offsets_partitions):
                raise PhaseOneError(
                    f"A prepared transaction has changed: {problem}.",
                    where=f"checkpoint {one.checkpoint_id}, subtask {one.subtask}, "
                    f"{one.transactional_id}: {now}",
                    cause="it timed out, or another driver or an operator ended it",
                    option=f"transactionTimeoutMs={one.timeout_ms}",
                )
            described = one.described(start_time_ms=now.start_time_ms)
            written = tuple(sorted(output_partitions(now)))
            checked.append(dataclasses.replace(described, partitions=written))
        return checked

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.commit`: EndTxn(commit) for all, in parallel."""
        self._retired.reached(one.checkpoint_id for one in committables)
        try:
            outcomes = self.wire.commit(committables, deadline)
        finally:  # an error is about one id; another one of this call may be in doubt
            self._retired.add(self.wire.doubtful & {one.transactional_id for one in committables})
        return {one.token: outcomes[one.transactional_id] for one in committables}

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer.recover_and_commit`: it follows the recovery table of docs/design.md.
        The proofs are the start time and producer id, which the broker keeps after the end.
        """
        found = self.wire.describe([one.transactional_id for one in committables], deadline)
        self._retired.reached(one.checkpoint_id for one in committables)
        outcomes: dict[str, Outcome] = {}
        still_open: list[Committable] = []
        for one in committables:
            now = found[one.transactional_id]
            ours = now.producer_id == one.producer_id and now.start_time_ms == one.start_time_ms
            if ours and now.state == "Ongoing" and now.producer_epoch == one.producer_epoch:
                still_open.append(one)
            elif ours and now.state in _COMMITTED_STATES:
                outcomes[one.token] = Outcome.ALREADY_COMMITTED
            elif ours and now.state in _ABORTED_STATES:
                outcomes[one.token] = Outcome.ABORTED
            else:
                outcomes[one.token] = self._by_marker(one, now.state, deadline)
            if outcomes.get(one.token) is Outcome.ABORTED:
                self._retired.add([one.transactional_id])
        if still_open:
            outcomes.update(self.commit(still_open, deadline))
        return outcomes

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """See `Committer.lingering`.

        On a copy of the folder, run epochs do not say which run is newer; the owner id does. The
        owner is checked *after* the list. So no newer run began the transactions of the list.

        This run owns one application. Of another one that it has overtaken, only the log says which
        run is newer.
        """
        owned = self.ownership
        if owned is not None and owned.transactional_id != owner_id(owner.application_id):
            owned = None
        found = self.wire.list_open(owner.application_id, owner.log_id, deadline)
        ids = [
            row.transactional_id
            for row in found
            if row.state == "Ongoing"
            and (one := TransactionalId.of(owner.application_id, row.transactional_id)) is not None
            and (owned is not None or one.run_epoch <= owner.run_epoch)
        ]
        if owned is not None and (ids or owned.is_due()):
            owned.check_now(self.wire, self.timeout_ms, deadline)
        return ids

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """See `Committer.recover_and_abort`: InitProducerId aborts and fences."""
        for transactional_id in transaction_ids:
            self.wire.fence(transactional_id, self.timeout_ms, deadline)
            self._retired.add([transactional_id])

    def count_offsets_partitions(self, deadline: Deadline) -> None:
        """Ask for the number of `__consumer_offsets` partitions, before tasks choose ids by it. If
        the cluster is new, use the number that the topic will have.

        Raises:
            BrokerUnavailableError: no answer.
            AuthenticationError: DESCRIBE_CONFIGS on the cluster is missing.
        """
        self.offsets_partitions = len(self.visibility.offsets_partitions(deadline)) or int(
            self.wire.broker_setting("offsets.topic.num.partitions", deadline)
        )

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        """See `Committer.hidden`: finds each partition that has no marker."""
        return [str(one) for one in self.visibility.hidden(committed, deadline)]

    @property
    def visibility(self) -> CommitVisibility:
        """The driver's connection to the partitions' leaders, made when first needed."""
        if self._visibility is None:
            self._visibility = CommitVisibility(self.settings, self.wire)
        return self._visibility

    def retired(self) -> frozenset[str]:
        """See `Committer.retired`."""
        return self._retired.all()

    def _by_marker(self, one: Committable, state: str, deadline: Deadline) -> Outcome:
        """Only the token can prove this commit: the id moved on, was re-initialised or expired.

        A driver that died in the next checkpoint's phase 1 left open transactions with offsets of
        the same partitions. They are swept only after this: a stable read would wait for them. A
        transaction's token is a committed value only if that transaction was committed.

        A missing token proves an abort only if the broker would still have the token: no open
        transaction may hide it, it may not have expired, and nobody may have written over it.
        """
        standing = Token.ABSENT
        for stable in (False, True):
            found = self.wire.read_markers(
                one.marker_group, [one.marker_partition], deadline, stable=stable
            )
            standing = compare(found.get(one.marker_partition), one)
            if standing is Token.COMMITTED:
                return Outcome.ALREADY_COMMITTED
        if state == "Ongoing" or standing is Token.FOREIGN:
            return Outcome.UNKNOWN
        return Outcome.ABORTED if self._is_young(one, deadline) else Outcome.UNKNOWN

    def _is_young(self, one: Committable, deadline: Deadline) -> bool:
        """Return whether its marker cannot have expired. Start and now come from the brokers'
        clocks: a tenth is left for their difference, and a start in the future proves nothing.
        """
        if one.start_time_ms < 0:
            return False
        application_id, _, _ = one.transactional_id.partition(".")
        now_ms = self.wire.broker_now_ms(
            probe_id(application_id), application_id, one.timeout_ms, deadline
        )
        minutes = int(self.wire.broker_setting("offsets.retention.minutes", deadline))
        return now_ms is not None and 0 <= now_ms - one.start_time_ms < minutes * 60_000 * 0.9
