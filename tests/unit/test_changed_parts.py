"""What may change in a pipeline between two runs on one checkpoint, by what the log says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from connectors import KafkaSink, KafkaSource
from connectors.pipeline.changed_parts import ChangedParts, Engine, check_changed_parts
from connectors.pipeline.run_options import RunOptions
from tests.unit.samples import decision
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import IdentityMismatchError
from transactions.log_backend import MemoryBackend
from transactions.log_state import LogState

READ_UP_TO = '{"in":{"0":7}}'


def never(*_: object) -> bool:
    raise AssertionError("nobody needs to know it")


NOT_ASKED = Engine(never, never)
FINISHED = Engine()
UNFINISHED = Engine(has_finished=lambda _: False)
STATEFUL = Engine(has_state=lambda: True)


def source(reads: str, **more: Any) -> KafkaSource:
    return KafkaSource(bootstrap_servers="b:9092", subscribe=reads, **more)


def sink(topic: str, name: str | None = None) -> KafkaSink:
    return KafkaSink(bootstrap_servers="b:9092", topic=topic, name=name)


def options(reads: str = "in", sinks: tuple[str, ...] = ("out",)) -> RunOptions:
    return RunOptions(
        app_id="app",
        checkpoint=CheckpointLocation("/data/app"),
        sources=[source(reads)],
        sinks=[sink(name) for name in sinks],
        checkpoint_timeout_s=60.0,
        restart_budget_s=60.0,
    )


def left_by(run: RunOptions, ends: str = READ_UP_TO, **fields: Any) -> LogState:
    """Return the log of a run that has decided checkpoint 7, and has stopped in order."""
    last = decision(7, committables=(), end_offsets=(ends,))
    known: dict[str, Any] = {"identity": run.all_identity(), "decision": last, "left": True}
    return LogState(**{**known, **fields})


def changed(before: LogState, now: RunOptions, engine: Engine = FINISHED) -> ChangedParts | None:
    return check_changed_parts(before, now.all_identity(), now.sources, engine, "/data/app")


def told(before: LogState, now: RunOptions, engine: Engine = FINISHED) -> str:
    return str(changed(before, now, engine))


def refused(before: LogState, now: RunOptions, engine: Engine = FINISHED) -> IdentityMismatchError:
    with pytest.raises(IdentityMismatchError) as raised:
        changed(before, now, engine)
    error = raised.value
    assert all((error.what, error.where, error.cause, error.option))
    assert error.where.startswith("/data/app: ")
    return error


MORE_SINKS = options(sinks=("out", "more"))
ANOTHER_SINK = options(sinks=("other",))
MORE_TOPICS = options("in,more")


def test_nothing_has_changed():
    assert changed(left_by(options(), left=False), options(), NOT_ASKED) is None
    assert changed(LogState(), options(), NOT_ASKED) is None


def test_what_may_change():
    before = left_by(options())
    assert told(before, MORE_SINKS) == "new sinks, from the next checkpoint on: more"
    assert told(before, ANOTHER_SINK) == (
        "new sinks, from the next checkpoint on: other; sinks that get nothing more: out"
    )
    assert told(before, MORE_TOPICS) == "it read: in; it reads: in,more"
    assert told(left_by(MORE_TOPICS), options()) == "it read: in,more; it reads: in"
    both = told(before, options("in,more", sinks=("out", "more")))
    assert both == f"{told(before, MORE_SINKS)}; {told(before, MORE_TOPICS)}"


def test_topics_may_change_where_there_is_state():
    assert changed(left_by(options()), MORE_TOPICS, Engine(has_state=never))


def test_state_keeps_its_sinks():
    error = refused(left_by(options()), MORE_SINKS, STATEFUL)
    assert "with state" in error.what
    assert "more" in error.where


@pytest.mark.parametrize("now", [MORE_TOPICS, MORE_SINKS])
def test_what_is_decided_is_finished_first(now):
    """Only the parts of that run can heal what is lost, or replay the batch."""
    pending = left_by(options(), decision=decision(7, end_offsets=(READ_UP_TO,)))
    for error in (refused(pending, now), refused(left_by(options()), now, UNFINISHED)):
        assert "before the last checkpoint was finished" in error.what
        assert "checkpoint 7" in error.where
        assert "more" in error.where
        assert "start it once as it was" in error.option


def test_what_a_killed_run_has_left_in_a_sink_is_ended_by_that_sink():
    """Prepared rows hold locks in a database; a Kafka transaction holds readers back."""
    killed = left_by(options(), left=False)
    error = refused(killed, ANOTHER_SINK)
    assert "did not stop in order" in error.what
    assert "sinks that get nothing more: out" in error.where
    assert changed(killed, MORE_SINKS)
    assert changed(killed, MORE_TOPICS)


def test_a_sink_of_one_name_stays_where_it_is():
    moved = dataclasses.replace(options(), sinks=[sink("elsewhere", name="out")])
    error = refused(left_by(options()), moved)
    assert "'out' has written somewhere else" in error.what
    assert "'topic': 'elsewhere'" in error.where


def test_several_sources_stay_as_they_are():
    two = dataclasses.replace(MORE_SINKS, sources=[source("in"), source("more")])
    assert "several times" in refused(left_by(options()), two).what
    before = left_by(MORE_TOPICS)
    for log in (
        dataclasses.replace(before, start=('{"in":{"0":1}}', '{"more":{"0":1}}')),
        left_by(MORE_TOPICS, decision=decision(7, committables=(), end_offsets=("{}", READ_UP_TO))),
    ):
        assert "several times" in refused(log, options()).what
    branches = decision(7, committables=(), end_offsets=(READ_UP_TO, READ_UP_TO))
    assert changed(left_by(options(), decision=branches), MORE_SINKS), "one source, used twice"


def test_before_the_first_checkpoint_topics_stay_and_sinks_may_change():
    """Where the reading begins is decided for the topics of the first start."""
    begun = left_by(options(), decision=None, start=(READ_UP_TO,))
    assert "before the first checkpoint" in refused(begun, MORE_TOPICS, NOT_ASKED).what
    assert changed(begun, ANOTHER_SINK, Engine(has_finished=never))
    assert changed(left_by(options(), decision=None), MORE_TOPICS, NOT_ASKED)


def test_other_topics_only_are_another_pipeline():
    error = refused(left_by(options()), options("more"))
    assert "none of the topics" in error.what
    pattern = dataclasses.replace(
        options(), sources=[KafkaSource(bootstrap_servers="b:1", subscribe_pattern="i.*")]
    )
    assert changed(left_by(options()), pattern)


def test_a_log_says_how_its_last_run_ended():
    backend = MemoryBackend()

    def opened() -> DecisionLog:
        return DecisionLog.open(backend, application_id="app", identity={})

    log = opened()
    assert not read_log(backend).left
    log.settle(left=True)
    assert read_log(backend).left, "nothing was decided"
    log = opened()
    assert not read_log(backend).left, "the next run may leave something open"
    log.decide(decision(0))
    log.settle()
    assert not read_log(backend).left, "an idle stream is settled, too"
    log.settle(left=True)
    assert read_log(backend).left
    assert read_log(backend).written
    for _ in range(200):  # a compaction keeps it
        log = opened()
        log.settle(left=True)
    assert read_log(backend).left
