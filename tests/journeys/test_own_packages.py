"""Somebody's project has modules of its own that are called `connectors` and `transactions`, as
many projects have. Python finds them first in the folder in which the stranger works.
"""

from __future__ import annotations

from tests.integration.query_script import plain_spark
from tests.journeys.conftest import Stranger
from tests.journeys.test_one_word import one_word
from tests.tiers import long


@long  # `unit/test_import_path.py` has it in `make test`
def test_a_job_file_beside_them_runs(stranger: Stranger):
    job = stranger.job(app='trigger = "available-now"', source='startingOffsets = "earliest"')
    assert write_modules(stranger)
    with stranger.busy_topic():
        there = stranger.input_ends()
        with stranger.runs(job) as pipeline:
            assert pipeline.ends() == 0, pipeline.text
    stranger.assert_each_record_came_once(
        {partition: range(end) for partition, end in there.items()}
    )


@long  # likewise
def test_one_word_beside_them_says_what_is_wrong(stranger: Stranger):
    """PySpark alone would say that there is no source of this name."""
    script = one_word(stranger)
    first = write_modules(stranger)
    with stranger.busy_topic(), stranger.runs(script, **plain_spark()) as query:
        assert query.ends() == 1
    assert f"where:  {first}" in query.text
    assert "look at: the name of that file" in query.text
    assert stranger.reads_output() == []


def write_modules(stranger: Stranger) -> str:
    """Write them; return the one that Python meets first."""
    package = stranger.folder / "connectors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (stranger.folder / "transactions.py").write_text("")
    return str(package / "__init__.py")
