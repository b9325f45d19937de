"""At-least-once and none, in both modes, on a real broker: what a death between the flush and the
recorded positions costs with each guarantee. The same death with exactly-once costs nothing:
`test_continuous.py` and `test_exactly_once.py` have it at `prepared_checked`.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.kafka.sink.plain_stage_writer import PlainStageWriter
from connectors.kafka.source.offsets import parse_offsets
from connectors.native.chosen_path import plain_producer_kind
from connectors.options.guarantee import AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEES, NO_GUARANTEE
from connectors.spark import StreamingDriver
from connectors.testing.run import Run
from tests.auditor.reader import Follower, read_committed
from tests.both_halves import plain_writer
from tests.integration import test_continuous
from tests.integration.in_process import send
from tests.integration.job_process import PATIENCE_S
from tests.integration.test_continuous import Copy
from tests.tiers import long
from transactions import crash_points
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import IdentityMismatchError, PhaseOneError, RecordRefusedError
from transactions.sink import Attempt, Owner

copy = test_continuous.copy  # the fixture
DIES_AT = "prepared_checked"


def values(bootstrap: str, topic: str) -> Counter[bytes | None]:
    """What an independent reader of committed records is given."""
    return Counter(record.value for record in read_committed(bootstrap, topic))


def group_offsets(bootstrap: str, group: str) -> dict[str, int]:
    """What a lag tool reads."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    rows = asked[group].result(30).topic_partitions
    return {f"{row.topic}-{row.partition}": row.offset for row in rows}


def go_on(copy: Copy, guarantee: str, *, twice: int) -> Run:
    """Run until everything is visible, with what comes twice, then stop it in order."""
    copy.produce()
    with (
        Follower(copy.bootstrap, copy.output) as follower,
        copy.running(guarantee=guarantee) as run,
    ):
        follower.until(lambda seen: len(seen) >= copy.produced + twice, timeout=PATIENCE_S)
        assert run.stop() == 0, run.text()
    return run


@long
def test_a_sigkill_between_the_flush_and_the_positions_repeats_and_loses_nothing(copy: Copy):
    """Continuous mode, native path. Then the guarantee rises, on the same checkpoint."""
    code, run = copy.run_until_killed(DIES_AT, guarantee=AT_LEAST_ONCE)
    assert code == -signal.SIGKILL, run.text()
    decision = copy.log().decision
    assert decision is not None
    assert decision.checkpoint_id == 0, "positions are decided after the flush, so not yet"
    early = values(copy.bootstrap, copy.output)
    assert early, "what was flushed is visible at once"

    run = go_on(copy, AT_LEAST_ONCE, twice=early.total())
    inputs, outputs = (values(copy.bootstrap, name) for name in (copy.source, copy.output))
    assert set(inputs) == set(outputs), "nothing is lost"
    assert outputs - inputs == early, "what was flushed came twice, and nothing else"
    decision = copy.log().decision
    assert decision is not None
    assert decision.committables == ()
    ends = parse_offsets(decision.end_offsets[0])
    assert sum(ends.values()) == copy.produced
    assert group_offsets(copy.bootstrap, copy.app) == ends

    go_on(copy, EXACTLY_ONCE, twice=early.total())
    inputs, outputs = (values(copy.bootstrap, name) for name in (copy.source, copy.output))
    assert outputs - inputs == early, "what came after the rise came once"
    assert set(inputs) == set(outputs)


@long
def test_three_guarantees_in_one_micro_batch_driver(
    spark: SparkSession, bootstrap: str, topic, application_id: str, tmp_path: Path, request
):
    """The first batch fails after its flush, and runs again; one decision covers all sinks."""
    source, *outputs = (topic(2, name) for name in ("in", *GUARANTEES))
    send(bootstrap, source, range(40))
    exactly, at_least, nothing = outputs

    def driver(**lowered: str) -> StreamingDriver:
        made = StreamingDriver(
            spark,
            app_id=application_id,
            checkpoint=tmp_path / "checkpoint",
            trigger="available-now",
            restart_strategy="none",
        )
        rows = made.read(
            KafkaSource(bootstrap_servers=bootstrap, subscribe=source, starting_offsets="earliest")
        ).select("key", "value")
        # The one with transactions is not the first: offsets must find it.
        for name, guarantee in zip((at_least, exactly, nothing), _ORDER, strict=True):
            chosen = lowered.get(name, guarantee)
            made.write(rows, KafkaSink(bootstrap_servers=bootstrap, topic=name, guarantee=chosen))
        return made

    def die(point: str, number: int) -> None:
        if point == DIES_AT:
            crash_points.install(None)
            raise PhaseOneError("the test ends this batch", where=f"{point}, {number}")

    request.addfinalizer(lambda: crash_points.install(None))
    crash_points.install(die)
    with pytest.raises(PhaseOneError, match="the test ends this batch"):
        driver().run()
    inputs = values(bootstrap, source)
    assert values(bootstrap, at_least) == inputs
    assert not values(bootstrap, exactly)

    second = driver()
    second.run()
    assert second.recommitted == 0
    assert sum(report.records for report in second.reports) == 3 * 40
    assert {report.transactions > 0 for report in second.reports} == {True}
    assert values(bootstrap, exactly) == inputs
    assert values(bootstrap, at_least) == inputs + inputs
    assert set(values(bootstrap, nothing)) == set(inputs)
    assert sum(group_offsets(bootstrap, application_id).values()) == 40

    with pytest.raises(IdentityMismatchError, match="has written this checkpoint exactly-once"):
        driver(**{exactly: AT_LEAST_ONCE}).run()


_ORDER = (AT_LEAST_ONCE, EXACTLY_ONCE, NO_GUARANTEE)


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
def test_a_record_that_the_broker_refuses(bootstrap, topic, application_id, native):
    """At-least-once fails the checkpoint, and the next attempt has another producer; without a
    guarantee the refusal is counted, later, and everything else is written.
    """
    out = topic(max_message_bytes="2000")
    owner = Owner(application_id=application_id, log_id="a1b2c3d4", run_epoch=1)

    def prepared(guarantee: str, *records: bytes) -> tuple[PlainStageWriter, Committable]:
        options = KafkaSink(bootstrap_servers=bootstrap, topic=out, guarantee=guarantee)
        writer = PlainStageWriter(
            plain_writer(options, checkpoint_timeout_s=30.0),
            producer_kind=plain_producer_kind(native=native),
        )
        assert writer.open(owner, Deadline(30)) == ()
        return writer, checkpoint(writer, 0, *records)

    def checkpoint(writer: PlainStageWriter, number: int, *records: bytes) -> Committable:
        attempt = Attempt(owner=owner, checkpoint_id=number, subtask=0, attempt_id="1.0")
        transaction = writer.begin_transaction(attempt)
        for record in records:
            writer.invoke(transaction, pa.record_batch({"value": pa.array([record], pa.binary())}))
        writer.flush(transaction, {})
        done = writer.pre_commit(transaction)
        assert done is not None
        return done

    with pytest.raises(RecordRefusedError, match="refused 1 record"):
        prepared(AT_LEAST_ONCE, b"x" * 10_000)
    writer, done = prepared(AT_LEAST_ONCE, b"next")
    assert (done.needs_commit, done.record_count) == (False, 1)
    assert values(bootstrap, out) == {b"next": 1}, "visible as soon as it is flushed"
    writer.close()

    deadline = Deadline(30)
    writer, done = prepared(NO_GUARANTEE, b"x" * 10_000)
    number, refused = 0, done.refused
    while not refused:  # nothing is waited for: some later checkpoint finds out
        assert not deadline.expired()
        deadline.pause(0.01)
        number += 1
        refused = checkpoint(writer, number, b"small").refused
    # The broker refuses a request as a whole: small ones that were sent along are lost as well, on
    # a busy machine all of them. What comes after the refusal is not.
    number += 1
    refused += checkpoint(writer, number, b"small").refused
    writer.close()
    assert values(bootstrap, out)[b"small"] == 1 + number - refused
    assert refused < 1 + number
