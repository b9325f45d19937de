"""A librdkafka that was never tried with this protocol is refused, by driver and worker."""

from __future__ import annotations

import tomllib
from pathlib import Path

import confluent_kafka
import pytest

from connectors.clients.client_version import TRIED, check_client_version
from connectors.doctor.facts import Wanted
from connectors.doctor.preflight import check_clusters
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.native.native_producer import NativeTransactionalProducer
from transactions.clock import Deadline
from transactions.errors import ConfigurationError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(params=["2.17.0", "2.15.1", "3.0.0", "2.160.0"])
def untried(request, monkeypatch) -> str:
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: (request.param, 0))
    return request.param


def test_b11_a_driver_with_an_untried_library_stops_before_it_asks_a_broker(untried):
    sink = KafkaSink(bootstrap_servers="127.0.0.1:1", topic="out")
    deadline = Deadline(60.0)
    with pytest.raises(ConfigurationError, match=f"librdkafka {untried}") as caught:
        check_clusters([sink], Wanted(application_id="app"), deadline)
    assert caught.value.where == "the driver"
    assert "KIP-890" in caught.value.cause
    assert "pip install 'confluent-kafka==2.16.*'" in caught.value.option
    assert deadline.remaining() > 55.0


@pytest.mark.parametrize("kind", [TransactionalProducer, NativeTransactionalProducer])
def test_b11_a_worker_with_an_untried_library_makes_no_producer(untried, kind):
    with pytest.raises(ConfigurationError, match=f"librdkafka {untried}") as caught:
        kind({"bootstrap.servers": "127.0.0.1:1"}, "app.log.1.p.0", timeout_ms=60_000)
    assert caught.value.where == "app.log.1.p.0"


def test_b11_what_is_installed_is_tried_and_pinned():
    check_client_version("here")
    needs = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["dependencies"]
    (pinned,) = [one for one in needs if one.startswith("confluent-kafka")]
    (minor,) = TRIED
    major, number = minor.split(".")
    assert pinned == f"confluent-kafka>={minor},<{major}.{int(number) + 1}"
