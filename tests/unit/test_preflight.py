"""What a driver refuses before it asks a broker; the rest is in test_doctor_verdicts.py."""

from __future__ import annotations

import pytest

from connectors.kafka.doctor.facts import Wanted
from connectors.kafka.sink.preflight import check_clusters
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
