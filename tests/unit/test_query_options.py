"""Options of `kafka-exactly-once` in `writeStream` and `df.write`, as a user writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.options.query_table import QUERY
from connectors.spark.query_options import QueryOptions
from transactions.errors import ConfigurationError

SINK = {"kafka.bootstrap.servers": "localhost:9092", "topic": "lines"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text('{"id":"4f1c0e1a-0000-4000-8000-000000000000"}')
    return tmp_path


def test_a_query_has_spark_s_id_as_its_application(place):
    found = QueryOptions.of_query({**SINK, "checkpointlocation": f"file:{place}"})
    assert found.app_id == "query-4f1c0e1a-0000-4000-8000-000000000000"
    assert found.checkpoint == place
    assert (found.checkpoint_timeout_s, found.restart_budget_s) == (600.0, 60.0)
    assert (found.sink.topic, found.is_job, found.accept_duplicates) == ("lines", False, False)


def test_each_option_of_a_query_has_its_effect(place):
    given = {"CHECKPOINTLOCATION": str(place), "App.Id": "clean", "checkpointTimeout": "2min"}
    more = {"restartBudget": "30s", "acceptDuplicates": "true", "transactionTimeoutMs": "5min"}
    found = QueryOptions.of_query({**SINK, **given, **more})
    assert (found.app_id, found.checkpoint_timeout_s) == ("clean", 120.0)
    assert (found.restart_budget_s, found.accept_duplicates) == (30.0, True)
    assert found.sink.transaction_timeout_ms == 300_000


def test_the_name_of_a_query_changes_nothing(place):
    """Spark gives it to the sink as an option."""
    given = {**SINK, "checkpointLocation": str(place)}
    plain = QueryOptions.of_query(given)
    for name in ("queryName", "queryname"):
        assert QueryOptions.of_query({**given, name: "All my lines"}) == plain


def test_a_job_has_its_name_as_its_application(tmp_path):
    found = QueryOptions.of_job({**SINK, "checkpointLocation": str(tmp_path), "job.id": "load-7"})
    assert (found.app_id, found.is_job) == ("load-7", True)


def test_each_row_of_the_table_is_read():
    read = {*QueryOptions.__dataclass_fields__} - {"sink", "is_job"} | {"job_id"}
    assert {row.python_name for row in QUERY.options} == read


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "An exactly-once write needs a checkpoint of its own."),
        ({"checkpointLocation": "s3://bucket/q"}, "must be a folder of a local file system"),
        ({"checkpointLocation": "HERE", "app.id": "a.b"}, "only letters, digits"),
        ({"checkpointLocation": "HERE", "job.id": "a"}, "The option job.id does not belong here."),
        ({"checkpointLocation": "HERE", "restartBudget": "0"}, "The value of restartBudget"),
    ],
)
def test_a_wrong_option_of_a_query_is_refused(place, options, says):
    given = {name: text.replace("HERE", str(place)) for name, text in options.items()}
    with pytest.raises(ConfigurationError) as raised:
        QueryOptions.of_query({**SINK, **given})
    assert says in str(raised.value)
    assert raised.value.option


@pytest.mark.parametrize("name", QUERY.names)
def test_a_misspelt_option_is_refused_with_the_right_one(place, name):
    given = {"checkpointLocation": str(place), f"{name}s": "a"}
    for read in (QueryOptions.of_query, QueryOptions.of_job):
        with pytest.raises(ConfigurationError) as raised:
            read({**SINK, **given})
        assert f"has no option '{name}s'" in str(raised.value)
        assert raised.value.cause == f"did you mean '{name}'?"


def test_a_folder_that_is_not_the_query_s_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="does not say which query it is of"):
        QueryOptions.of_query({**SINK, "checkpointLocation": str(tmp_path)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "A batch write needs a name."),
        ({"job.id": "a", "app.id": "b"}, "The option app.id does not belong here."),
        ({"job.id": "a b"}, "only letters, digits"),
    ],
)
def test_a_wrong_option_of_a_job_is_refused(tmp_path, options, says):
    with pytest.raises(ConfigurationError, match=says):
        QueryOptions.of_job({**SINK, "checkpointLocation": str(tmp_path), **options})
