"""What a driver refuses before it asks a broker; the rest is in test_doctor_verdicts.py."""

from __future__ import annotations

import pytest

from connectors.kafka.doctor.facts import Wanted
from connectors.kafka.sink.preflight import check_clusters, transaction_timeout_ms
from connectors.sink_options import KafkaSink
from transactions.clock import Deadline
from transactions.errors import ConfigurationError


def test_a_setting_that_no_producer_knows_is_found_on_the_driver():
    sink = KafkaSink(bootstrap_servers="127.0.0.1:1", topic="out", kafka={"linger.no.such": "5"})
    deadline = Deadline(60.0)
    with pytest.raises(ConfigurationError, match=r"linger\.no\.such") as caught:
        check_clusters([sink], Wanted(application_id="app"), deadline)
    assert caught.value.option == "kafka.linger.no.such=5"
    assert deadline.remaining() > 50.0


class Broker:
    """Answers with its one setting; what a real one says is in test_doctor.py."""

    def broker_setting(self, name: str, deadline: Deadline) -> str:
        assert name == "transaction.max.timeout.ms"
        return "900000"


@pytest.mark.parametrize(("given", "used"), [(None, 900_000), (660_000, 660_000)])
def test_rule_14_as_much_as_the_broker_allows(given, used):
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", transaction_timeout_ms=given)
    answer = transaction_timeout_ms(sink, Broker(), at_least_s=660, deadline=Deadline(1.0))
    assert answer == used


@pytest.mark.parametrize("given", [900_001, 659_999])
def test_rule_14_a_transaction_that_a_checkpoint_and_a_restart_outlive_is_refused(given):
    sink = KafkaSink(bootstrap_servers="b:1", topic="out", transaction_timeout_ms=given)
    with pytest.raises(ConfigurationError) as caught:
        transaction_timeout_ms(sink, Broker(), at_least_s=660, deadline=Deadline(1.0))
    assert f"transactionTimeoutMs={given}" in caught.value.option
