"""Secrets of a user's options: in no text that is printed, logged or raised."""

from __future__ import annotations

import pickle
import traceback

import pytest
from confluent_kafka import Producer

from connectors import KafkaSink, KafkaSource
from connectors.clients.client_settings import librdkafka_settings, settings_checked
from connectors.options.client_options import ClientOptions
from transactions.errors import ConfigurationError, SparkOnceError

SECRETS = {
    "sasl.jaas.config": 'PlainLoginModule required username="me" password="hunter2";',
    "sasl.password": "hunter2",
    "ssl.key.password": "hunter2",
    "ssl.keystore.key": "hunter2",
    "ssl.key.pem": "hunter2",
    "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
    "sasl.oauthbearer.config": "hunter2",
    "sasl.oauthbearer.token.endpoint.url": "https://me:hunter2@idp/",
    "sasl.passwort": "hunter2",
}
KAFKA = {"linger.ms": "5", "sasl.username": "me", **SECRETS}


@pytest.mark.parametrize("kind", [KafkaSource, KafkaSink])
def test_b12_a_password_is_in_no_text_of_a_source_or_a_sink(kind):
    topic = {"subscribe": "t"} if kind is KafkaSource else {"topic": "t"}
    one = kind(bootstrap_servers="b:9092", kafka=KAFKA, **topic)
    everything = one.client_settings if kind is KafkaSource else one.settings
    for text in (repr(one), str(one), f"{one.kafka}", repr(everything), f"{[one]}"):
        assert "hunter2" not in text
        assert "'linger.ms': '5'" in text
        assert "'sasl.username': 'me'" in text
        assert "'sasl.password': '[hidden]'" in text
    # What a client and a worker get is whole.
    assert one.kafka == KAFKA
    assert dict(everything)["sasl.password"] == "hunter2"
    arrived = pickle.loads(pickle.dumps(one))
    assert arrived == one
    assert "hunter2" not in repr(arrived)


def refused(action) -> str:
    with pytest.raises(SparkOnceError) as caught:
        action()
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["sasl.password", "sasl.jaas.config", "kafka_sasl_password"])
def test_b12_a_password_under_a_wrong_name_is_not_repeated(name):
    """`kafka.` was forgotten before it."""
    options = {"kafka.bootstrap.servers": "b:9092", name: "hunter2"}
    for action in (
        lambda: KafkaSource.from_options({**options, "subscribe": "t"}),
        lambda: KafkaSink.from_options({**options, "topic": "t"}),
    ):
        text = refused(action)
        assert "hunter2" not in text
        assert f"{name}=[hidden]" in text


def test_b12_a_misspelt_password_is_not_repeated_by_the_clients_refusal():
    kafka = ClientOptions({"bootstrap.servers": "b:9092", "sasl.passwort": "hunter2"})

    def make() -> None:
        with settings_checked(kafka, "producer"):
            Producer(librdkafka_settings(kafka))

    with pytest.raises(ConfigurationError):
        make()
    text = refused(make)
    assert "hunter2" not in text
    assert "kafka.sasl.passwort=[hidden]" in text
