"""What the metrics ask of a real broker: an open transaction shows in its age and its lag."""

from __future__ import annotations

import dataclasses

import pytest

from connectors import KafkaSink, KafkaSource
from connectors.pipeline.broker_readings import BrokerReader
from tests.integration.wire_helpers import begin, open_producer, soon
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import MissingTopicError


def test_an_open_transaction_holds_the_output_back(bootstrap, topic, application_id):
    output, other = topic(2, "output"), topic(1, "other")
    sinks = [
        KafkaSink(bootstrap_servers=bootstrap, topic=output, name="out"),
        KafkaSink(bootstrap_servers=bootstrap, name="by-column"),  # no topic to look at
    ]
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=output)
    reader = BrokerReader(application_id, sinks, [source])
    nothing = {("out", f"{output}-0"): 0, ("out", f"{output}-1"): 0}
    try:
        before = reader.read(soon())
        assert (before.open_transactions, before.oldest_open_ms) == (0, -1)
        assert before.stable_lag == nothing
        assert before.latest == {f"{output}-0": 0, f"{output}-1": 0}

        ours = open_producer(bootstrap, f"{application_id}.log.1.p.0")
        begin(ours, output, ["a", "b", "c"], partition=1)
        longer_name = open_producer(bootstrap, f"{application_id}-2.log.1.p.0")
        begin(longer_name, other, ["d"])
        held = reader.read(soon())
        assert held.open_transactions == 1
        assert 0 <= SYSTEM_CLOCK.now_ms() - held.oldest_open_ms < 60_000
        assert held.stable_lag == nothing | {("out", f"{output}-1"): 3}
        assert held.latest[f"{output}-1"] == 0, "a read_committed source cannot go there either"

        longer_name.abort_transaction(20)
        ours.commit_transaction(20)
        deadline = soon()
        while (after := reader.read(soon())).open_transactions or any(after.stable_lag.values()):
            assert not deadline.expired(), after
            deadline.pause(0.1)
        assert after.latest[f"{output}-1"] == 4, "three records and the commit marker"
    finally:
        reader.close()


def test_a_source_that_goes_on_without_a_topic_is_measured_without_it(
    bootstrap, topic, application_id
):
    left, deleted = topic(1, "left"), f"{application_id}-deleted"
    lenient = KafkaSource(
        bootstrap_servers=bootstrap, subscribe=[left, deleted], fail_on_data_loss=False
    )
    reader = BrokerReader(application_id, [], [lenient])
    try:
        assert reader.read(soon()).latest == {f"{left}-0": 0}
    finally:
        reader.close()
    strict = BrokerReader(
        application_id, [], [dataclasses.replace(lenient, fail_on_data_loss=True)]
    )
    try:
        with pytest.raises(MissingTopicError):
            strict.read(soon())
    finally:
        strict.close()
