"""What `sparkonce run` does when a cluster refuses the login of a job that has run.

With a real broker: `journeys/test_new_password.py`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.cli import run
from connectors.cli.kafka_options import job_of
from connectors.cli.stop_switch import StopSwitch
from connectors.options.job_definition import JobDefinition
from connectors.spark import job as job_runner
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


class StartsAgainError(Exception):
    """The command has become the process of a new start."""


class Run:
    """Runs a job: it starts, and then what is said here happens.

    Attributes:
        stop: of the command.
    """

    def __init__(self, end: object = None, *, starts: bool = True) -> None:
        self.stop = StopSwitch(lambda _: None)
        self._end = end
        self._starts = starts

    def __call__(
        self, job: JobDefinition, *, on_started: Callable[[int], None], **_: object
    ) -> None:
        if self._starts:
            on_started(0)
        if callable(self._end):
            self._end()
            raise AuthenticationError("refused")
        assert isinstance(self._end, Exception)
        raise self._end

    def of(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the job of a folder as the command does."""
        monkeypatch.setattr(job_runner, "run_job", self)
        monkeypatch.setattr(os, "execv", self._begins_again)
        monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: None)
        job = job_of(folder / "job.toml")
        run._run(job, self.stop, None, accept_duplicates=False)

    @staticmethod
    def _begins_again(program: str, words: list[str]) -> None:
        assert (program, words) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
        raise StartsAgainError


@pytest.fixture(autouse=True)
def _levels_of_the_command() -> Iterator[None]:
    loggers = {one: one.level for one in map(logging.getLogger, ("sparkonce", "kafka"))}
    yield
    for logger, level in loggers.items():
        logger.setLevel(level)


@pytest.fixture
def folder(tmp_path: Path, certificates: tuple[str, str]) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    for name in ("in", "out"):
        (tmp_path / name).write_text("old")
        (tmp_path / f"{name}.pem").write_text(certificates[0])
    return tmp_path


@pytest.mark.parametrize("renewed", ["in", "out", "in.pem", "out.pem"])
def test_a_renewed_login_is_tried(folder, certificates, renewed, capsys, monkeypatch):
    text = certificates[1] if renewed.endswith(".pem") else "new"
    with pytest.raises(StartsAgainError):
        Run(lambda: (folder / renewed).write_text(text)).of(folder, monkeypatch)
    said = capsys.readouterr().err
    assert "AuthenticationError: refused" in said
    assert "its login has been renewed" in said


def test_what_was_refused_is_not_tried_again(folder, monkeypatch):
    """What else is changed in the job file is no other login."""
    path = folder / "job.toml"
    changed = path.read_text().replace("[[sink]]", '[[sink]]\n"kafka.linger.ms" = "7"')
    with pytest.raises(AuthenticationError):
        Run(lambda: path.write_text(changed)).of(folder, monkeypatch)


def test_a_job_that_has_not_run_is_not_tried_again(folder, monkeypatch):
    renew = lambda: (folder / "in").write_text("new")  # noqa: E731
    with pytest.raises(AuthenticationError):
        Run(renew, starts=False).of(folder, monkeypatch)


def test_a_stop_that_was_asked_for_is_no_start(folder, monkeypatch):
    """The error says that the end is not good, so it is not forgotten."""
    runs = Run(lambda: [(folder / "in").write_text("new"), setattr(runs.stop, "asked", True)])
    with pytest.raises(AuthenticationError):
        runs.of(folder, monkeypatch)


def test_a_cluster_that_runs_the_driver_starts_it_again_itself(folder, monkeypatch):
    monkeypatch.setattr(submitted, "is_submitted", lambda: True)
    with pytest.raises(AuthenticationError):
        Run(lambda: (folder / "in").write_text("new")).of(folder, monkeypatch)


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ConfigurationError("wrong")])
def test_another_error_ends_the_job(folder, error, monkeypatch):
    with pytest.raises(type(error)):
        Run(error).of(folder, monkeypatch)


def test_a_job_file_that_is_wrong_meanwhile_says_so(folder, monkeypatch):
    with pytest.raises(ConfigurationError, match="cannot be read") as raised:
        Run((folder / "in").unlink).of(folder, monkeypatch)
    assert not isinstance(raised.value, AuthenticationError)
