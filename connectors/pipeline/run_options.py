"""What a run must know about its driver, and what of it a checkpoint is bound to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import orjson
import pyarrow as pa

from connectors.doctor.facts import Wanted
from connectors.kafka.sink.kafka_sink import kafka_sinks
from connectors.options.kafka_source import KafkaSource
from connectors.options.sink import identity_of
from connectors.pipeline.changed_parts import SINKS, SOURCES
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import IdentityMismatchError
from transactions.log_location import LogLocation
from transactions.sink import Sink

_GUARANTEES: Final = "sinks_guarantee"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run must know about its driver.

    Attributes:
        app_id: stable name of the pipeline.
        checkpoint: where it lies; the decision log lies in ``decisions`` in it.
        sources: what it reads.
        sinks: what it writes, in the order of the branches.
        checkpoint_timeout_s: how long one checkpoint may take.
        restart_budget_s: how long a restart may take.
        identity: further options that must be the same at every restart on one checkpoint.
        schemas: of the branches, by the names of their sinks.
        interval_s: the longest time between two barriers; 0 where a batch is a checkpoint.
        decision_log: where the log lies, if not there.
        accept_duplicates: start even if a cluster has output that the log does not know; that
            output is then written twice.
    """

    app_id: str
    checkpoint: CheckpointLocation
    sources: Sequence[KafkaSource]
    sinks: Sequence[Sink]
    checkpoint_timeout_s: float
    restart_budget_s: float
    identity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    schemas: Mapping[str, pa.Schema] = dataclasses.field(default_factory=dict)
    interval_s: float = 0.0
    decision_log: LogLocation | None = None
    accept_duplicates: bool = False

    @property
    def log_location(self) -> LogLocation:
        """Where the decision log of this driver lies."""
        return self.decision_log or self.checkpoint.log

    @property
    def fills_s(self) -> float:
        """How long a transaction that is not Kafka's can be open before its checkpoint begins."""
        if not self.interval_s:
            return 0.0
        # It begins after a barrier. The checkpoint before can then take its timeout twice: to the
        # end of its barrier and to its commit.
        return self.interval_s + 2 * self.checkpoint_timeout_s

    @property
    def wanted(self) -> Wanted:
        """What this pipeline needs from a cluster, whatever others have open there."""
        return Wanted(
            application_id=self.app_id,
            checkpoint_timeout_s=self.checkpoint_timeout_s,
            restart_budget_s=self.restart_budget_s,
            interval_s=self.interval_s,
            strangers=False,
        )

    def all_identity(self) -> dict[str, str]:
        """Return what a checkpoint is bound to; see `changed_parts` and `may_change`."""
        topics = sorted({one for source in self.sources for one in source.reads})
        found = {
            SINKS: identity_of(self.sinks),
            SOURCES: ",".join(topics),
            **self.identity,
        }
        # Only guarantees below exactly-once are named: older checkpoints do not know the word. The
        # name sorts after "sinks", so that another set of sinks is reported as such.
        kafka = kafka_sinks(self.sinks)
        less = {each.name: each.guarantee for each in kafka if not each.is_transactional}
        if less:
            found[_GUARANTEES] = orjson.dumps(less, option=orjson.OPT_SORT_KEYS).decode()
        return found

    def may_change(self, option: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
        """Return whether this run may change an option of the identity; see `DecisionLog.open`.

        A guarantee may rise: a write without transactions leaves nothing to end. It may not fall
        from exactly-once: only an exactly-once start commits what was decided, heals what was lost
        and aborts what was left open, and readers would wait for the open transactions.

        Raises:
            IdentityMismatchError: the guarantee would fall.
        """
        if option != _GUARANTEES:
            return False
        lower = orjson.loads(now.get(option, "{}"))
        written = orjson.loads(before.get(SINKS, "{}"))
        known = orjson.loads(before.get(option, "{}"))
        fallen = sorted((lower.keys() & written.keys()) - known.keys())
        if fallen:
            name = fallen[0]
            raise IdentityMismatchError(
                f"The sink {name!r} has written this checkpoint exactly-once, and cannot continue "
                f"with the guarantee {lower[name]}.",
                where=str(self.checkpoint),
                cause="only an exactly-once start ends the transactions that the sink decided or "
                "left open",
                option=f"guarantee={lower[name]}: use exactly-once again; or stop the pipeline, "
                "and start it with another id and checkpoint at the offsets of its consumer group",
            )
        return True
