"""A stranger's function has an error. The terminal says once per run which one, and in which line
of their file; nothing comes out, and Java's stacks stay away.
"""

from __future__ import annotations

import pytest

from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, Stranger
from tests.journeys.test_stop import STACK
from tests.tiers import long

FUNCTION = """\
from pyspark.sql import functions as F


@F.udf("string")
def upper(value):
    raise ValueError("no such word")


def clean(source):
    return source.select("key", upper("value").alias("value"))
"""
ARROW = """\
def arrow(batch):
    raise ValueError("no such word")
"""
LINES = {"clean": (6, "upper"), "arrow": (2, "arrow")}


@long  # `unit/test_user_traceback.py` has the texts in `make test`
@pytest.mark.parametrize(
    ("mode", "kind", "name"),
    [
        (MICRO_BATCH, "function", "clean"),
        (MICRO_BATCH, "arrow", "arrow"),
        (CONTINUOUS, "arrow", "arrow"),
    ],
)
def test_the_terminal_names_error_and_line(stranger: Stranger, mode: str, kind: str, name: str):
    (stranger.folder / "words.py").write_text(ARROW if name == "arrow" else FUNCTION)
    app = 'restart_strategy = "fixed-delay(attempts=1, delay=1s)"'
    job = stranger.job(mode, app=app, source='startingOffsets = "earliest"')
    job.write_text(f'{job.read_text()}\n[transform]\n{kind} = "words:{name}"\n')
    with stranger.busy_topic(), stranger.runs(job) as pipeline:
        assert pipeline.ends() == 1, pipeline.text
    line, where = LINES[name]
    said = f"ValueError: no such word ({stranger.folder}/words.py, line {line}, in {where})"
    assert f"cause:  {said}" in pipeline.text
    if mode == MICRO_BATCH:  # in continuous mode the error can come before the start has ended
        assert "restart 1 in 1.0 s" in pipeline.text
        assert "given up after 1 restart(s)" in pipeline.text
    assert not STACK.search(pipeline.text.replace("PythonException", "")), pipeline.text
    assert len(pipeline.lines) <= 30, pipeline.text
    assert stranger.reads_output() == []
