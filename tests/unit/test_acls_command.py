"""`sparkonce doctor --acls JOB.toml`: what it prints, and that a shell takes it as it is meant."""

from __future__ import annotations

import shlex
import socket
import subprocess
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors.cli.doctor import command
from connectors.cli.kafka_options import job_of
from connectors.doctor.acls import acls_of
from tests.pages import block, commands
from tests.unit.test_acls import login
from tests.unit.test_kafka_options import GIVEN
from transactions.errors import ConfigurationError

#: Shows the words that the command would get.
SHELL = "kafka-acls.sh() { printf '%s\\0' \"$@\" END; }\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two principals on two clusters. Nobody may connect."""

    def refuse(*_: object) -> None:
        raise AssertionError("it connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    path = tmp_path / "job.toml"
    path.write_text(
        '[app]\nid = "app"\ncheckpoint = "state"\n[source]\nsubscribe = "in"\n'
        f'{login("reader")}[[sink]]\ntopic = "out"\n{login("writer", "c:1, c:2")}'
    )
    return path


def printed(*words: str) -> Result:
    done = CliRunner().invoke(command, [*words], catch_exceptions=False)
    assert "hunter2" not in done.output
    return done


def pasted(text: str) -> list[list[str]]:
    """Return the arguments of each command, as a shell reads them."""
    done = subprocess.run(
        ["bash", "-c", SHELL + text], capture_output=True, text=True, timeout=20, check=True
    )
    return [one.split("\0")[:-1] for one in done.stdout.split("END\0")[:-1]]


def test_the_page_shows_what_it_prints(job: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(job.parent)
    Path("flights.toml").write_text(block("README.md", "[transform]"))
    page = block("docs/operations.md", "doctor --acls")
    (line,) = commands(page)
    words = shlex.split(line)
    assert words[:2] == ["sparkonce", "doctor"]
    assert printed(*words[2:]).stdout == page.partition("\n")[2]


def test_each_rule_is_a_command(job: Path):
    done = printed("--acls", str(job))
    assert done.exit_code == 0
    assert pasted(done.stdout) == [
        [
            *("--bootstrap-server", servers, "--command-config", "admin.properties", "--add"),
            *("--allow-principal", principal, *rule.split()),
        ]
        for servers, principal, rules in (
            ("b:1", "User:reader", ("--operation Read --group app", "--operation Read --topic in")),
            (
                "c:1,c:2",
                "User:writer",
                (
                    "--operation DescribeConfigs --cluster",
                    "--operation Write --transactional-id app. --resource-pattern-type prefixed",
                    "--operation Read --group app",
                    "--operation Read --group app. --resource-pattern-type prefixed",
                    "--operation Read --operation Write --topic out",
                    "--operation Describe --topic __consumer_offsets",
                ),
            ),
        )
        for rule in rules
    ]


def test_what_is_no_command_is_a_comment(job: Path):
    text = printed("--acls", str(job)).stdout
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert "# source: User:reader on b:1" in comments
    assert "# sink 'out': User:writer on c:1,c:2" in comments
    assert any(one.startswith("# note: sink 'out' names other brokers") for one in comments)
    for grant in acls_of(job_of(job)):
        assert all(f"# {rule.reason}" in comments for rule in grant.rules)


def test_a_login_without_a_name_is_a_placeholder(job: Path):
    text = job.read_text().replace(login("reader"), 'kafka.bootstrap.servers = "b:1"\n')
    job.write_text(text)
    shown = printed("--acls", str(job)).stdout
    assert "--allow-principal User:PRINCIPAL " in shown
    assert "# note: User:PRINCIPAL stands for the principal of this login" in shown
    assert "User:ANONYMOUS" in shown
    named = printed("--acls", str(job), "--principal", "User:CN=flights,O=us").stdout
    assert "PRINCIPAL" not in named
    assert {words[6] for words in pasted(named)} == {"User:CN=flights,O=us"}


HOSTILE = "x'; touch here #$(touch here)`touch here`\\n\\u2028touch here\\ntouch here\\u0007"


def test_a_shell_runs_nothing_else(job: Path):
    """A job file can come from somebody else. TOML's escapes reach every character, and a shell can
    take comments for commands.
    """
    text = job.read_text().replace('"reader"', f'"{HOSTILE}"').replace('"in"', f'"{HOSTILE}"')
    job.write_text(text.replace('"c:1, c:2"', f'"{HOSTILE}"'))
    shown = printed("--acls", str(job)).stdout
    meant = HOSTILE.encode().decode("unicode_escape")
    for text in (shown, shown.replace("# ", ": ")):
        here = f"cd {job.parent}\n{text}"
        words = [word for words in pasted(here) for word in words]
        assert words.count(f"User:{meant}") == 2
        assert [one for one in job.parent.iterdir() if one != job] == []
    comments = [line for line in shown.split("\n") if line.startswith("#")]
    assert any("touch here" in one for one in comments)
    assert all(line.isprintable() for line in comments)


def test_the_same_for_programs(job: Path):
    done = printed("--acls", str(job), "--json")
    found = orjson.loads(done.stdout)
    assert found["application"] == "app"
    read, written = found["clusters"]
    assert (read["bootstrap"], read["principal"], read["used_by"], read["notes"]) == (
        *("b:1", "User:reader", ["source"], []),
    )
    assert read["acls"][1] == {
        "resource_type": "TOPIC",
        "pattern_type": "LITERAL",
        "name": "in",
        "operations": ["READ"],
        "reason": acls_of(job_of(job))[0].rules[1].reason,
    }
    assert len(written["acls"]) == 6
    assert len(written["notes"]) == 1
    job.write_text(job.read_text().replace(login("reader"), 'kafka.bootstrap.servers = "b:1"\n'))
    nobody = orjson.loads(printed("--acls", str(job), "--json").stdout)["clusters"][0]
    assert nobody["principal"] is None
    assert "User:ANONYMOUS" in nobody["notes"][0]


@pytest.mark.parametrize("name", [*GIVEN, "--job", "--timeout"])
def test_an_option_that_it_does_not_use_is_refused(job: Path, name: str):
    value = {**GIVEN, "--job": str(job), "--timeout": "30s"}[name]
    error = CliRunner().invoke(command, ["--acls", str(job), name, value]).exception
    assert isinstance(error, ConfigurationError)
    assert error.what == f"{name} cannot be given beside --acls."
    assert (error.where, bool(error.cause)) == (str(job), True)
    assert f"leave out {name}" in error.option


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bootstrap", "b:1", "--principal", "User:me"], "--principal needs --acls"),
        (["--principal", "me"], "TYPE:NAME"),
        (["--principal", "User:"], "TYPE:NAME"),
    ],
)
def test_a_principal_that_means_nothing_is_refused(job: Path, words: list[str], says: str):
    given = words if "--bootstrap" in words else ["--acls", str(job), *words]
    done = printed(*given)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_job_file_that_is_wrong_is_told_as_everywhere(job: Path):
    job.write_text("[app]\n")
    error = CliRunner().invoke(command, ["--acls", str(job)]).exception
    assert isinstance(error, ConfigurationError)
    assert error.where.startswith(str(job))
