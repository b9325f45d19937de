"""Every kind of login, translated for librdkafka and for kafka-python, and judged by both."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import re
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.net.sasl import get_sasl_mechanism
from kafka.net.selector import NetworkSelector

from connectors import KafkaSource
from connectors.clients import login_sasl
from connectors.clients.client_settings import (
    kafka_python_settings,
    librdkafka_settings,
    settings_checked,
)
from connectors.clients.login import NAMES, Login
from connectors.clients.token_source import TokenSource
from connectors.options.job_file import parse_job
from tests.certificates import Certificate, self_signed
from tests.pages import ROOT, block, run_python
from transactions.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "one:9092"}
PASSWORD = "hunter2"


@dataclasses.dataclass(frozen=True)
class Files:
    client: Certificate
    broker: Certificate
    encrypted_key: str
    encrypted: Path
    store: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    client, broker = self_signed(folder, "client"), self_signed(folder, "broker")
    key, encrypted = client.encrypted_key(PASSWORD), folder / "encrypted.pem"
    encrypted.write_text(key + client.text)
    return Files(client, broker, key, encrypted, client.pkcs12(PASSWORD))


@dataclasses.dataclass(frozen=True)
class Row:
    """A login as a user writes it, and what each client gets beside `bootstrap.servers`. `{client}`
    and so on stand for files and texts.
    """

    kafka: dict[str, str]
    librdkafka: dict[str, str]
    kafka_python: dict[str, Any]


CONTEXT, TOKENS = "an SSLContext", "a TokenSource"
TLS = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "https"}
PYTHON_TLS = {"security_protocol": "SSL", "ssl_check_hostname": True}
TABLE = {
    "tls": Row({"security.protocol": "SSL"}, TLS, PYTHON_TLS),
    "tls_truststore_file": Row(
        {"security.protocol": "SSL", "ssl.truststore.location": "{broker}"},
        {**TLS, "ssl.ca.location": "{broker}"},
        {**PYTHON_TLS, "ssl_cafile": "{broker}"},
    ),
    "tls_truststore_text": Row(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "{broker_text}",
        },
        {**TLS, "ssl.ca.pem": "{broker_text}"},
        {"security_protocol": "SSL", "ssl_context": CONTEXT},
    ),
    "mtls_one_file": Row(
        {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "{client_both}",
        },
        {**TLS, "ssl.certificate.location": "{client_both}", "ssl.key.location": "{client_both}"},
        {**PYTHON_TLS, "ssl_certfile": "{client_both}", "ssl_password": ""},
    ),
    "mtls_two_files": Row(
        {
            "security.protocol": "SSL",
            "ssl.certificate.location": "{client}",
            "ssl.key.location": "{client_key}",
        },
        {**TLS, "ssl.certificate.location": "{client}", "ssl.key.location": "{client_key}"},
        {
            **PYTHON_TLS,
            "ssl_certfile": "{client}",
            "ssl_keyfile": "{client_key}",
            "ssl_password": "",
        },
    ),
    "mtls_encrypted_file": Row(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": "{broker}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "{client_encrypted}",
            "ssl.key.password": PASSWORD,
            "ssl.endpoint.identification.algorithm": "",
        },
        {
            "security.protocol": "SSL",
            "ssl.endpoint.identification.algorithm": "none",
            "ssl.ca.location": "{broker}",
            "ssl.certificate.location": "{client_encrypted}",
            "ssl.key.location": "{client_encrypted}",
            "ssl.key.password": PASSWORD,
        },
        {
            "security_protocol": "SSL",
            "ssl_check_hostname": False,
            "ssl_cafile": "{broker}",
            "ssl_certfile": "{client_encrypted}",
            "ssl_password": PASSWORD,
        },
    ),
    "mtls_pkcs12": Row(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": "{broker}",
            "ssl.keystore.location": "{client_store}",
            "ssl.keystore.password": PASSWORD,
        },
        {
            **TLS,
            "ssl.ca.location": "{broker}",
            "ssl.keystore.location": "{client_store}",
            "ssl.keystore.password": PASSWORD,
        },
        {"security_protocol": "SSL", "ssl_context": CONTEXT},
    ),
    "mtls_text": Row(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "{broker_text}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "{client_text}",
            "ssl.keystore.key": "{client_key_text}",
        },
        {
            **TLS,
            "ssl.ca.pem": "{broker_text}",
            "ssl.certificate.pem": "{client_text}",
            "ssl.key.pem": "{client_key_text}",
        },
        {"security_protocol": "SSL", "ssl_context": CONTEXT},
    ),
    "mtls_text_in_librdkafkas_names": Row(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "{broker}",
            "ssl.certificate.pem": "{client_text}",
            "ssl.key.pem": "{client_key_encrypted}",
            "ssl.key.password": PASSWORD,
        },
        {
            **TLS,
            "ssl.ca.location": "{broker}",
            "ssl.certificate.pem": "{client_text}",
            "ssl.key.pem": "{client_key_encrypted}",
            "ssl.key.password": PASSWORD,
        },
        {"security_protocol": "SSL", "ssl_context": CONTEXT},
    ),
}


URL = "https://idp.example/token"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": URL,
    "sasl.oauthbearer.client.id": "flights",
    "sasl.oauthbearer.client.secret": PASSWORD,
    "sasl.oauthbearer.sub.claim.name": "sub",
}
PYTHON_OAUTH = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token_provider": TOKENS,
}
TABLE |= {
    "plain": Row(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "flights",
            "sasl.password": PASSWORD,
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "flights",
            "sasl.password": PASSWORD,
        },
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "flights",
            "sasl_plain_password": PASSWORD,
        },
    ),
    "scram_over_tls": Row(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="flights" password="{PASSWORD}";',
            "ssl.truststore.location": "{broker}",
        },
        {
            **TLS,
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "flights",
            "sasl.password": PASSWORD,
            "ssl.ca.location": "{broker}",
        },
        {
            **PYTHON_TLS,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "flights",
            "sasl_plain_password": PASSWORD,
            "ssl_cafile": "{broker}",
        },
    ),
    "oidc": Row(
        {
            **OAUTH,
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.client.credentials.client.id": "flights",
            "sasl.oauthbearer.client.credentials.client.secret": PASSWORD,
        },
        OIDC,
        PYTHON_OAUTH,
    ),
    "oidc_in_jaas": Row(
        {
            **OAUTH,
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "secured.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.jaas.config": f"{MODULE} clientId='flights' clientSecret=\"{PASSWORD}\" "
            "scope='kafka read' extension_logicalCluster=lkc-1 extension_pool=\"p=1\";",
            "sasl.login.read.timeout.ms": "1000",
        },
        {
            **OIDC,
            "sasl.oauthbearer.scope": "kafka%20read",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,pool=p=1",
        },
        PYTHON_OAUTH,
    ),
    "oidc_in_librdkafkas_names": Row(
        {
            **OAUTH,
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.client.id": "flights",
            "sasl.oauthbearer.client.secret": PASSWORD,
            "sasl.oauthbearer.scope": "api://x/.default",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p",
            "sasl.oauthbearer.sub.claim.name": "azp",
            "https.ca.location": "{broker}",
        },
        {
            **OIDC,
            "sasl.oauthbearer.scope": "api%3A%2F%2Fx%2F.default",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,pool=p",
            "sasl.oauthbearer.sub.claim.name": "azp",
            "https.ca.location": "{broker}",
        },
        PYTHON_OAUTH,
    ),
    "oidc_over_tls": Row(
        {
            **OAUTH,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.certificates": "{broker_text}",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.client.credentials.client.id": "flights",
            "sasl.oauthbearer.client.credentials.client.secret": PASSWORD,
            "https.ca.pem": "{broker_text}",
        },
        {
            **OIDC,
            **TLS,
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": "{broker_text}",
            "https.ca.pem": "{broker_text}",
        },
        {**PYTHON_OAUTH, "security_protocol": "SASL_SSL", "ssl_context": CONTEXT},
    ),
    "tokens_of_a_function": Row(
        {
            **OAUTH,
            "sasl.oauthbearer.token.callback": "tests.unit.test_tokens:tokens",
            "sasl.oauthbearer.config": PASSWORD,
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": TOKENS,
        },
        PYTHON_OAUTH,
    ),
}


def named(settings: dict[str, Any]) -> dict[str, Any]:
    """Put a word into the place of each object."""
    kinds = {ssl.SSLContext: CONTEXT, TokenSource: TOKENS}
    return {name: kinds.get(type(value), value) for name, value in settings.items()}


def filled(settings: dict[str, Any], files: Files) -> dict[str, Any]:
    """Put in the files, and their texts."""
    values = {
        "{client}": str(files.client.path),
        "{client_key}": str(files.client.key),
        "{client_both}": str(files.client.both),
        "{client_text}": files.client.text,
        "{client_key_text}": files.client.key_text,
        "{client_key_encrypted}": files.encrypted_key,
        "{client_encrypted}": str(files.encrypted),
        "{client_store}": str(files.store),
        "{broker}": str(files.broker.path),
        "{broker_text}": files.broker.text,
    }
    return {name: values.get(str(value), value) for name, value in settings.items()}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_both_clients_get_the_same_login(row: Row, files: Files):
    kafka = SERVERS | filled(row.kafka, files)
    settings = librdkafka_settings(kafka)
    assert named(settings) == SERVERS | filled(row.librdkafka, files)
    made = {name: value for name, value in settings.items() if name != "oauth_cb"}
    Producer({**made, "log_level": 0})  # librdkafka reads the certificates as well
    told = kafka_python_settings(kafka)
    servers = {"bootstrap_servers": ["one:9092"]}
    assert named(told) == servers | filled(row.kafka_python, files)
    NetworkSelector(**told)
    if row.kafka_python.get("sasl_oauth_token_provider"):
        get_sasl_mechanism("OAUTHBEARER")(**told)  # it wants a provider of its own kind


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_the_text_of_a_login_shows_no_secret(row: Row, files: Files):
    shown = repr(Login.of(SERVERS | filled(row.kafka, files)))
    assert PASSWORD not in shown
    assert "PRIVATE KEY" not in shown


# -- certificates and keys as text ---------------------------------------------------------------


def text_login(files: Files, **more: str) -> dict[str, str]:
    kafka = filled(TABLE["mtls_text"].kafka, files)
    return SERVERS | kafka | {name.replace("_", "."): value for name, value in more.items()}


def handshake(context: ssl.SSLContext, files: Files, host: str = "127.0.0.1") -> str:
    """Connect to a broker that wants to see the client's certificate; return what it has seen."""
    broker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker.load_cert_chain(files.broker.both)
    broker.load_verify_locations(files.client.path)
    broker.verify_mode = ssl.CERT_REQUIRED
    seen: list[str] = []
    here, there = socket.socketpair()

    def accept() -> None:
        with broker.wrap_socket(there, server_side=True) as accepted:
            subject = dict(one[0] for one in accepted.getpeercert()["subject"])
            seen.append(subject["commonName"])
            accepted.sendall(b"!")

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with context.wrap_socket(here, server_hostname=host) as connected:
            connected.recv(1)
    finally:
        here.close()
        thread.join(10)
    return seen[0]


def test_a_key_given_as_text_is_shown_to_the_broker(files: Files):
    context = kafka_python_settings(text_login(files))["ssl_context"]
    assert handshake(context, files) == "client"
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_login_given_as_text_still_checks_the_host_and_the_issuer(files: Files):
    context = kafka_python_settings(text_login(files))["ssl_context"]
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(context, files, host="broker.example")
    stranger = text_login(files, ssl_truststore_certificates=files.client.text)
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        handshake(kafka_python_settings(stranger)["ssl_context"], files)


def test_the_host_is_not_checked_if_the_user_says_so(files: Files):
    kafka = text_login(files, ssl_endpoint_identification_algorithm="")
    context = kafka_python_settings(kafka)["ssl_context"]
    assert handshake(context, files, host="broker.example") == "client"
    assert librdkafka_settings(kafka)["ssl.endpoint.identification.algorithm"] == "none"


def test_a_key_given_as_text_leaves_nothing_behind(files: Files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # closes what earlier tests have left open
    before = set(Path("/proc/self/fd").iterdir())
    kafka_python_settings(text_login(files))
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_a_key_in_one_line_is_read_as_java_reads_it(files: Files):
    """A properties file has no room for lines; Java takes any white space between them."""
    flat = {
        "ssl_truststore_certificates": " ".join(files.broker.text.split("\n")),
        "ssl_keystore_certificate_chain": " ".join(files.client.text.split("\n")),
        "ssl_keystore_key": " ".join(files.client.key_text.split("\n")),
    }
    kafka = text_login(files, **flat)
    Producer({**librdkafka_settings(kafka), "log_level": 0})
    assert handshake(kafka_python_settings(kafka)["ssl_context"], files) == "client"


def test_a_chain_in_one_line_is_read_and_so_is_what_stands_beside_its_certificates(files: Files):
    both = f"Gr\u00fc\u00dfe {files.client.text}# the CA\n{files.broker.text}"
    flat = " ".join(both.split("\n"))
    kafka = text_login(files, ssl_truststore_certificates=flat, ssl_keystore_certificate_chain=flat)
    wanted = files.client.text + files.broker.text
    assert librdkafka_settings(kafka)["ssl.ca.pem"] == wanted
    assert librdkafka_settings(kafka)["ssl.certificate.pem"] == wanted
    Producer({**librdkafka_settings(kafka), "log_level": 0})
    assert handshake(kafka_python_settings(kafka)["ssl_context"], files) == "client"
    tokens = token_login(**{"https.ca.pem": flat})
    assert librdkafka_settings(tokens)["https.ca.pem"] == wanted


def test_an_old_encrypted_key_keeps_its_header(files: Files):
    """It says how the key is encrypted, and is no base64."""
    old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: A,B\n\nAAAA\n"
    old += "-----END RSA PRIVATE KEY-----\n"
    settings = librdkafka_settings(text_login(files, ssl_keystore_key=old))
    assert settings["ssl.key.pem"] == old


def refused(kafka: dict[str, str]) -> ConfigurationError:
    """Return the one error that both translations give; no secret is in it."""
    errors = []
    for translate in (librdkafka_settings, kafka_python_settings):
        with pytest.raises(ConfigurationError) as caught:
            translate(kafka)
        errors.append(caught.value)
        assert PASSWORD not in str(caught.value)
        assert "PRIVATE KEY-----\n" not in str(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0].what
    assert errors[0].cause
    assert errors[0].option
    return errors[0]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"ssl.truststore.location": "/x.pem"}, "given twice"),
        ({"ssl.ca.pem": "-----BEGIN"}, "given twice"),
        ({"ssl.keystore.location": "/x.pem"}, "given twice"),
        ({"ssl.key.location": "/x.pem"}, "given twice"),
        ({"ssl.keystore.type": "JKS"}, "is of type JKS"),
        ({"ssl.keystore.key": "/run/secrets/key.pem"}, "holds no PEM"),
        ({"ssl.truststore.certificates": "-----BEGIN \u00e9"}, "holds no PEM"),
        ({"ssl.keystore.key": None}, "without its other half"),
        ({"ssl.keystore.certificate.chain": None}, "without its other half"),
    ],
)
def test_texts_that_cannot_be_meant(more: dict[str, str | None], what: str, files: Files):
    kafka = text_login(files) | more
    assert what in refused({name: value for name, value in kafka.items() if value is not None}).what


@pytest.mark.parametrize(
    "name",
    [
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.ca.location",
        "ssl.ca.pem",
    ],
)
def test_an_empty_option_is_not_taken_for_none(name: str):
    """An empty file of certificates to trust would mean: every public CA."""
    error = refused(SERVERS | {"security.protocol": "SSL", name: " "})
    assert error.what == f"The Kafka option {name!r} is empty."
    assert error.option == f"kafka.{name}"


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"ssl.key.password": "wrong"}, "ssl.keystore.key"),
        ({"ssl.key.password": ""}, "ssl.keystore.key"),  # openssl would ask the terminal
        ({"ssl.keystore.key": "{broker_key}"}, "ssl.keystore.key"),
        ({"ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nAA==\n"}, "ssl.keystore.key"),
        (
            {"ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nAA==\n"},
            "ssl.truststore.certificates",
        ),
    ],
)
def test_texts_that_do_not_fit_are_refused_before_anything_connects(more, option, files: Files):
    kafka = text_login(files) | {"ssl.keystore.key": files.encrypted_key}
    kafka |= {"ssl.key.password": PASSWORD}
    kafka |= {k: v.replace("{broker_key}", files.broker.key_text) for k, v in more.items()}
    with pytest.raises(ConfigurationError, match=re.escape(option)) as caught:
        kafka_python_settings(kafka)
    assert "PRIVATE KEY" not in str(caught.value)
    with pytest.raises(ConfigurationError) as told, settings_checked(kafka, "producer"):
        Producer({**librdkafka_settings(kafka), "log_level": 0})
    assert "PRIVATE KEY" not in str(told.value)
    assert told.value.option == f"kafka.{option}=[hidden]"


def test_files_are_read_here_too_before_anything_connects(files: Files, tmp_path: Path):
    """kafka-python would read them for each connection, and say that no broker has answered."""
    key = tmp_path / "key.pem"
    key.write_text(files.encrypted_key)
    kafka = SERVERS | {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(files.client.path),
        "ssl.key.location": str(key),
    }
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password") as caught:
        kafka_python_settings(kafka)
    assert str(key) in caught.value.where
    assert kafka_python_settings(kafka | {"ssl.key.password": PASSWORD})["ssl_keyfile"] == str(key)


@pytest.mark.parametrize(
    "beside",
    [
        {"ssl.truststore.location": "/java/trust.jks", "ssl.truststore.password": PASSWORD},
        {"ssl.truststore.location": "/java/trust.pem"},
        {"ssl.keystore.location": "/java/store.jks", "ssl.keystore.password": PASSWORD},
        {"ssl.keystore.location": "/java/store.p12", "ssl.keystore.type": "PKCS12"},
        {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": PASSWORD},
        {"ssl.keystore.type": "JKS", "ssl.truststore.type": "JKS"},
        {"ssl.keystore.location": ""},
    ],
)
def test_what_only_javas_clients_use_has_no_effect(beside: dict[str, str], files: Files):
    """Spark's own Kafka client, or one of Java, may have the same options."""
    own = SERVERS | {
        "security.protocol": "SSL",
        "ssl.ca.location": str(files.broker.path),
        "ssl.certificate.location": str(files.client.path),
        "ssl.key.location": str(files.client.key),
    }
    for translate in (librdkafka_settings, kafka_python_settings):
        assert translate(own | beside) == translate(own)


@pytest.mark.parametrize(
    "more", [{"ssl.key.location": ""}, {"ssl.key.location": " "}, {"ssl.keystore.password": "x"}]
)
def test_what_a_pem_store_needs_not_has_no_effect(more: dict[str, str], files: Files):
    own = SERVERS | {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(files.client.both),
        "ssl.keystore.type": "PEM",
    }
    for translate in (librdkafka_settings, kafka_python_settings):
        assert translate(own | more) == translate(own)


# -- stores --------------------------------------------------------------------------------------


def store_login(files: Files, **more: str) -> dict[str, str]:
    kafka = filled(TABLE["mtls_pkcs12"].kafka, files)
    return SERVERS | kafka | {name.replace("_", "."): value for name, value in more.items()}


@pytest.mark.parametrize("kind", ["", "pkcs12"])
def test_a_pkcs12_store_is_shown_to_the_broker(kind: str, files: Files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kafka = store_login(files)
    if kind:  # then the end of the name does not tell
        kafka["ssl.keystore.location"] = str(shutil.copy(files.store, tmp_path / "keystore"))
        kafka["ssl.keystore.type"] = kind
    Producer({**librdkafka_settings(kafka), "log_level": 0})
    assert handshake(kafka_python_settings(kafka)["ssl_context"], files) == "client"
    assert [path.name for path in tmp_path.iterdir()] == (["keystore"] if kind else [])


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"ssl.keystore.location": "/x.jks"}, "is of type JKS"),
        ({"ssl.keystore.type": "JKS"}, "is of type JKS"),
        ({"ssl.truststore.location": "/x.p12"}, "is of type PKCS12"),
        ({"ssl.keystore.key": "-----BEGIN"}, "holds the key"),
        ({"ssl.key.location": "/x.key"}, "holds the key"),
    ],
)
def test_stores_that_cannot_be_meant(more: dict[str, str], what: str, files: Files):
    assert what in refused(store_login(files) | more).what


def test_a_store_of_trusted_certificates_is_converted_by_one_command():
    trust = {"ssl.truststore.location": "/x/trust.p12", "ssl.truststore.password": PASSWORD}
    error = refused(SERVERS | {"security.protocol": "SSL"} | trust)
    assert error.where == "/x/trust.p12"
    assert "convert it: openssl pkcs12 -in FILE.p12 -nokeys" in error.cause
    assert "keytool" not in error.cause


def test_a_store_with_another_password_is_refused_before_anything_connects(files: Files):
    kafka = store_login(files, ssl_keystore_password="wrong")
    with pytest.raises(ConfigurationError, match=r"ssl\.keystore\.password") as caught:
        kafka_python_settings(kafka)
    assert caught.value.where == str(files.store)
    with pytest.raises(ConfigurationError) as told, settings_checked(kafka, "producer"):
        Producer({**librdkafka_settings(kafka), "log_level": 0})
    assert str(files.store) in told.value.option


def test_a_store_needs_a_package_that_reads_it(files: Files, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(ConfigurationError, match=r"\[pkcs12\]"):
        kafka_python_settings(store_login(files))


# -- tokens --------------------------------------------------------------------------------------


def token_login(kind: str = "oidc", **more: str) -> dict[str, str]:
    return SERVERS | TABLE[kind].kafka | more


def test_both_clients_and_each_task_of_a_process_share_the_tokens_of_a_login():
    kafka = token_login("tokens_of_a_function")
    source = librdkafka_settings(kafka)["oauth_cb"]
    assert kafka_python_settings(kafka)["sasl_oauth_token_provider"] is source
    assert librdkafka_settings(dict(kafka))["oauth_cb"] is source
    other = kafka | {"sasl.oauthbearer.config": "another"}
    assert librdkafka_settings(other)["oauth_cb"] is not source


def test_a_login_with_a_function_travels_to_a_worker():
    options = KafkaSource(
        bootstrap_servers="one:9092", subscribe="in", kafka=token_login("tokens_of_a_function")
    )
    arrived = pickle.loads(pickle.dumps(options))
    assert "oauth_cb" in librdkafka_settings(arrived.client_settings)


A_PREFIX = "sasl.oauthbearer."
CLIENT_SECRET = f"{A_PREFIX}client.credentials.client.secret"


@pytest.mark.parametrize(
    ("kind", "more", "what", "cause"),
    [
        ("oidc", {f"{A_PREFIX}token.endpoint.url": ""}, "who gives", f"{A_PREFIX}token.endpoint"),
        ("oidc", {CLIENT_SECRET: ""}, "who gives", CLIENT_SECRET),
        ("oidc", {f"{A_PREFIX}client.secret": "x"}, "given twice", CLIENT_SECRET),
        ("oidc", {"sasl.jaas.config": f"{MODULE} clientId='x';"}, "given twice", "clientId"),
        ("oidc", {"sasl.jaas.config": "PlainLoginModule required;"}, "cannot be read", MODULE),
        ("oidc", {"sasl.jaas.config": f"{MODULE} extension_a=b/c==;"}, "cannot be read", MODULE),
        ("oidc", {"sasl.jaas.config": f"{MODULE} scope='kafka;"}, "cannot be read", MODULE),
        (
            "oidc",
            {"sasl.jaas.config": f"{MODULE} ssl.truststore.location='/x';"},
            "'ssl.truststore.location'",
            "https.ca.location",
        ),
        ("oidc", {"https.ca.location": "/x", "https.ca.pem": "y"}, "given twice", "https.ca"),
        ("oidc", {"https.ca.pem": ""}, "'https.ca.pem' is empty", "file"),
        ("oidc", {f"{A_PREFIX}token.callback": "a:b"}, "A function gives", "leave out"),
        ("oidc", {f"{A_PREFIX}token.endpont.url": "x"}, "unknown", "token.endpoint.url"),
        ("oidc", {f"{A_PREFIX}grant.type": "x"}, "unknown", "token.callback=module:name"),
        ("oidc", {f"{A_PREFIX}method": "imds"}, "not both clients", "oidc"),
        ("oidc", {f"{A_PREFIX}header.urlencode": "true"}, "not both clients", "false"),
        ("oidc", {f"{A_PREFIX}extensions": "auth=x"}, "'auth'", "letters"),
        ("oidc", {f"{A_PREFIX}extensions": "a1=x"}, "'a1'", "letters"),
        ("oidc", {f"{A_PREFIX}extensions": "alone"}, "'alone'", "letters"),
        ("oidc_in_jaas", {f"{A_PREFIX}extensions": "a=x"}, "given twice", "extension_NAME"),
        (
            "oidc",
            {"sasl.jaas.config": f"{MODULE} extension_a='x,y';"},
            "'a'",
            "without a comma",
        ),
        (
            "oidc",
            {"sasl.login.callback.handler.class": "software.amazon.msk.IAMHandler"},
            "class of Java",
            "token.callback=module:name",
        ),
        ("oidc", {"sasl.username": "me"}, "another mechanism", "tokens name the user"),
        ("oidc", {f"{A_PREFIX}config": PASSWORD}, "for a function", "token.callback"),
        ("tokens_of_a_function", {"https.ca.pem": "x"}, "A function gives", "https.ca.pem"),
        ("tokens_of_a_function", {f"{A_PREFIX}method": "oidc"}, "A function gives", "method"),
        ("tokens_of_a_function", {f"{A_PREFIX}scope": "x"}, "A function gives", "scope"),
        (
            "tokens_of_a_function",
            {"sasl.jaas.config": f"{MODULE} extension_a='x';"},
            "A function gives",
            "sasl.jaas.config",
        ),
        (
            "tokens_of_a_function",
            {f"{A_PREFIX}token.callback": "tests.unit.test_tokens:nothing"},
            "cannot be imported",
            "nothing",
        ),
        ("plain", {CLIENT_SECRET: PASSWORD}, "belongs to OAUTHBEARER", "PLAIN"),
        ("plain", {"https.ca.location": "/x"}, "belongs to OAUTHBEARER", "PLAIN"),
    ],
)
def test_tokens_that_cannot_be_meant(kind: str, more: dict[str, str], what: str, cause: str):
    error = refused(token_login(kind, **more))
    assert what in error.what
    assert cause in error.cause


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("file:///run/token", "https://"),
        ("idp.example/token", "https://"),
        ("https:///token", "no host"),
        ("https://idp.example:port/token", "host"),
        (f"https://me:{PASSWORD}#x@idp.example/", "host"),
        (f"https://me:{PASSWORD}\u2100@idp.example/", "printable"),
        (f"https://idp.example/token?key={PASSWORD} x", "printable"),
        (f"https://me:{PASSWORD}@idp.example/token", "holds a user"),
        ("https://[idp/token", "host"),
    ],
)
def test_an_endpoint_that_cannot_be_asked(url: str, cause: str):
    error = refused(token_login(**{"sasl.oauthbearer.token.endpoint.url": url}))
    assert cause in error.cause


def test_a_librdkafka_without_oauthbearer_says_so(monkeypatch):
    monkeypatch.setattr(login_sasl, "library_lacks", lambda feature: f"no {feature}")
    assert "no sasl_oauthbearer" in refused(token_login()).cause


# -- the page ------------------------------------------------------------------------------------

JOB = """
[app]
id = "a"
checkpoint = "state"

{source}
kafka.bootstrap.servers = "one:9092"
subscribe = "in"

[[sink]]
kafka.bootstrap.servers = "one:9092"
topic = "out"
"""
SNIPPETS = (
    block("docs/logging_in.md", "# or SSL, without a user"),
    block("docs/logging_in.md", "# if the key is encrypted"),
    block("docs/logging_in.md", "client.p12"),
    block("docs/logging_in.md", "kafka.ssl.keystore.key"),
    block("docs/logging_in.md", "ScramLoginModule"),
    block("docs/logging_in.md", "# an identity provider"),
    block("docs/logging_in.md", "OAuthBearerLoginModule"),
    block("docs/logging_in.md", "msk_tokens:token"),
)


def test_the_page_names_each_option_of_a_login():
    page = (ROOT / "docs/logging_in.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z.]+)`", row)} == NAMES


@pytest.mark.parametrize("source", SNIPPETS)
def test_each_snippet_of_the_page_is_a_login(source, files: Files, tmp_path: Path, monkeypatch):
    (tmp_path / "ca.pem").write_text(files.broker.text)
    (tmp_path / "client.pem").write_text(files.client.both.read_text())
    (tmp_path / "client.key").write_text(files.client.key_text)
    (tmp_path / "key_password").write_text("any\n")
    (tmp_path / "client.p12").write_bytes(files.store.read_bytes())
    (tmp_path / "store_password").write_text(PASSWORD + "\n")
    (tmp_path / "client_secret").write_text(PASSWORD + "\n")
    module = types.ModuleType("msk_tokens")
    monkeypatch.setitem(sys.modules, "msk_tokens", module)
    module.token = lambda _: ("any", time.time() + 60)  # type: ignore[attr-defined]
    text = JOB.format(source=source.replace("/run/secrets/", ""))
    variables = dict.fromkeys(("KAFKA_PASSWORD", "CLIENT_SECRET"), PASSWORD)
    job = parse_job(text, tmp_path / "job.toml", variables)
    settings = job.source.client_settings
    assert kafka_python_settings(settings)["security_protocol"] in {"SSL", "SASL_SSL"}
    Producer({**librdkafka_settings(settings), "log_level": 0})
    assert PASSWORD not in repr(job)


def test_the_function_of_the_page_gives_a_token(monkeypatch):
    class MSKAuthTokenProvider:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            return f"signed-for-{region}", int(time.time() * 1000) + 900_000

    signer = types.ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = MSKAuthTokenProvider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    made = types.ModuleType("msk_tokens")
    run_python(block("docs/logging_in.md", "MSKAuthTokenProvider"), vars(made))
    monkeypatch.setitem(sys.modules, "msk_tokens", made)
    callback = {"sasl.oauthbearer.token.callback": "msk_tokens:token"}
    kafka = SERVERS | OAUTH | callback | {"sasl.oauthbearer.config": "eu-north-1"}
    assert librdkafka_settings(kafka)["oauth_cb"]("")[0] == "signed-for-eu-north-1"
