"""Client settings on the command line: `--config FILE` is read as Java reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.cli.kafka_options import kafka_settings
from connectors.clients.client_settings import kafka_python_settings
from transactions.errors import ConfigurationError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def refused(config: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        kafka_settings("b:9092", (), config)
    return caught.value


def test_a_line_that_ends_in_a_backslash_goes_on(config: Path):
    """As every page about Kafka writes a login."""
    config.write_text(
        "# a login\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism = PLAIN\n"
        "\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '    username="alice" \\\n'
        '    password="secret";\n'
        "! the end\n"
    )
    settings = kafka_python_settings(kafka_settings("b:9092", (), config))
    assert settings["sasl_plain_username"] == "alice"
    assert settings["sasl_plain_password"] == "secret"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("client.id=me", "me"),
        ("  kafka.client.id = me  ", "me"),
        ("client.id: me", "me"),
        ("client.id me", "me"),
        ("client.id=a=b:c", "a=b:c"),
        ("client.id=", ""),
        (r"client.id=C:\\keys\tme", "C:\\keys\tme"),
        (r"client.id=\u00e9", "é"),
        ("client.id=é", "é"),
    ],
)
def test_separators_and_escapes_are_those_of_java(config: Path, line: str, value: str):
    config.write_text(f"{line}\n", encoding="utf-8")
    assert kafka_settings(None, (), config) == {"client.id": value}


def test_the_command_line_wins_over_the_file(config: Path):
    config.write_text("client.id=file\nbootstrap.servers=file:1\nlinger.ms=5\n")
    assert kafka_settings("b:9092", ["client.id=me"], config) == {
        "bootstrap.servers": "b:9092",
        "client.id": "me",
        "linger.ms": "5",
    }


@pytest.mark.parametrize("line", ["client.id", "=secret"])
def test_a_setting_without_a_name_or_a_value_is_refused_with_its_line(config: Path, line: str):
    config.write_text(f"# one\nlinger.ms = \\\n  5\n\n{line}\n")
    error = refused(config)
    assert error.where == f"{config}, line 5"
    assert all((error.what, error.cause, error.option))
    assert "secret" not in str(error)


def test_an_escape_that_cannot_be_read_is_refused_without_the_secret_in_it(config: Path):
    config.write_text("client.id=me\nsasl.password=\\user-secret\n")
    error = refused(config)
    assert error.where == f"{config}, line 2"
    assert all((error.what, error.cause, error.option))
    assert "user" not in str(error)
    assert error.__suppress_context__


def test_a_file_that_cannot_be_read_is_refused(config: Path):
    assert refused(config).where == str(config)


def test_a_setting_of_the_command_line_has_a_value_and_is_given_once():
    for pairs in (["client.id"], ["=me"], ["client.id=a", "kafka.client.id=b"]):
        with pytest.raises(ConfigurationError):
            kafka_settings("b:9092", pairs)
