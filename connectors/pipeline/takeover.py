"""How a run becomes the only one of its application: in its log, and on the clusters of its sinks.

check           before the Fence, harms nobody: is the log the newest there is? A log that a driver
                writes meanwhile is compared by check_again alone
(the Fence)     older runs on this log stop
claim           older runs on any log stop
(recovery)      what they left is committed or aborted
check_again     what they committed meanwhile is in this log, or this run stops
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.clients.transactional_id import TransactionalId
from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.ownership import Ownership
from connectors.pipeline.witness import (
    MOST_LOOKS,
    CommittedToken,
    await_ends,
    newer_than,
    read_tokens,
)
from connectors.wire.wire_requests import OPEN_STATES, OpenTransaction
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError, IdentityMismatchError, PhaseOneError
from transactions.log_state import LogState
from transactions.sink import Committer

logger = logging.getLogger(__name__)

_SHOWN: Final = 5


class Takeover:
    """One start or restart. Lives on the driver. Only Kafka's sinks take part.

    Args:
        application_id: the application that is taken over.
        place: of the checkpoint folder and its log, for people.
        accept_duplicates: go on although the cluster has output that the log does not know.
        before: the takeover of the driver's run before this one; None at its start.
        clock: replaced in tests.
    """

    def __init__(
        self,
        application_id: str,
        place: str,
        *,
        accept_duplicates: bool = False,
        before: Takeover | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._application_id = application_id
        self._place = place
        self._accepts = accept_duplicates
        self._clock = clock
        self._owned: dict[str, Ownership] = dict(before._owned) if before else {}  # noqa: SLF001
        self._sinks: dict[str, KafkaCommitter] = {}
        self._known, self._looks = LogState(), 0

    def write_to(self, sinks: Mapping[str, Committer]) -> None:
        """Set what this run writes to. Sinks on one cluster have one owner."""
        self._sinks = {}
        for sink in sinks.values():
            if isinstance(sink, KafkaCommitter):
                cluster = sink.wire.cluster_id or sink.settings["bootstrap.servers"]
                owned = self._owned.setdefault(
                    cluster, Ownership(self._application_id, self._clock)
                )
                sink.ownership = owned
                self._sinks.setdefault(cluster, sink)

    def check(self, log: LogState, deadline: Deadline) -> tuple[str, ...] | None:
        """Compare a log with the clusters, before its Fence.

        A driver that writes this log may have committed since it was read. So output that the log
        does not know counts only if the log, read once more, has not moved. A log that moves each
        time is written now, and is no backup: after some looks its Fence comes first, at once, and
        `check_again` compares. Else a busy driver could never be fenced.

        Returns:
            Tokens of output that the log does not know, and that a person accepts. None if the log
            must be read once more.

        Raises:
            IdentityMismatchError: a cluster has output that the log does not know.
            ConfigurationError: another log of the application has open transactions.
            FencedError: this driver restarts, and a newer one has taken over.
        """
        may_have_moved = not self._looks or log.tail > self._known.tail
        self._known, self._looks = log, self._looks + 1
        if may_have_moved and self._looks > MOST_LOOKS:
            return log.accepted
        accepted: list[str] = []
        knows_all = True
        for cluster, sink in self._sinks.items():
            with contextlib.suppress(PhaseOneError):  # nobody owns it: this run will
                self._owned[cluster].check_now(sink.wire, sink.timeout_ms, deadline)
            ids = sink.wire.list_open(self._application_id, None, deadline, states=())
            self._refuse_other_logs(sink, self._other_logs(ids, log.log_id), log.log_id)
            tokens = read_tokens(sink.wire, self._application_id, log, ids, deadline)
            accepted += [one.token for one in tokens if one.token in log.accepted]
            newer = newer_than(log, tokens)
            knows_all &= not newer
            if not may_have_moved:
                accepted += [one.token for one in self._refuse_newer(sink, newer)]
        return None if may_have_moved and not knows_all else tuple(sorted(set(accepted)))

    def claim(self, log: DecisionLog, deadline: Deadline) -> None:
        """Take the application over on every cluster, after this run's Fence.

        Raises:
            FencedError: a newer run has fenced this one; the newer run keeps what it has claimed.
        """
        for cluster, sink in self._sinks.items():
            log.check_newest()
            owned = self._owned[cluster]
            owned.claim(sink.wire, sink.timeout_ms, deadline, log.check_newest)

    def check_again(self, log: DecisionLog, deadline: Deadline) -> None:
        """Compare again when nobody else can write: an older run may have committed meanwhile. One
        on another log may have decided before our claim. It commits later, and what it wrote is
        open until then: our sweep takes only transactions of our own log.

        Raises:
            IdentityMismatchError, ConfigurationError: see `check`.
            FencedError: a newer run has taken over, and what was found is its own.
        """
        known = self._known
        for sink in self._sinks.values():
            ids = await_ends(sink.wire, self._application_id, log.state, deadline)
            others = self._other_logs(ids, log.log_id)
            # `known` is from before our Fence: the ids of that run are looked at too.
            tokens = read_tokens(sink.wire, self._application_id, known, ids, deadline)
            newer = newer_than(log.state, tokens)
            if others or newer:
                log.check_newest()
                self.check_newest(deadline)
                self._refuse_other_logs(sink, others, log.log_id)
                self._refuse_newer(sink, newer)

    def check_newest(self, deadline: Deadline) -> None:
        """Check that no newer run has taken over.

        Raises:
            FencedError: one has.
            PhaseOneError: it is not known.
        """
        for cluster, sink in self._sinks.items():
            self._owned[cluster].check_now(sink.wire, sink.timeout_ms, deadline)

    def _other_logs(self, ids: Sequence[OpenTransaction], ours: str) -> set[str]:
        """Return the ids of the logs, but for ours, that have open transactions."""
        named = [
            TransactionalId.of(self._application_id, row.transactional_id)
            for row in ids
            if row.state in OPEN_STATES
        ]
        return {one.log_id for one in named if one is not None} - {ours}

    def _refuse_other_logs(self, sink: KafkaCommitter, others: set[str], ours: str) -> None:
        if others:
            raise ConfigurationError(
                f"Another decision log of the application {self._application_id!r} has open "
                "transactions; two pipelines would write the same output.",
                where=f"sink {sink.name!r}: logs {sorted(others)}, ours is {ours or 'new'}",
                cause="the checkpoint folder was changed while a driver ran on another one",
                option=f"app_id={self._application_id}, checkpoint={self._place}: let the other "
                "pipeline go on (start it again if it has stopped); or stop it, run sparkonce "
                "transactions abort with its folder, and start this one",
            )

    def _refuse_newer(
        self, sink: KafkaCommitter, newer: Sequence[CommittedToken]
    ) -> Sequence[CommittedToken]:
        if not newer:
            return ()
        last = self._known.decision
        number = "none" if last is None else f"checkpoint {last.checkpoint_id}"
        newest = sorted(newer, key=lambda one: one.checkpoint_id, reverse=True)
        shown = "; ".join(map(str, newest[:_SHOWN]))
        if self._accepts:
            logger.warning(
                "the run writes output again that the decision log does not know, because "
                "duplicates are accepted: the log ends with %s, the cluster has %s",
                number,
                shown,
            )
            return newer
        raise IdentityMismatchError(
            "The cluster has output of this application that the decision log does not know; it "
            "would be written twice.",
            where=f"last in the log: {number} ({self._place}); newest on the cluster of sink "
            f"{sink.name!r}: {shown}",
            cause="the checkpoint folder was restored from a backup, was emptied, or is an old "
            "copy of the folder on which the pipeline continued",
            option=f"app_id={self._application_id}: start it on the folder of the newest run; or "
            "--accept-duplicates (in Python accept_duplicates=True, with kafka-exactly-once "
            "acceptDuplicates=true) writes newer records again",
        )
