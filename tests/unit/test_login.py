"""Every kind of login, translated for librdkafka and for kafka-python, and judged by both."""

from __future__ import annotations

import dataclasses
import re
import shutil
import socket
import ssl
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from connectors.clients.client_settings import (
    kafka_python_settings,
    librdkafka_settings,
    settings_checked,
)
from connectors.clients.login import NAMES, Login
from connectors.options.job_file import parse_job
from tests.certificates import Certificate, self_signed
from tests.pages import ROOT, block
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


CONTEXT = "an SSLContext"
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
    assert settings == SERVERS | filled(row.librdkafka, files)
    Producer({**settings, "log_level": 0})  # librdkafka reads the certificates as well
    told = kafka_python_settings(kafka)
    assert told.pop("bootstrap_servers") == ["one:9092"]
    if isinstance(told.get("ssl_context"), ssl.SSLContext):
        told["ssl_context"] = CONTEXT
    assert told == filled(row.kafka_python, files)


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
    before = set(Path("/proc/self/fd").iterdir())
    kafka_python_settings(text_login(files))
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) == before


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
        ({"ssl.keystore.password": PASSWORD}, "has a password"),
        ({"ssl.truststore.password": PASSWORD}, "has a password"),
        ({"ssl.keystore.key": "/run/secrets/key.pem"}, "holds no PEM"),
        ({"ssl.truststore.certificates": "-----BEGIN \u00e9"}, "holds no PEM"),
        ({"ssl.keystore.key": ""}, "without its other half"),
        ({"ssl.keystore.certificate.chain": ""}, "without its other half"),
    ],
)
def test_texts_that_cannot_be_meant(more: dict[str, str], what: str, files: Files):
    assert what in refused(text_login(files) | more).what


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
)


def test_the_page_names_each_option_of_a_login():
    page = (ROOT / "docs/logging_in.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z.]+)`", row)} == NAMES


@pytest.mark.parametrize("source", SNIPPETS)
def test_each_snippet_of_the_page_is_a_login(source: str, files: Files, tmp_path: Path):
    (tmp_path / "ca.pem").write_text(files.broker.text)
    (tmp_path / "client.pem").write_text(files.client.both.read_text())
    (tmp_path / "client.key").write_text(files.client.key_text)
    (tmp_path / "key_password").write_text("any\n")
    (tmp_path / "client.p12").write_bytes(files.store.read_bytes())
    (tmp_path / "store_password").write_text(PASSWORD + "\n")
    text = JOB.format(source=source.replace("/run/secrets/", ""))
    job = parse_job(text, tmp_path / "job.toml", {"KAFKA_PASSWORD": PASSWORD})
    settings = job.source.client_settings
    assert kafka_python_settings(settings)["security_protocol"] in {"SSL", "SASL_SSL"}
    Producer({**librdkafka_settings(settings), "log_level": 0})
    assert PASSWORD not in repr(job)
