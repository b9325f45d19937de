"""What Flink's sink lets a user change across a restart (acceptance F), and we refuse."""

from __future__ import annotations

import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from tests.unit.test_job import SINK, refused, text
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError, IdentityMismatchError
from transactions.log_backend import MemoryBackend


@pytest.mark.parametrize("guarantee", ["AT_LEAST_ONCE", "at_least_once", ""])
def test_f48_a_guarantee_is_one_of_three_words(guarantee: str):
    """A switch across a restore is in `test_guarantees.py`."""
    with pytest.raises(ConfigurationError, match="exactly-once, at-least-once, none"):
        KafkaSink(bootstrap_servers="b:9092", topic="t", guarantee=guarantee)
    error = refused(text(app=f'guarantee = "{guarantee}"'))
    assert f"guarantee={guarantee}" in str(error)


def test_f10_two_pipelines_never_share_an_unnamed_prefix():
    """The application id is the prefix; without one, or with one name twice, nothing starts."""
    assert "needs 'id'" in str(refused(text().replace('id = "flights"', "")))
    assert "same name" in str(refused(text(more=f"[[sink]]\n{SINK}")))


def test_f9_f47_a_log_is_of_one_application_and_one_set_of_sinks():
    """Flink migrates between naming strategies and aborts by prefix; here a log has one owner."""
    backend = MemoryBackend()
    ours = DecisionLog.open(backend, application_id="app", identity={"sinks": "out"})
    before = backend.list()
    for application_id, identity in (("app-2", {"sinks": "out"}), ("app", {"sinks": "other"})):
        with pytest.raises(IdentityMismatchError):
            DecisionLog.open(backend, application_id=application_id, identity=identity)
    assert backend.list() == before
    ours.check_newest()  # nobody has fenced it
