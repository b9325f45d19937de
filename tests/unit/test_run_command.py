"""`sparkonce run` refuses a wrong job file before it starts Spark, with and without `--check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark import SparkContext
from pyspark.core import context
from pyspark.sql import SparkSession

from connectors.cli import run
from tests.unit.test_job import text

CONTINUOUS = 'mode = "continuous"'
TO_FILES = (
    text(app=CONTINUOUS).replace('"state"', '"s3://b/x"').partition("[[sink]]")[0]
    + '[[sink]]\nkind = "files"\npath = "/data/said"\n'
)


@pytest.fixture(params=[("--check",), ()], ids=["check", "run"])
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The options of the command; Spark must not start."""
    monkeypatch.setattr(run, "_run", lambda *_, **__: pytest.fail("Spark starts"))
    return request.param


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (text().replace('"flights"', '"my.app"'), "id = my.app"),
        (text().replace('"state"', '"hdfs://nn"'), "checkpoint=hdfs://nn"),
        (text().replace('"state"', '"az://b/x"'), "look at:"),
        (text(app=CONTINUOUS).replace('"state"', '"hdfs://nn"'), "checkpoint=hdfs://nn"),
        (text(app=CONTINUOUS).replace('"state"', '"s3:/b/x"'), "s3:/b/x"),
        (text(app=CONTINUOUS).replace('"state"', '"memory:///"'), "cannot lie in memory"),
        (text().replace('"state"', '"/dev/null"'), "checkpoint=/dev/null"),
        (text(app=CONTINUOUS).replace('"state"', '"/dev/null/x"'), "checkpoint=/dev/null/x"),
        (text(more='[decision_log]\naddress = "/dev/null"'), "address=/dev/null"),
        (TO_FILES, "The sink 'said' keeps decided records in a folder"),
        (TO_FILES.replace(CONTINUOUS, ""), "The sink 'said' keeps decided records in a folder"),
        (text(more='[decision_log]\naddress = "hdfS3://name/log"'), "gs, hdfs, memory, s3, s3a"),
        (text(app="metrics_port = 65536"), "metrics_port = 65536"),
        (text(sink='"kafka.buffer.memory" = "64MB"'), "kafka.buffer.memory=64MB"),
        (text(more='[decision_log]\naddress = "dbfs:/log"'), "dbfs:/log"),
        (text(more='[decision_log]\naddress = "s3:/bucket/log"'), "s3:/bucket/log"),
        (text(more='[decision_log]\naddress = "file://elsewhere/log"'), "file://elsewhere/log"),
    ],
)
def test_what_the_driver_would_refuse(
    tmp_path: Path, content: str, says: str, words: tuple[str, ...]
):
    job = tmp_path / "job.toml"
    job.write_text(content)
    done = CliRunner().invoke(run.command, [str(job), *words])
    assert done.exit_code == 2, done.output
    assert "ConfigurationError" in done.output
    assert says in done.output


#: Each stands at the top of a module, and wants Spark's session.
WANTS = {
    "a type as text": "upper = F.udf(lambda value: value.decode().upper(), 'string')",
    "a session": "spark = SparkSession.builder.appName('mine').getOrCreate()",
    "a context": "context = SparkContext.getOrCreate()",
}
NEEDS_SESSION = """\
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F

{}

def clean(source):
    return source
"""


@pytest.mark.parametrize("wants", WANTS)
def test_a_module_that_needs_a_session_while_it_is_imported_is_looked_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wants: str
):
    """An Arrow function is not: tasks import its module, and have no session."""
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(context, "launch_gateway", lambda *_: pytest.fail("a JVM was started"))
    (tmp_path / "needs_session.py").write_text(NEEDS_SESSION.format(WANTS[wants]))
    for kind, code in (("function", 0), ("arrow", 2)):
        job = tmp_path / f"{kind}.toml"
        job.write_text(text(more=f'[transform]\n{kind} = "needs_session:clean"\n'))
        done = CliRunner().invoke(run.command, [str(job), "--check"])
        assert done.exit_code == code, done.output
        assert ("SESSION_OR_CONTEXT_NOT_EXISTS" in done.output) == (code == 2)
