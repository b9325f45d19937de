"""What `sparkonce verify --job` compares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.operations.job_topics import JobTopics
from connectors.operations.pipeline_start import pipeline_start
from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import parse_job
from transactions.decision_log import DecisionLog
from transactions.errors import ConfigurationError
from transactions.log_location import LogLocation

TWO_SINKS = '[[sink]]\n"kafka.bootstrap.servers" = "a:1,b:1"\ntopic = "late"\n'
ROWS_NAME_IT = '[[sink]]\n"kafka.bootstrap.servers" = "a:1,b:1"\n'
OTHER_BROKERS = '[[sink]]\n"kafka.bootstrap.servers" = "c:1"\ntopic = "clean"\n'
CLEAN = '[[sink]]\n"kafka.bootstrap.servers" = "b:1, a:1"\ntopic = "clean"\n'
FILES = '[[sink]]\nkind = "files"\npath = "out"\n'


def job(*sinks: str) -> JobDefinition:
    text = """
        [app]
        id = "flights"
        checkpoint = "state"
        [source]
        "kafka.bootstrap.servers" = "a:1,b:1"
        "kafka.sasl.password" = "secret"
        subscribe = "flights, trains"
    """
    return parse_job(text + "\n".join(sinks), Path("/jobs/flights.toml"), {})


def test_topics_and_cluster_are_those_of_the_job():
    found = JobTopics.of(job(CLEAN))
    assert (found.inputs, found.outputs) == (("flights", "trains"), ("clean",))
    assert found.kafka == {"bootstrap.servers": "a:1,b:1", "sasl.password": "secret"}
    assert "secret" not in repr(found)


def test_of_a_topic_only_the_assigned_partitions_are_compared():
    text = """
        [app]
        id = "flights"
        checkpoint = "state"
        [source]
        "kafka.bootstrap.servers" = "a:1,b:1"
        assign = '{"flights": [0, 2]}'
    """
    found = JobTopics.of(parse_job(text + CLEAN, Path("/jobs/flights.toml"), {}))
    assert (found.inputs, found.partitions) == (("flights",), {"flights-0", "flights-2"})
    assert JobTopics.of(job(CLEAN)).partitions == set()


def test_topics_of_a_pattern_must_be_given():
    text = """
        [app]
        id = "flights"
        checkpoint = "state"
        [source]
        "kafka.bootstrap.servers" = "a:1,b:1"
        subscribePattern = "fl.*"
    """
    pattern = parse_job(text + CLEAN, Path("/jobs/flights.toml"), {})
    with pytest.raises(ConfigurationError, match="does not name the topics") as refused:
        JobTopics.of(pattern)
    assert "--input is not given" in refused.value.option
    assert JobTopics.of(pattern, inputs=["flights"]).inputs == ("flights",)


@pytest.mark.parametrize("option", ["isolationLevel", '"kafka.isolation.level"'])
def test_a_job_that_reads_undecided_records_is_refused(option: str):
    """It writes what its producer aborted, as it should; the proof would call that foreign."""
    text = f"""
        [app]
        id = "flights"
        checkpoint = "state"
        [source]
        "kafka.bootstrap.servers" = "a:1,b:1"
        subscribe = "flights"
        {option} = "read_uncommitted"
    """
    undecided = parse_job(text + CLEAN, Path("/jobs/flights.toml"), {})
    with pytest.raises(ConfigurationError, match="undecided records") as refused:
        JobTopics.of(undecided, inputs=["flights"], outputs=["clean"])
    error = refused.value
    assert error.where == "/jobs/flights.toml"
    assert "foreign" in error.cause
    assert error.option == "isolationLevel=read_uncommitted in [source]"


def test_topics_that_are_given_win():
    found = JobTopics.of(job(CLEAN, TWO_SINKS), inputs=["trains"], outputs=["late"])
    assert (found.inputs, found.outputs) == (("trains",), ("late",))
    assert JobTopics.of(job(ROWS_NAME_IT), outputs=["x", "y"]).outputs == ("x", "y")


@pytest.mark.parametrize(
    ("sinks", "says"),
    [
        ((CLEAN, TWO_SINKS), "does not say which topics"),
        ((ROWS_NAME_IT,), "does not say which topics"),
        ((FILES,), "does not say which topics"),
    ],
)
def test_what_cannot_be_compared_is_refused(sinks: tuple[str, ...], says: str):
    with pytest.raises(ConfigurationError, match=says) as refused:
        JobTopics.of(job(*sinks))
    assert "/jobs/flights.toml" in str(refused.value)


def test_other_brokers_of_one_cluster_are_no_other_cluster():
    asked: list[str] = []

    def id_of(kafka: Mapping[str, str]) -> str:
        asked.append(kafka["bootstrap.servers"])
        return "same"

    assert JobTopics.of(job(OTHER_BROKERS), id_of=id_of).outputs == ("clean",)
    assert asked == ["a:1,b:1", "c:1"]
    JobTopics.of(job(CLEAN), id_of=id_of)  # the same brokers in another order: nobody is asked
    assert len(asked) == 2


@pytest.mark.parametrize("ids", [{"c:1": "other"}, {"c:1": ""}, {"a:1,b:1": "", "c:1": ""}])
def test_another_cluster_or_one_that_does_not_tell_its_id_is_refused(ids: dict[str, str]):
    with pytest.raises(ConfigurationError, match="writes to another cluster") as refused:
        JobTopics.of(
            job(OTHER_BROKERS), id_of=lambda kafka: ids.get(kafka["bootstrap.servers"], "one")
        )
    assert f"{ids['c:1'] or 'not known'} and" in refused.value.cause
    assert "/jobs/flights.toml" in str(refused.value)


def test_a_log_that_does_not_say_where_reading_began_is_no_start(tmp_path: Path):
    place = LogLocation(tmp_path / "decisions").backend()
    DecisionLog.open(place, application_id="flights", identity={})
    with pytest.raises(ConfigurationError, match="does not say where its pipeline began"):
        pipeline_start(str(tmp_path), ["flights"])
