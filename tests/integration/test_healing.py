"""X9: the broker aborts what was decided; it is produced again, compared and committed.

An operator's InitProducerId stands for the passing of the timeout, which takes a minute on a broker
that is set up as usual; one test below the sink waits for a real one.
"""

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

from connectors.cli.transactions import command as transactions
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.spark import streaming_driver
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor.reader import Follower, read_committed
from tests.both_halves import KafkaBothHalves
from tests.integration.checkpoints import hooked
from tests.integration.in_process import CONTINUOUS, Copying, copy, send, values
from tests.integration.pipeline_process import Pipeline, pipeline_on
from tests.integration.wire_helpers import write_over_marker
from tests.tiers import long
from tests.waiting import until
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.committable import Committable, Outcome
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import TransactionLostError
from transactions.log_backend import LocalFileBackend
from transactions.log_entries import ACCEPT_LOSS, Resolved
from transactions.log_state import LogState
from transactions.sink import Attempt, Owner

RECORDS = 120  # three batches of 40
NOT_DETERMINISTIC = "cast(concat(cast(value AS string), '/', uuid()) AS binary)"


@pytest.fixture
def pipeline(bootstrap, topic, application_id, tmp_path) -> Pipeline:
    made = pipeline_on(bootstrap, topic, tmp_path, application_id)
    made.produce(RECORDS)
    return made


def log_of(pipeline: Pipeline) -> LogState:
    return read_log(LocalFileBackend(Path(pipeline.checkpoint) / "decisions"))


def lose(pipeline: Pipeline, sinks: tuple[str, ...], value: str = "value") -> list[str]:
    """Kill the driver between decision and commit, and abort decided transactions behind it."""
    code, run = pipeline.run_once(crash_at="decision_durable@1", value=value)
    assert code == -signal.SIGKILL, run.text()
    decision = log_of(pipeline).decision
    assert decision is not None
    lost = [one for one in decision.committables if one.sink in sinks]
    assert lost
    with CoordinatorWire({"bootstrap.servers": pipeline.bootstrap}) as operator:
        for one in lost:
            operator.fence(one.transactional_id, one.timeout_ms, Deadline(30))
    return [one.transactional_id for one in lost]


@long  # three drivers
def test_x9_lost_transactions_of_both_branches_are_healed(pipeline: Pipeline):
    """A driver dies in the middle of healing as well; state, order and both topics agree."""
    with Follower(pipeline.bootstrap, pipeline.copies) as follower:
        lose(pipeline, (pipeline.copies, pipeline.counts))
        code, run = pipeline.run_once(crash_at="heal_durable@1")
        assert code == -signal.SIGKILL, run.text()
        code, run = pipeline.run_once()
        assert code == 0, run.text()
        assert run.replays() == [1]
        assert "event=healed" in run.text()
        pipeline.audit(follower)


@pytest.mark.long
def test_x9_a_replay_that_does_not_match_is_a_persons_decision(pipeline: Pipeline):
    """The plan is not deterministic, so what is lost cannot be proven to be what comes back."""
    lost = lose(pipeline, (pipeline.copies,), NOT_DETERMINISTIC)
    before = read_committed(pipeline.bootstrap, pipeline.copies)
    code, run = pipeline.run_once(value=NOT_DETERMINISTIC)
    assert code == 3, run.text()
    for part in ("TransactionLostError", "checkpoint 1", lost[0], "--accept-loss"):
        assert part in run.text()
    assert read_committed(pipeline.bootstrap, pipeline.copies) == before

    log = DecisionLog.open(
        LocalFileBackend(Path(pipeline.checkpoint) / "decisions"),
        application_id=pipeline.application_id,
        identity=log_of(pipeline).identity,
    )
    decision = log.state.decision
    assert decision is not None
    tokens = tuple(one.token for one in decision.committables if one.transactional_id in lost)
    log.resolve(Resolved(checkpoint_id=1, verdict=ACCEPT_LOSS, tokens=tokens, note="a test"))
    code, run = pipeline.run_once(value=NOT_DETERMINISTIC)
    assert code == 0, run.text()
    outputs = read_committed(pipeline.bootstrap, pipeline.copies)
    inputs = read_committed(pipeline.bootstrap, pipeline.source)
    seen = [(record.value or b"").split(b"/")[0] for record in outputs]
    assert len(seen) == len(set(seen)) == RECORDS - 40  # exactly what was accepted is missing
    assert set(seen) <= {record.value for record in inputs}


@long
def test_a5_a_replay_that_gives_another_state_is_a_persons_decision(pipeline: Pipeline):
    """The decided batch runs again for its state only, and counts other records than are written:
    each count after it would contradict the output.
    """
    code, run = pipeline.run_once(crash_at="decision_durable@1", stateful="random")
    assert code == -signal.SIGKILL, run.text()
    decision = log_of(pipeline).decision
    assert decision is not None
    code, run = pipeline.run_once(stateful="random")
    assert code == 3, run.text()
    error = run.text()
    assert "ReplayMismatchError: The replay of checkpoint 1 gives other records" in error
    for part in ("where:  checkpoint 1, subtask", f"of sink {pipeline.counts!r}", "rand()"):
        assert part in error
    assert "look at: sparkonce transactions resolve --accept-state" in error
    # What was decided is in the output, and nothing after it.
    written = read_committed(pipeline.bootstrap, pipeline.counts)
    decided = sum(one.record_count for one in decision.committables if one.sink == pipeline.counts)
    assert decided
    copies = read_committed(pipeline.bootstrap, pipeline.copies)
    assert len(copies) == 2 * 40

    place = ["--checkpoint", pipeline.checkpoint, "--bootstrap", pipeline.bootstrap, "--yes"]
    said = CliRunner().invoke(transactions, ["resolve", "--accept-state", *place])
    assert said.exit_code == 0, said.output
    code, run = pipeline.run_once(stateful="random")
    assert code == 0, run.text()
    assert not Counter(written) - Counter(read_committed(pipeline.bootstrap, pipeline.counts))
    assert len(read_committed(pipeline.bootstrap, pipeline.copies)) == RECORDS


@long
def test_c3_a_stop_before_the_replay_that_would_heal_is_no_good_end(
    spark, bootstrap, topic, application_id, tmp_path, monkeypatch
):
    """The stop comes while the next run recovers; whatever of the replay has begun is cut off."""
    source, output = topic(1, "in"), topic(1, "out")
    job = Copying(spark, bootstrap, application_id, tmp_path, source, {output: copy})
    send(bootstrap, source, range(10))
    with hooked(dies_at("decision_durable")), pytest.raises(StreamingQueryException):
        job.run()
    last = job.log().decision
    assert last is not None
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as operator:
        for one in last.committables:
            operator.fence(one.transactional_id, one.timeout_ms, Deadline(30))

    stopped = job.driver(trigger=CONTINUOUS)

    def hook(point: str, _checkpoint: int) -> None:
        if point == "recovery_settled":
            stopped.request_stop()
        if point == "heal_started":  # until the query is stopped
            spark.sparkContext._jvm.java.lang.Thread.sleep(600_000)

    monkeypatch.setattr(streaming_driver, "_WRITTEN_DOWN_S", 0.0)
    with hooked(hook), pytest.raises(TransactionLostError) as told:
        stopped.run()
    for part in ("stopped before", last.committables[0].transactional_id, "start the pipeline"):
        assert part in str(told.value)
    assert read_committed(bootstrap, output) == []

    job.run()
    assert sorted(values(read_committed(bootstrap, output))) == list(range(10))


def dies_at(wanted: str) -> Callable[[str, int], None]:
    def hook(point: str, _checkpoint: int) -> None:
        if point == wanted:
            raise RuntimeError(f"dies at {point}")

    return hook


# --- below Spark: what proves an abort ------------------------------------------------------------


@pytest.fixture
def sink(bootstrap, topic):
    options = KafkaSink(bootstrap_servers=bootstrap, topic=topic(1), name="out")
    made = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=30)
    yield made
    made.close()


def prepared(sink: KafkaBothHalves, application_id: str, checkpoint: int) -> Committable:
    attempt = Attempt(
        owner=Owner(application_id=application_id, log_id="a1b2c3d4", run_epoch=checkpoint + 1),
        checkpoint_id=checkpoint,
        subtask=0,
        attempt_id=f"{checkpoint + 1}.0",
        source_offsets={f"{sink.topic}-0": checkpoint},
    )
    transaction = sink.begin_transaction(attempt)
    sink.invoke(transaction, pa.record_batch({"value": pa.array([b"x"], pa.binary())}))
    one = sink.pre_commit(transaction)
    assert one is not None
    return sink.check_prepared([one], Deadline(10))[0]


def outcome(sink: KafkaBothHalves, one: Committable) -> Outcome:
    return sink.recover_and_commit([one], Deadline(10))[one.token]


def test_x5_what_is_open_as_it_was_prepared_is_committed(sink, application_id, bootstrap):
    one = prepared(sink, application_id, 0)
    assert outcome(sink, one) is Outcome.COMMITTED
    assert outcome(sink, one) is Outcome.ALREADY_COMMITTED
    assert [record.value for record in read_committed(bootstrap, sink.topic)] == [b"x"]


def test_x9_a_real_timeout_is_a_positive_proof(sink, application_id, monkeypatch):
    sink.timeout_ms = 5000
    one = prepared(sink, application_id, 0)

    def is_over() -> bool:
        described = sink.wire.describe([one.transactional_id], Deadline(40))
        return described[one.transactional_id].state not in {"Ongoing", "PrepareAbort"}

    until(is_over, 40, pause_s=0.1)
    monkeypatch.delattr(CoordinatorWire, "read_markers")  # the state and start time are enough
    assert outcome(sink, one) is Outcome.ABORTED
    assert one.transactional_id in sink.retired()


def test_x19_an_absent_marker_proves_an_abort_while_it_could_not_have_expired(sink, application_id):
    assert sink.commit([first := prepared(sink, application_id, 0)], Deadline(10)) == {
        first.token: Outcome.COMMITTED
    }
    one = prepared(sink, application_id, 1)
    sink.wire.fence(one.transactional_id, 60_000, Deadline(10))
    assert outcome(sink, one) is Outcome.ABORTED
    eight_days = 8 * 24 * 3600 * 1000
    old = dataclasses.replace(one, start_time_ms=one.start_time_ms - eight_days)
    assert outcome(sink, old) is Outcome.UNKNOWN  # offsets are kept for seven
    unknown_start = dataclasses.replace(one, start_time_ms=-1)
    assert outcome(sink, unknown_start) is Outcome.UNKNOWN


@pytest.mark.parametrize("days", [-8, 8])
def test_a6_the_age_of_a_marker_is_measured_by_the_brokers_clock(
    sink, application_id, monkeypatch, days: int
):
    """Where the driver's clock is behind by the age of an expired marker, it looked young; what was
    committed then would have been written again.
    """
    week = 8 * 24 * 3600 * 1000
    one = prepared(sink, application_id, 1)
    sink.wire.fence(one.transactional_id, 60_000, Deadline(10))
    old = dataclasses.replace(one, start_time_ms=one.start_time_ms - week)
    ours = SYSTEM_CLOCK.now_ms
    monkeypatch.setattr(type(SYSTEM_CLOCK), "now_ms", lambda _: ours() + days * week // 8)
    assert outcome(sink, old) is Outcome.UNKNOWN
    assert outcome(sink, one) is Outcome.ABORTED


def test_x19_a_marker_that_somebody_overwrote_proves_nothing(sink, application_id, bootstrap):
    one = prepared(sink, application_id, 1)
    sink.wire.fence(one.transactional_id, 60_000, Deadline(10))
    later = prepared(sink, application_id, 2)
    assert sink.commit([later], Deadline(10)) == {later.token: Outcome.COMMITTED}
    assert outcome(sink, one) is Outcome.ABORTED, "the markers of others stand elsewhere"
    write_over_marker(bootstrap, one)
    assert outcome(sink, one) is Outcome.UNKNOWN
