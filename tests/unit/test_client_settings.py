"""The user's `kafka.*` options for both clients."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, version

from connectors.clients import login_sasl
from connectors.clients.client_settings import (
    REFUSED,
    kafka_python_settings,
    librdkafka_settings,
    settings_checked,
)
from transactions.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "one:9092, two:9092"}
PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
    ' username="al\\"ice" password="p\\\\w;=";'
)


def sasl(**more: str) -> dict[str, str]:
    return {
        **SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def accepted(settings: dict[str, object]) -> None:
    """Let librdkafka itself judge the names and values."""
    Producer(settings)
    Consumer(settings | {"group.id": "g"})


def test_plain_text() -> None:
    assert librdkafka_settings(SERVERS) == {**SERVERS, "security.protocol": "PLAINTEXT"}
    assert kafka_python_settings(SERVERS) == {
        "bootstrap_servers": ["one:9092", "two:9092"],
        "security_protocol": "PLAINTEXT",
    }
    accepted(librdkafka_settings(SERVERS))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_c2_what_breaks_the_guarantee_is_refused(name: str) -> None:
    for translate in (librdkafka_settings, kafka_python_settings):
        with pytest.raises(ConfigurationError) as caught:
            translate({**SERVERS, name: "1"})
        assert caught.value.option == f"kafka.{name}=1"
        assert caught.value.cause
        assert caught.value.permanent


@pytest.mark.parametrize(("name", "value"), [("acks", "1"), ("request.required.acks", "0")])
def test_acks_below_all_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"kafka.{name}={value}"):
        librdkafka_settings({**SERVERS, name: value})


def test_acks_all_is_harmless() -> None:
    assert "acks" not in librdkafka_settings({**SERVERS, "acks": "all"})


@pytest.mark.parametrize("servers", [{}, {"bootstrap.servers": " , "}])
def test_a_cluster_must_be_named(servers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        librdkafka_settings(servers)


def test_java_names_become_librdkafkas() -> None:
    java = {
        **SERVERS,
        "fetch.max.wait.ms": "100",
        "max.partition.fetch.bytes": "2097152",
        "receive.buffer.bytes": "65536",
        "send.buffer.bytes": "65536",
        "max.request.size": "2000000",
        "request.timeout.ms": "20000",
        "delivery.timeout.ms": "30000",
        "buffer.memory": "33554432",
        "compression.type": "lz4",
        "linger.ms": "5",
        "client.id": "me",
        "client.dns.lookup": "use_all_dns_ips",
    }
    settings = librdkafka_settings(java)
    assert settings["fetch.wait.max.ms"] == "100"
    assert settings["socket.timeout.ms"] == "20000"
    assert settings["queue.buffering.max.kbytes"] == "32768"
    accepted(settings)
    assert kafka_python_settings(java)["client_id"] == "me"


@pytest.mark.parametrize(
    ("translate", "name"),
    [(librdkafka_settings, "buffer.memory"), (kafka_python_settings, "connections.max.idle.ms")],
)
def test_a_number_with_a_unit_is_refused(translate, name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a number") as caught:
        translate({**SERVERS, name: "64MB"})
    assert caught.value.where == SERVERS["bootstrap.servers"]
    assert "without a unit" in caught.value.cause
    assert caught.value.option == f"kafka.{name}=64MB"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_user_and_password(mechanism: str) -> None:
    kafka = {
        **SERVERS,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    settings = librdkafka_settings(kafka)
    assert settings["sasl.mechanisms"] == mechanism
    accepted(settings)
    assert kafka_python_settings(kafka) == {
        "bootstrap_servers": ["one:9092", "two:9092"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }


KERBEROS = {
    **SERVERS,
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "GSSAPI",
    "sasl.kerberos.service.name": "kafka",
}


@pytest.mark.parametrize("translate", [librdkafka_settings, kafka_python_settings])
def test_b14_gssapi_is_refused_where_the_clients_have_none(translate) -> None:
    """The wheels have none: a task would find it, again and again."""
    with pytest.raises(ConfigurationError, match="GSSAPI") as caught:
        translate(KERBEROS)
    assert "libsasl2 not available at build time" in caught.value.cause
    assert (
        f"--no-binary confluent-kafka confluent-kafka=={version()[0]} gssapi" in caught.value.cause
    )
    assert caught.value.option.startswith("kafka.sasl.mechanism=GSSAPI")


def test_b14_gssapi_is_taken_where_both_clients_have_it(monkeypatch) -> None:
    monkeypatch.setattr(login_sasl, "library_lacks", lambda _: "")
    monkeypatch.setattr(login_sasl.importlib.util, "find_spec", lambda _: object())
    assert librdkafka_settings(KERBEROS)["sasl.mechanisms"] == "GSSAPI"
    assert kafka_python_settings(KERBEROS)["sasl_mechanism"] == "GSSAPI"


def test_jaas_with_escapes() -> None:
    kafka = {
        **SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN_JAAS,
    }
    settings = librdkafka_settings(kafka)
    assert (settings["sasl.username"], settings["sasl.password"]) == ('al"ice', "p\\w;=")


@pytest.mark.parametrize(
    "kafka",
    [
        sasl(),
        sasl(sasl_username="alice"),
        sasl(sasl_jaas_config="required username=x"),
        sasl(sasl_jaas_config=PLAIN_JAAS),  # another mechanism's module
        sasl(sasl_username="a", sasl_password="hunter2", sasl_jaas_config=PLAIN_JAAS),
        sasl(sasl_mechanism="OAUTHBEARER"),
        sasl(security_protocol="TLS"),
    ],
)
def test_bad_sasl_is_refused_without_showing_secrets(kafka: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        librdkafka_settings(kafka)
    assert "hunter2" not in str(caught.value)
    assert "p\\\\w" not in str(caught.value)


def test_a_missing_pem_file_is_named() -> None:
    kafka = {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/no/such/ca.pem"}
    with pytest.raises(ConfigurationError, match=r"/no/such/ca\.pem"):
        kafka_python_settings(kafka)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
@pytest.mark.parametrize("kind", [None, "JKS"])
def test_java_stores_are_refused_with_the_way_to_convert_them(store: str, kind: str | None) -> None:
    kafka = {**SERVERS, "security.protocol": "SSL", f"ssl.{store}.location": "/x/store.jks"}
    if kind is not None:
        kafka[f"ssl.{store}.type"] = kind
    with pytest.raises(ConfigurationError, match="convert it: keytool") as caught:
        librdkafka_settings(kafka)
    assert caught.value.where == "/x/store.jks"


@pytest.mark.parametrize(
    "more",
    [
        {"enable.ssl.certificate.verification": "false"},
        {"ssl.endpoint.identification.algorithm": "ldaps"},
    ],
)
def test_other_ssl_options_that_cannot_work(more: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        librdkafka_settings({**SERVERS, "security.protocol": "SSL", **more})


@pytest.mark.parametrize(("name", "value"), [("no.such.option", "1"), ("linger.ms", "soon")])
def test_what_librdkafka_refuses_becomes_our_error(name: str, value: str) -> None:
    kafka = {**SERVERS, name: value}
    with pytest.raises(ConfigurationError) as caught, settings_checked(kafka, "producer"):
        Producer(librdkafka_settings(kafka))
    assert caught.value.option == f"kafka.{name}={value}"
    assert "property" in caught.value.cause


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batch.num.mesages", "batch.num.messages"),
        ("linger.msec", "linger.ms"),
        ("sasl.usernames", "sasl.username"),
        ("message.timeout", "message.timeout.ms"),  # of a topic
        ("no.such.option", ""),
    ],
)
def test_a_name_that_librdkafka_does_not_know_has_a_nearest_one(name: str, meant: str) -> None:
    kafka = {**SERVERS, name: "1"}
    with pytest.raises(ConfigurationError) as caught, settings_checked(kafka, "producer"):
        Producer(librdkafka_settings(kafka))
    assert caught.value.cause.endswith(f"did you mean {meant!r}?" if meant else f'"{name}"')


def test_values_are_text() -> None:
    with pytest.raises(ConfigurationError, match="not text"):
        librdkafka_settings({**SERVERS, "linger.ms": 5})  # type: ignore[dict-item]
