"""What the metrics ask of a real broker: an open transaction shows in its age and its lag."""

from __future__ import annotations

from connectors import KafkaSink, KafkaSource
from connectors.pipeline.broker_readings import BrokerReader
from tests.integration.wire_helpers import begin, open_producer, soon
from transactions.clock import SYSTEM_CLOCK


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
