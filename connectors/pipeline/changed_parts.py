"""What may change in a pipeline between two runs on one checkpoint: its sinks, and the topics that
it reads. Pure: it compares what the log says with what the run has.

A new topic is read from its beginning. The offsets of a topic that is left out stay in the
decisions, so nothing is lost when it comes back. A new sink gets the records of later checkpoints;
one that is left out gets none. What would lose or repeat records is refused, before the Fence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from connectors.kafka.source.offsets import merged_offsets, split_key
from connectors.options.kafka_source import KafkaSource
from transactions.errors import IdentityMismatchError
from transactions.log_state import LogState

#: Options of the identity; see `RunOptions.all_identity`.
SINKS: Final = "sinks"
SOURCES: Final = "sources"

_AS_IT_WAS: Final = "start it once as it was, and stop it in order; then change it"


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """What the engine of a driver knows of its checkpoint. Each is asked only after a change.

    Attributes:
        has_finished: whether the engine goes on behind a checkpoint that was decided.
        has_state: whether it keeps state of operators.
        has_places: whether its files name a source by its places in the plan, of which each sink
            makes one.
    """

    has_finished: Callable[[int], bool] = lambda _: True
    has_state: Callable[[], bool] = lambda: False
    has_places: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedParts:
    """How the parts of a run differ from those of the run before.

    Attributes:
        before: the identity of that run.
        now: the identity of this run.
    """

    before: Mapping[str, str]
    now: Mapping[str, str]

    @property
    def topics(self) -> bool:
        """Whether other topics are read."""
        return self._differs(SOURCES)

    @property
    def sinks(self) -> bool:
        """Whether there are other sinks."""
        return self._differs(SINKS)

    @property
    def moved_sinks(self) -> dict[str, str]:
        """The sinks with the same name and another target: both targets by name."""
        was, is_now = self._facts(self.before), self._facts(self.now)
        names = sorted(was.keys() & is_now.keys())
        return {
            name: f"{was[name]}, now {is_now[name]}" for name in names if was[name] != is_now[name]
        }

    @property
    def new_sinks(self) -> list[str]:
        """The sinks that the run before did not have."""
        return sorted(self._facts(self.now).keys() - self._facts(self.before).keys())

    @property
    def left_out_sinks(self) -> list[str]:
        """The sinks that only the run before had."""
        return sorted(self._facts(self.before).keys() - self._facts(self.now).keys())

    def __str__(self) -> str:
        """Return what has changed, for people."""
        parts = (
            ("new sinks, from the next checkpoint on", ", ".join(self.new_sinks)),
            ("sinks that get nothing more", ", ".join(self.left_out_sinks)),
            ("it read", self.before.get(SOURCES, "") if self.topics else ""),
            ("it reads", self.now.get(SOURCES, "") if self.topics else ""),
        )
        return "; ".join(f"{what}: {which}" for what, which in parts if which)

    def _differs(self, name: str) -> bool:
        return self.before.get(name, "") != self.now.get(name, "")

    @staticmethod
    def _facts(identity: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(identity.get(SINKS) or "{}")
        return found


def check_changed_parts(
    log: LogState,
    now: Mapping[str, str],
    sources: Sequence[KafkaSource],
    engine: Engine,
    where: str,
) -> ChangedParts | None:
    """Check that a run may have these parts, and return what changed, None for nothing.

    Args:
        log: what the runs before have left.
        now: the identity of this run.
        sources: what it reads.
        engine: see above.
        where: the checkpoint, for errors.

    Raises:
        IdentityMismatchError: it may not.
    """
    changed = ChangedParts(log.identity, now)
    if not log.identity or not (changed.topics or changed.sinks):
        return None
    where = f"{where}: {changed}"
    _check_one_source(log, sources, where)
    if changed.topics:
        _check_topics(log, sources[0], where)
    if changed.sinks:
        _check_sinks(log, changed, engine, where)
    decision = log.decision
    if decision is not None and (
        decision.committables or not engine.has_finished(decision.checkpoint_id)
    ):
        raise IdentityMismatchError(
            "The sinks or topics were changed before the last checkpoint was finished.",
            where=f"{where}; checkpoint {decision.checkpoint_id}",
            cause="the last run was killed, or still runs; only a pipeline with the same parts can "
            "finish its checkpoint",
            option=_AS_IT_WAS,
        )
    return changed


def _check_one_source(log: LogState, sources: Sequence[KafkaSource], where: str) -> None:
    """Spark finds the offsets of a source by its place in the plan."""
    ends = set() if log.decision is None else {*log.decision.end_offsets}
    if len(sources) == 1 and len(log.start) <= 1 and len(ends) <= 1:
        return
    raise IdentityMismatchError(
        "A pipeline that calls read() several times keeps its sources and its sinks.",
        where=where,
        cause="Spark finds the offsets of several sources by their places in the plan",
        option="read(): the same sources and sinks as before; or a new pipeline, with another id "
        "and checkpoint",
    )


def _check_topics(log: LogState, source: KafkaSource, where: str) -> None:
    decision = log.decision
    if decision is None:
        if log.start:
            raise IdentityMismatchError(
                "The topics were changed before the first checkpoint.",
                where=where,
                cause="where the reading begins is decided for the topics of the first start",
                option="start it as it was until it has made a checkpoint; or take another "
                "checkpoint",
            )
        return
    topics = {split_key(name)[0] for name in merged_offsets(decision.end_offsets)}
    if topics and not any(map(source.reads_topic, topics)):
        raise IdentityMismatchError(
            "The pipeline reads none of the topics that it has read.",
            where=where,
            cause="it is another pipeline, or the topics are misspelt",
            option="subscribe, assign, subscribePattern: keep a topic; or a new pipeline, with "
            "another id and checkpoint",
        )


def _check_sinks(log: LogState, changed: ChangedParts, engine: Engine, where: str) -> None:
    for name, targets in changed.moved_sinks.items():
        raise IdentityMismatchError(
            f"The sink {name!r} has written somewhere else in this checkpoint.",
            where=f"{where}; {targets}",
            cause="what is decided lies where the sink of this name wrote it",
            option=f"name={name}: another name for the sink with the new target",
        )
    if engine.has_state():
        raise IdentityMismatchError(
            "A pipeline with state must keep its sinks.",
            where=where,
            cause="Spark finds the state of an operator by its place in the plan of all branches: "
            "another branch would start with this state",
            option="[[sink]]: keep the same sinks; or begin a new pipeline, with another id and "
            "checkpoint",
        )
    if changed.left_out_sinks and not log.left:
        raise IdentityMismatchError(
            "A sink was left out, and the last run did not stop in order.",
            where=where,
            cause="what that run has left open in the sink would stay open: only a pipeline with "
            "the sink ends it. A run before this version does not say how it stopped",
            option=_AS_IT_WAS,
        )
