"""Which run owns an application on a cluster: the newest one, whatever folder it runs on.

The Fence of a decision log stops older runs on the same log. Nothing in a folder can stop a run on
a copy of that folder: both logs have the same id, so each run would abort what the other writes.
The cluster is what the two have in common. One transactional id of the application,
``<application>.owner``, is initialised again by every start. No transaction is ever opened on it.
The broker answers with a producer id and an epoch that it gives to nobody else; as long as it
still describes the id with these two, no newer run has started.

**An id that the broker does not know** has expired: nobody has initialised it for
`transactional.id.expiration.ms` (7 days by default). A run initialises its own again once an hour,
by the form of InitProducerId that the broker refuses to everybody but the present owner. So an
awake run never sees its id expire. A run that does was asleep for days, and in this time another
run may have come, written, and gone. It must not go on on its own word: it fails, and the restart
strategy starts it again. This start compares the log with the cluster, as every start does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.clients.transactional_id import owner_id
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import FencedError, PhaseOneError

if TYPE_CHECKING:
    from connectors.wire.coordinator_wire import CoordinatorWire
    from connectors.wire.wire_requests import ProducerIdentity, TransactionDescription

_REFRESH_S: Final = 3600.0


class Ownership:
    """One run's claim to its application on one cluster. Lives on the driver; for any thread.

    Args:
        application_id: whose.
        clock: replaced in tests.

    Attributes:
        transactional_id: the id that is initialised.
    """

    def __init__(self, application_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.transactional_id = owner_id(application_id)
        self._clock = clock
        self._held: ProducerIdentity | None = None
        self._held_since = 0.0
        #: The answer to a refresh was lost: the broker may describe us with the next epoch.
        self._doubtful = False

    def claim(self, wire: CoordinatorWire, timeout_ms: int, deadline: Deadline) -> None:
        """Take the application over: every older run fails its next check.

        Raises:
            BrokerUnavailableError, AuthenticationError: see `CoordinatorWire.fence`.
        """
        claimed = wire.fence(self.transactional_id, timeout_ms, deadline)
        assert claimed is not None, "only who says what it holds can be refused"
        self._hold(claimed)

    def _hold(self, identity: ProducerIdentity) -> None:
        self._held, self._held_since = identity, self._clock.monotonic()
        self._doubtful = False

    def check(self, now: TransactionDescription) -> None:
        """Look whether the application is this run's still; of a run without a claim nobody asks.

        Args:
            now: the coordinator's words for `transactional_id`.

        Raises:
            FencedError: a newer run owns it.
            PhaseOneError: the cluster has forgotten whose it is; a restart claims it again.
        """
        held = self._held
        if held is None or (now.producer_id, now.producer_epoch) == held:
            return
        if now.error or self._doubtful:
            raise PhaseOneError(
                "Whether this run is the newest of its application is not known any more; "
                "nothing of this checkpoint is visible.",
                where=f"{self.transactional_id}: {now.error or 'the broker did not answer'}",
                cause="this driver was asleep for longer than transactional ids are kept, or an "
                "answer was lost; a restart compares the log with the cluster first",
                option="the broker's transactional.id.expiration.ms",
            )
        raise FencedError(
            "A newer run of this application owns it on the cluster; this run has stopped.",
            where=f"{self.transactional_id}: producer {now.producer_id}, epoch "
            f"{now.producer_epoch}; ours was {held[0]}, epoch {held[1]}",
            cause="a second driver was started with this application id, on another checkpoint "
            "folder or on a copy of this one; the newest wins",
            option="app_id: an id of its own for each pipeline; or stop one of the two drivers",
        )

    def check_now(self, wire: CoordinatorWire, timeout_ms: int, deadline: Deadline) -> None:
        """Ask the broker, then see `check`; once an hour, keep the id from its expiry.

        Raises:
            FencedError, PhaseOneError: see `check`.
            BrokerUnavailableError: no answer.
        """
        if self._held is None:
            return
        if self._doubtful:  # a repetition has the same effect as the first one
            self._refresh(wire, timeout_ms, deadline)
        self.check(wire.describe([self.transactional_id], deadline)[self.transactional_id])
        if self.is_due():
            self._refresh(wire, timeout_ms, deadline)

    def is_due(self) -> bool:
        """Tell whether it is time for `check_now`, although there is no other reason."""
        return self._held is not None and self._clock.monotonic() - self._held_since >= _REFRESH_S

    def _refresh(self, wire: CoordinatorWire, timeout_ms: int, deadline: Deadline) -> None:
        assert self._held is not None
        self._doubtful = True
        again = wire.fence(self.transactional_id, timeout_ms, deadline, held=self._held)
        if again is None:
            self._doubtful = False  # refused: somebody else's; the next look at it says so
        else:
            self._hold(again)
