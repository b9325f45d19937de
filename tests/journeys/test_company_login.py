"""A company's cluster: TLS with a client's certificate, and tokens that live for seconds.

A pipeline runs for longer than its tokens, is killed, and goes on. Nobody who looks at it finds a
secret: not in what its commands say at their most talkative, nor in its folder, in Spark's pages,
in the metrics, in `ps`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import psutil
import pytest

from tests.journeys.company_broker import Company, company_broker
from tests.journeys.conftest import (
    CLEAN,
    CONTINUOUS,
    MICRO_BATCH,
    MODES,
    PATIENCE_S,
    SPARKONCE,
    Process,
    Stranger,
    processes_of_session,
)
from tests.locked_broker import OAUTH, PLAIN
from tests.tiers import long

PASSWORD, CLIENT_SECRET, KEY_PASSWORD = "canary-Passw0rd", "canary-S3cret", "canary-K3y"
LIFE_S = 15.0
#: What the platform puts beside the job.
MOUNTED = ("password", "secret", "key_password", "client.pem", "client.key", "ca.pem")
#: Whatever has something to log logs it, in the driver and in each worker.
TALKATIVE = f"import logging\n\nlogging.basicConfig(level=logging.DEBUG)\n\n\n{CLEAN}"
#: What the log says about Spark's pages and the metrics.
PAGES = re.compile(r"(?:'SparkUI' on port (?P<ui>\d+)|metrics of .*:(?P<metrics>\d+)/metrics)")
MOST_PAGES = 150


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with company_broker(tmp_path_factory.mktemp("company"), PASSWORD) as made:
        made.endpoint.lifetime_s = LIFE_S
        yield made


def job_of(company: Company, stranger: Stranger, mode: str, app: str = "", more: str = "") -> Path:
    """Write a job that reads with tokens and writes with a password; all of it is mounted."""
    texts = (
        *(PASSWORD, CLIENT_SECRET, KEY_PASSWORD, company.client.text),
        *(company.client.encrypted_key(KEY_PASSWORD), company.broker.text),
    )
    for name, text in zip(MOUNTED, texts, strict=True):
        (stranger.folder / name).write_text(text)
    (stranger.folder / "flights.py").write_text(TALKATIVE)
    source = f"""\
"kafka.security.protocol" = "SASL_SSL"
"kafka.ssl.truststore.location" = "ca.pem"
"kafka.ssl.keystore.certificate.chain" = "${{file:client.pem}}"
"kafka.ssl.keystore.key" = "${{file:client.key}}"
"kafka.ssl.key.password" = "${{file:key_password}}"
"kafka.sasl.mechanism" = "OAUTHBEARER"
"kafka.sasl.oauthbearer.token.endpoint.url" = "{company.endpoint.url}"
"kafka.sasl.jaas.config" = '''{OAUTH}.OAuthBearerLoginModule required
  clientId="stranger" clientSecret="${{file:secret}}";'''
{more}
[transform]
arrow = "flights:clean"
"""
    sink = f"""\
"kafka.security.protocol" = "SASL_PLAINTEXT"
"kafka.sasl.mechanism" = "PLAIN"
"kafka.sasl.jaas.config" = '''{PLAIN} username="stranger" password="${{file:password}}";'''
{more}
"""
    path = stranger.job(mode, source=source, sink=sink, app=app)
    before, table, after = path.read_text().partition("[[sink]]")
    doors = (before.replace(company.inside, company.tokens), after)
    path.write_text(table.join((doors[0], doors[1].replace(company.inside, company.password))))
    return path


@long
@pytest.mark.parametrize("mode", [MICRO_BATCH, CONTINUOUS], ids=["micro-batch", "continuous"])
def test_a_pipeline_outlives_its_tokens(company: Company, tmp_path: Path, mode: str):
    stranger = company.stranger(tmp_path)
    job = job_of(company, stranger, mode)
    with stranger.follows_output() as reader, contextlib.ExitStack() as writing:
        writing.enter_context(stranger.busy_topic())
        with stranger.runs(job) as pipeline:
            stranger.comes_out_for(LIFE_S * 2, reader, pipeline)
            pipeline.kill_all()
        with stranger.runs(job) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            writing.close()
            stranger.comes_to(stranger.input_ends(), reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
    code, said = stranger.verifies_job(job)
    assert (code, "exactly once" in said) == (0, True), said


# --- secrets --------------------------------------------------------------------------------------


@long
@pytest.mark.timeout(600)  # eight commands and a hundred pages
@MODES
def test_nobody_finds_a_secret(company: Company, tmp_path: Path, mode: str):
    stranger = company.stranger(tmp_path / "home")
    folder = stranger.folder
    for name in ("tmp", "events"):
        (folder / name).mkdir(parents=True)
    spark = f"""\
metrics_port = 0
log_level = "INFO"
[spark]
"spark.ui.enabled" = "true"
"spark.ui.port" = "0"
"spark.eventLog.enabled" = "true"
"spark.eventLog.dir" = "file://{folder}/events"
"""
    debug = '"kafka.debug" = "all"' if mode == CONTINUOUS else '"kafka.debug" = "conf,security,eos"'
    job = job_of(company, stranger, mode, app=spark, more=debug)
    # `spark-local` and other temporary files stay where this test can look for them.
    environment = {"TMPDIR": str(folder / "tmp")}
    seen: dict[str, str] = {}

    def types(*command: str) -> None:
        ended = subprocess.run(
            (SPARKONCE, *command),
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=PATIENCE_S,
        )
        seen[" ".join(command)] = ended.stdout + ended.stderr

    with stranger.busy_topic(), stranger.follows_output() as reader:
        types("run", "--check", str(job))
        types("doctor", "--job", str(job))
        with stranger.runs(job, **environment) as pipeline:
            stranger.more_comes_out(reader, pipeline, records=300)
            for door in PAGES.finditer(pipeline.text):
                port, path = (door["ui"], "") if door["ui"] else (door["metrics"], "metrics")
                seen |= pages(f"http://127.0.0.1:{port}/{path}")
            seen["ps"] = command_lines(pipeline)
            types("savepoint", "take", str(job), "--to", str(folder / "savepoints"))
            types("transactions", "list", "--job", str(job))
            seen |= files(folder, "while it runs: ")
            pipeline.kill_all()
        seen["the screen"] = pipeline.text
        types("transactions", "list", "--job", str(job))
        types("verify", "--job", str(job))
        (folder / "secret").write_text(f"{CLIENT_SECRET}-wrong")
        company.endpoint.status, company.endpoint.answer = 401, b'{"error": "invalid_client"}'
        try:
            with stranger.runs(job, **environment) as pipeline:
                assert pipeline.ends() in (1, 2), pipeline.text
        finally:
            company.endpoint.status, company.endpoint.answer = 200, None
        seen["the screen of a login that fails"] = pipeline.text
    seen |= files(folder, "afterwards: ")

    visited = {name: text for name, text in seen.items() if name.startswith("http")}
    assert any("/environment/" in name for name in visited), sorted(visited)
    assert any("sparkonce_" in text for text in visited.values()), sorted(visited)
    assert "SASL" in seen["the screen"]
    found = [
        (place, what)
        for place, text in seen.items()
        for what, secret in secrets_of(company, folder).items()
        if secret in text
    ]
    assert not found, found
    assert "AuthenticationError" in pipeline.text, pipeline.text


def secrets_of(company: Company, folder: Path) -> dict[str, str]:
    """Return what nobody may see, and how it looks on the way."""
    basic = base64.b64encode(f"stranger:{CLIENT_SECRET}".encode())
    found = {
        "password": PASSWORD,
        "client secret": CLIENT_SECRET,
        "client secret in a request": basic.decode(),
        "password of the key": KEY_PASSWORD,
        "key": (folder / "client.key").read_text().splitlines()[1],
    }
    for number, token in enumerate(company.endpoint.given):
        found[f"token {number}"] = token.rpartition(".")[2]
    return found


def command_lines(pipeline: Process) -> str:
    """Return what `ps` shows of all processes of a pipeline, to everybody on the machine."""
    found = []
    for pid in processes_of_session(pipeline.process.pid):
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(psutil.Process(pid).cmdline()))
    assert len(found) > 2
    return "\n".join(found)


def pages(start: str) -> dict[str, str]:
    """Return all pages that can be reached from one."""
    wanted, found = [start], {}
    while wanted and len(found) < MOST_PAGES:
        address = wanted.pop(0)
        if address in found:
            continue
        found[address] = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read().decode(errors="replace")
            found[address] = text
            for link in re.findall(r"""href=["']([^"'#\s]+)["'#]""", text):
                place = urljoin(address, link.replace("&amp;", "&"))
                if urlsplit(place).netloc == urlsplit(start).netloc and "/kill" not in place:
                    wanted.append(place)
    return found


def files(folder: Path, prefix: str) -> dict[str, str]:
    """Return all files of the pipeline, but those that hold the secrets for it."""
    found = {}
    for path in folder.rglob("*"):
        if path.name in MOUNTED or not path.is_file():
            continue
        with contextlib.suppress(OSError):  # a temporary one
            found[f"{prefix}{path.relative_to(folder)}"] = path.read_bytes().decode("latin-1")
    return found
