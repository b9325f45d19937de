"""What `sparkonce run` does when a cluster refuses the login of a job that has run.

With a real broker: `journeys/test_new_password.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.cli import run
from connectors.cli.kafka_options import job_of
from connectors.options.job_definition import JobDefinition
from connectors.spark import submitted
from tests.certificates import self_signed
from transactions.errors import AuthenticationError, BrokerUnavailableError, ConfigurationError

LOGIN = """\
"kafka.security.protocol" = "SASL_SSL"
"kafka.ssl.truststore.location" = "{name}.pem"
"kafka.sasl.mechanism" = "PLAIN"
"kafka.sasl.jaas.config" = '''org.apache.kafka.common.security.plain.PlainLoginModule required
  username="flights" password="${{file:{name}}}";'''
"""
JOB = f"""\
[app]
id = "flights"
checkpoint = "state"
[source]
"kafka.bootstrap.servers" = "localhost:9092"
subscribe = "flights"
{LOGIN.format(name="in")}
[[sink]]
"kafka.bootstrap.servers" = "localhost:9093"
topic = "flights-clean"
{LOGIN.format(name="out")}
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return an old one and a new one."""
    folder = tmp_path_factory.mktemp("tls")
    old, new = (self_signed(folder, name) for name in ("old", "new"))
    return old.text, new.text


class Run:
    """Runs of a job; each starts, and then what is said here happens.

    Attributes:
        passwords: with which the runs began.
    """

    def __init__(self, *ends: object, starts: bool = True) -> None:
        self.passwords: list[str] = []
        self.progress = run.Progress()
        self._ends = iter(ends)
        self._starts = starts

    def __call__(self, job: JobDefinition) -> None:
        self.passwords.append(job.source.client_settings["sasl.jaas.config"].split('"')[3])
        if self._starts:
            self.progress.started(0)
        end = next(self._ends, None)
        if callable(end):
            end()
            end = AuthenticationError("refused")
        if isinstance(end, Exception):
            raise end

    def all(self, folder: Path) -> None:
        run._run_with_new_logins(job_of(folder / "job.toml"), self, self, self.progress)


@pytest.fixture
def folder(tmp_path: Path, certificates: tuple[str, str]) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    for name in ("in", "out"):
        (tmp_path / name).write_text("old")
        (tmp_path / f"{name}.pem").write_text(certificates[0])
    return tmp_path


@pytest.mark.parametrize("renewed", ["in", "out", "in.pem", "out.pem"])
def test_a_renewed_login_is_tried(folder, certificates, renewed, capsys):
    text = certificates[1] if renewed.endswith(".pem") else "new"
    runs = Run(lambda: (folder / renewed).write_text(text))
    runs.all(folder)
    assert runs.passwords == ["old", "new" if renewed == "in" else "old"]
    assert "the login has been renewed" in capsys.readouterr().err


def test_what_was_refused_is_not_tried_again(folder, capsys):
    runs = Run(lambda: (folder / "in").write_text("new"), AuthenticationError("refused"))
    with pytest.raises(AuthenticationError):
        runs.all(folder)
    assert runs.passwords == ["old", "new"]
    assert capsys.readouterr().err.count("the login has been renewed") == 1


def test_a_job_that_has_not_run_is_not_tried_again(folder):
    runs = Run(lambda: (folder / "in").write_text("new"), starts=False)
    with pytest.raises(AuthenticationError):
        runs.all(folder)
    assert runs.passwords == ["old"]


def test_a_cluster_that_runs_the_driver_starts_it_again_itself(folder, monkeypatch):
    monkeypatch.setattr(submitted, "is_submitted", lambda: True)
    runs = Run(lambda: (folder / "in").write_text("new"))
    with pytest.raises(AuthenticationError):
        runs.all(folder)
    assert runs.passwords == ["old"]


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ConfigurationError("wrong")])
def test_another_error_ends_the_job(folder, error):
    with pytest.raises(type(error)):
        Run(error).all(folder)


def test_a_job_file_that_is_wrong_meanwhile_says_so(folder):
    with pytest.raises(ConfigurationError, match="cannot be read") as raised:
        Run((folder / "in").unlink).all(folder)
    assert not isinstance(raised.value, AuthenticationError)


def test_a_function_for_tokens_is_no_reason_to_try_again(folder):
    """It is another object each time that the job file is read."""
    oauth = (
        '"kafka.security.protocol" = "SASL_PLAINTEXT"\n"kafka.sasl.mechanism" = "OAUTHBEARER"\n'
        '"kafka.sasl.oauthbearer.token.callback" = "tests.unit.samples:decision"\n'
    )
    (folder / "job.toml").write_text(JOB.replace(LOGIN.format(name="out"), oauth))
    runs = Run(lambda: None)
    with pytest.raises(AuthenticationError):
        runs.all(folder)
    assert runs.passwords == ["old"]
