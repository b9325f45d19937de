"""Sinks come and go on one checkpoint: Kafka, Parquet files and PostgreSQL, each begins where the
others stand and gets nothing more behind its end, whenever the driver is killed meanwhile.

The rules: `unit/test_changed_parts.py`; a busy topic in both modes: `journeys/test_changed_job.py`.
"""

# ruff: noqa: F811 - fixtures are imported, and named again by who takes them

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.postgres_server import (  # noqa: F401 - fixtures of `story`
    postgres,
    postgres_server,
)
from tests.integration.test_three_sinks import RECORDS, Story, judge, story  # noqa: F401 - a fixture
from tests.tiers import long

ALL = "kafka files postgres"


def words(rounds: int) -> Counter[str]:
    """Return what a sink holds that was there for this many rounds of the input."""
    return Counter({Story.word(number).decode(): rounds for number in range(RECORDS)})


def ends(story: Story, crashes: list[str]) -> None:
    """Run the job until it has read everything, killed at each of these points on the way."""
    for point in crashes:
        code, text = story.run(point)
        assert code == -9, text
    code, text = story.run()
    assert code == 0, text


@pytest.fixture
def job(story: Story) -> Callable[[str], None]:
    """Return what writes the job with some of the sinks, by their kinds."""
    path = story.folder / "job.toml"
    app, *sinks = path.read_text().split("[[sink]]")
    by_kind = dict(zip(("kafka", "files", "postgres"), sinks, strict=True))

    def write(kinds: str) -> None:
        path.write_text("[[sink]]".join([app, *(by_kind[kind] for kind in kinds.split())]))

    return write


@long
def test_files_and_a_database_come_to_kafka(story: Story, job: Callable[[str], None]):
    job("kafka")
    ends(story, [])
    assert story.in_kafka() == words(1)
    story.produce()
    job(ALL)
    ends(story, ["plan_marked", "plan_fitted", "decision_durable"])
    assert story.in_kafka() == words(2)
    assert story.in_files() == story.in_database() == words(1)


@long
def test_kafka_and_a_database_go(story: Story, job: Callable[[str], None]):
    ends(story, [])
    story.produce()
    job("files")
    ends(story, ["recovery_fenced", "plan_fitted"])
    assert story.in_files() == words(2)
    assert story.in_kafka() == story.in_database() == words(1)


@long
def test_what_a_killed_run_has_prepared_keeps_its_sink(story: Story, job: Callable[[str], None]):
    code, text = story.run("decision_durable")
    assert code == -9, text
    assert story.database.prepared() != []
    job("files")
    code, text = story.run()
    assert code != 0, "the database would keep its locks"
    assert "the last run did not stop in order" in text
    job(ALL)
    ends(story, [])
    judge(story)
