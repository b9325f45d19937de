"""Client settings on the command line: `--config FILE` is read as Java reads it, and what cannot
stand beside `--job`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from connectors.cli.doctor import command as doctor
from connectors.cli.kafka_options import job_of, kafka_settings
from connectors.cli.run import check_job
from connectors.cli.transactions import command as transactions
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


@pytest.mark.parametrize(
    ("pairs", "option"),
    [
        (["client.id"], "--kafka client.id"),
        (["=secret"], "--kafka "),
        (["client.id=a", "kafka.client.id=secret"], "--kafka client.id"),
        (["bootstrap.servers=secret"], "--kafka bootstrap.servers"),
    ],
)
def test_a_setting_of_the_command_line_has_a_value_and_is_given_once(pairs: list[str], option: str):
    with pytest.raises(ConfigurationError) as caught:
        kafka_settings("b:9092", pairs)
    error = caught.value
    assert error.where == "the command line"
    assert error.cause
    assert error.option.startswith(option)
    assert "secret" not in str(error)


GIVEN = {
    "--bootstrap": "b:1",
    "--kafka": "client.id=me",
    "--config": "client.properties",
    "--app": "flights",
    "--input": "in",
    "--output": "out",
    "--transaction-timeout": "60000",
    "--checkpoint-timeout": "10min",
    "--restart-budget": "1min",
    "--barrier-interval": "1s",
}
OF_CLIENTS = ("--bootstrap", "--kafka", "--config")
ELSEWHERE = {"--checkpoint": "elsewhere"}


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        *((doctor, name, "") for name in GIVEN),
        *((transactions, name, "list") for name in (*OF_CLIENTS, *ELSEWHERE)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_option_that_the_job_file_answers_is_refused_beside_it(
    tmp_path: Path, command: click.Command, name: str, words: str
):
    """Also with the value of its default: an option that is set is never ignored."""
    job = str(tmp_path / "job.toml")
    given = [*words.split(), "--job", job, name, {**GIVEN, **ELSEWHERE}[name]]
    error = CliRunner().invoke(command, given).exception
    assert isinstance(error, ConfigurationError)
    assert error.what.startswith(f"{name} ")
    assert (error.where, bool(error.cause)) == (job, True)
    assert f"leave out {name}" in error.option


def test_what_a_job_file_does_not_say_may_be_given_beside_it(tmp_path: Path):
    """The commands go on to the job file, which is missing."""
    job = str(tmp_path / "job.toml")
    listing = ["list", "--job", job, "--timeout", "5s", "--json"]
    for command, words in (
        (doctor, ["--job", job, "--timeout", "5s", "--json"]),
        (transactions, listing),
    ):
        error = CliRunner().invoke(command, words).exception
        assert isinstance(error, ConfigurationError)
        assert "leave out" not in error.option


def test_a_function_beside_the_job_file_gives_the_tokens(tmp_path: Path, monkeypatch):
    """`--job` and `run --check` import it; Spark's workers find it by PYTHONPATH."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "beside_the_job.py").write_text("def token(config):\n    return config, 9e9\n")
    kafka = """
"kafka.bootstrap.servers" = "b:9092"
kafka.security.protocol = "SASL_PLAINTEXT"
kafka.sasl.mechanism = "OAUTHBEARER"
kafka.sasl.oauthbearer.token.callback = "beside_the_job:token"
"""
    job_file = tmp_path / "job.toml"
    job_file.write_text(
        f'[app]\nid = "a"\ncheckpoint = "state"\n[source]\nsubscribe = "in"{kafka}'
        f'[[sink]]\ntopic = "out"{kafka}'
    )
    job = job_of(job_file)
    check_job(job)
    assert "beside_the_job:token" in repr(job.source)
    job_file.write_text(job_file.read_text().replace("beside_the_job", "nowhere_beside_it"))
    with pytest.raises(ConfigurationError, match="nowhere_beside_it:token"):
        check_job(job_of(job_file))
