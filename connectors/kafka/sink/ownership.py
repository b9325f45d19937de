"""Decides which run owns an application on a cluster: the newest one, whatever its folder.

The Fence of a decision log stops older runs on the same log. Nothing in a folder can stop a run on
a copy of that folder: both logs have the same id, so each run would abort the other's transactions.
Both runs share only the cluster. So every driver that starts initialises one transactional id of
the application, ``<application>.owner``, on which no transaction is ever opened. The broker answers
with a producer id and an epoch that nobody else gets. While the broker still describes the id with
these two, no newer driver has started: a restart in the same driver only looks.

**An id that the broker does not know** has expired: nobody has initialised it for
`transactional.id.expiration.ms` (7 days by default). A run initialises its own id again once an
hour, with the form of InitProducerId that the broker refuses to everybody but the present owner. So
a running run never sees its id expire. A run that sees it was asleep for days. Meanwhile another
run may have come, written, and gone. So this run must not continue: it fails, and the restart
strategy starts it again. This start compares the log with the cluster, as every start does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from connectors.clients.transactional_id import owner_id
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import DecisionLogError, FencedError, PhaseOneError
from transactions.events import publish

if TYPE_CHECKING:
    from connectors.wire.coordinator_wire import CoordinatorWire
    from connectors.wire.wire_requests import ProducerIdentity, TransactionDescription

_REFRESH_S: Final = 3600.0


class Ownership:
    """One run's claim to its application on one cluster. Lives on the driver; for any thread.

    Args:
        application_id: the application to claim.
        clock: replaced in tests.

    Attributes:
        transactional_id: the id that every start initialises.
    """

    def __init__(self, application_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.transactional_id = owner_id(application_id)
        self._clock = clock
        self._held: ProducerIdentity | None = None
        self._held_since = 0.0
        self._application_id = application_id
        self._check_log: Callable[[], None] = lambda: None
        self._told_fenced = False
        #: A refresh had no answer: the broker may now have the next epoch for us.
        self._doubtful = False

    def claim(
        self,
        wire: CoordinatorWire,
        timeout_ms: int,
        deadline: Deadline,
        check_log: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over the application: the next check of every older run fails.

        A restart of the driver owns it already, or yields to who does. It claims nothing again: if
        the answer were lost, it would take its own claim for a newer run's.

        Args:
            wire: to the cluster.
            timeout_ms: the transaction timeout.
            deadline: when to give up.
            check_log: raises FencedError if the newer run is on this run's log, and tells it.

        Raises:
            FencedError: this driver restarts, and a newer one owns the application.
            BrokerUnavailableError, AuthenticationError: see `CoordinatorWire.fence`.
        """
        self._check_log, self._told_fenced = check_log, False
        if self._held is not None:
            try:
                self.check_now(wire, timeout_ms, deadline)
            except PhaseOneError:
                self._held = None  # the cluster has forgotten it: as at a driver's first start
        if self._held is None:
            claimed = wire.fence(self.transactional_id, timeout_ms, deadline)
            assert claimed is not None, "only who says what it holds can be refused"
            self._hold(claimed)

    def _hold(self, identity: ProducerIdentity) -> None:
        self._held, self._held_since = identity, self._clock.monotonic()
        self._doubtful = False

    def check(self, now: TransactionDescription) -> None:
        """Check that this run still owns the application; a run without a claim passes.

        Args:
            now: the coordinator's description of `transactional_id`.

        Raises:
            FencedError: a newer run owns it.
            PhaseOneError: the cluster has forgotten the owner; a restart claims the id again.
        """
        held = self._held
        if held is None or (now.producer_id, now.producer_epoch) == held:
            return
        if now.error or self._doubtful:
            raise PhaseOneError(
                "This run no longer knows whether it is the newest run of its application; nothing "
                "of this checkpoint is visible.",
                where=f"{self.transactional_id}: {now.error or 'the broker did not answer'}",
                cause="this driver was paused for longer than the broker keeps transactional ids, "
                "or an answer was lost; a restart first compares the log with the cluster",
                option="the broker's transactional.id.expiration.ms",
            )
        self._tell_fenced()
        raise FencedError(
            "A newer run of this application owns it on the cluster; this run has stopped.",
            where=f"{self.transactional_id}: producer {now.producer_id}, epoch "
            f"{now.producer_epoch}; ours was {held[0]}, epoch {held[1]}",
            cause="a second driver was started with this application id, on another checkpoint "
            "folder or on a copy of this one; the newest wins",
            option="app_id: use another id for each pipeline; or stop one of the two drivers",
        )

    def _tell_fenced(self) -> None:
        """Publish it once. A newer run on the same log is the log's to tell: it knows the host."""
        with contextlib.suppress(DecisionLogError):  # it does not answer: the id says enough
            self._check_log()
        if not self._told_fenced:
            self._told_fenced = True
            publish("fenced", app=self._application_id, by=self.transactional_id)

    def check_now(self, wire: CoordinatorWire, timeout_ms: int, deadline: Deadline) -> None:
        """Ask the broker and call `check`; once an hour, refresh the id so that it never expires.

        Raises:
            FencedError, PhaseOneError: see `check`.
            BrokerUnavailableError: no answer.
        """
        if self._held is None:
            return
        if self._doubtful:  # a repeated refresh has the same effect as one refresh
            self._refresh(wire, timeout_ms, deadline)
        self.check(wire.describe([self.transactional_id], deadline)[self.transactional_id])
        if self.is_due():
            self._refresh(wire, timeout_ms, deadline)

    def is_due(self) -> bool:
        """Return whether `check_now` is due even if there is no other reason for it."""
        return self._held is not None and self._clock.monotonic() - self._held_since >= _REFRESH_S

    def _refresh(self, wire: CoordinatorWire, timeout_ms: int, deadline: Deadline) -> None:
        assert self._held is not None
        self._doubtful = True
        again = wire.fence(self.transactional_id, timeout_ms, deadline, held=self._held)
        if again is None:
            self._doubtful = False  # refused: another run owns it; the next check raises
        else:
            self._hold(again)
