"""The blocks of the pages that need no broker and no Spark: options, job files, readers of files.

An option has two forms on its page, Python and TOML: both must make the same object. A store is the
S3 server of these tests. Its address stands beside the region, and its credentials in the
environment, where the pages look for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import KafkaSink
from connectors.files import FileSink, committed_files
from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import parse_job
from connectors.options.table import MICRO_BATCH
from connectors.postgres import PostgresSink
from tests.pages import ROOT, block, replaced, run_python
from tests.unit.s3_server import KEY_ID, S3Server
from tests.unit.test_file_sink import decide, opened, prepared
from transactions.events import Event, publish
from transactions.object_store_backend import ObjectStoreBackend

JOB = block("README.md", "[app]")


def job(block_of_a_page: str) -> JobDefinition:
    """Return the README's job with the tables of a block in the place of its own."""
    theirs = set(re.findall(r"^\[.*", block_of_a_page, re.MULTILINE))
    ours = [one for one in re.split(r"(?m)^(?=\[)", JOB) if one.partition("\n")[0] not in theirs]
    text = "".join([*ours, block_of_a_page])
    return parse_job(text, Path("/jobs/job.toml"), {"S3_SECRET": "secret"})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], S3Server]]:
    """An S3 server with a bucket of this name, and its credentials in the environment."""
    with S3Server() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

        def named(bucket: str) -> S3Server:
            server.bucket = bucket
            return server

        yield named


def at(server: S3Server, code: str) -> str:
    """Return a block that speaks to this server."""
    region = '"region": "eu-west-1"'
    return replaced(code, {region: f'{region}, "endpoint": "{server.endpoint}"'})


# --- the decision log -----------------------------------------------------------------------------


def test_where_a_decision_log_may_lie(tmp_path, store):
    server = store("state")
    page = at(server, block("docs/decision_log.md", "backend_for("))
    page = replaced(page, {"/srv": str(tmp_path)})
    names: dict[str, Any] = {}
    azure = run_python(page, names)
    assert isinstance(azure, ObjectStoreBackend)  # nothing is sent to it

    folder, bucket, _ = re.findall(r"^backend_for\(.*?\)", page, re.MULTILINE)
    for line in (folder, bucket):
        backend = run_python(line, names)
        assert backend.put_if_absent("one", b"first")
        assert not backend.put_if_absent("one", b"second")
    assert server.objects["clicks/decisions/one"] == b"first"
    assert (tmp_path / "clicks/decisions/one").read_bytes() == b"first"


def test_a_job_file_names_the_log_that_python_names():
    page = block("docs/decision_log.md", "log = LogLocation")
    names: dict[str, Any] = {}
    run_python(page.partition("driver = ")[0], names)  # the driver: test_page_pipelines.py
    found = job(block("docs/decision_log.md", "[decision_log]")).decision_log
    assert found is not None
    assert found.address == names["log"].address
    assert found.options == {**names["log"].options, "secret_access_key": "secret"}


def test_a_job_file_names_the_checkpoint_that_python_names():
    page = block("docs/checkpoint_address.md", "CheckpointLocation(")
    names: dict[str, Any] = {"secret": "secret"}
    run_python(page.partition("driver = ")[0], names)  # the driver: journeys/test_lost_machine.py
    file = block("docs/checkpoint_address.md", "store.secret_access_key")  # a whole one
    found = parse_job(file, Path("/jobs/job.toml"), {"S3_SECRET": "secret"})
    assert found.location == names["checkpoint"]


# --- sinks ----------------------------------------------------------------------------------------


class Driver:
    """Stands where a page says `driver.write(frame, ...)`; only the sink is looked at here."""

    def write(self, _: object, sink: object) -> object:
        return sink


def written_by(code: str) -> object:
    """Return the sink that a block of Python gives to `driver.write`."""
    return run_python(code, {"driver": Driver(), "frame": None})


def only_sink(code: str) -> object:
    (one,) = job(code).sinks
    return one.sink


def test_files_in_both_forms():
    python = written_by(block("docs/file_sink.md", "driver.write(frame, FileSink("))
    assert python == only_sink(
        block("docs/file_sink.md", '[[sink]]\nkind = "files"\npath = "/data/clicks"')
    )


def test_postgres_in_both_forms():
    python = written_by(block("docs/postgres_sink.md", "driver.write(frame, orders)"))
    toml = only_sink(block("docs/postgres_sink.md", 'kind = "postgres"'))
    assert isinstance(python, PostgresSink)
    assert isinstance(toml, PostgresSink)
    assert (python.conninfo, python.table) == (toml.conninfo, toml.table)


def test_a_guarantee_in_both_forms():
    sink = run_python(block("docs/guarantees.md", "KafkaSink("), {"KafkaSink": KafkaSink})
    (toml,) = job(block("docs/guarantees.md", "[app]")).targets
    assert isinstance(toml, KafkaSink)
    assert sink.guarantee == toml.guarantee == "at-least-once"


def test_a_new_id_begins_where_the_group_of_the_old_one_has_ended():
    old = job(block("docs/continuous.md", 'target_latency = "20 milliseconds"'))
    new = job(block("docs/continuous.md", "startingGroupId ="))
    assert (new.mode, new.source.topics) == (MICRO_BATCH, old.source.topics)
    assert (new.app_id, new.checkpoint) != (old.app_id, old.checkpoint)
    assert new.source.starting_group == old.app_id
    assert new.source.start_without_group is None, "a partition without an offset is an error"


@pytest.mark.parametrize("page", ["docs/continuous.md", "docs/guarantees.md"])
def test_nobody_copies_offsets_by_hand(page: str):
    text = (ROOT / page).read_text("utf-8")
    assert "kafka-consumer-groups" not in text
    assert "startingGroupId" in text


def test_files_in_a_store_from_the_first_byte_to_a_reader(store):
    server = store("lake")
    code = block("docs/file_sink.md", 'FileSink(path="s3://lake')
    options = run_python(code, {"FileSink": FileSink})
    toml = only_sink(block("docs/file_sink.md", 'path = "s3://lake/clicks"'))
    assert isinstance(toml, FileSink)
    assert toml.path == options.path
    assert toml.store == {**options.store, "secret_access_key": "secret"}

    sink = opened(run_python(at(server, code), {"FileSink": FileSink}))
    decide(sink, prepared(sink, 1, 2))
    given_up = prepared(sink, 3)
    reader = at(server, block("docs/file_sink.md", "fs.S3FileSystem("))
    there = {'(region="eu-west-1")': f'(region="eu-west-1", endpoint_override="{server.endpoint}")'}
    table = run_python(replaced(reader, there), {"committed_files": committed_files})
    assert table["number"].to_pylist() == [1, 2]

    server.objects.pop(f"clicks/_transactions/{given_up.transactional_id}")  # its sweep has failed
    left = run_python(at(server, block("docs/file_sink.md", "abandoned_files(")), {})
    assert left == [f"s3://lake/clicks/_data/{given_up.marker_partition.rpartition(':')[0]}"]


# --- events and metrics ---------------------------------------------------------------------------


def test_an_event_is_read_from_a_line_and_heard_live():
    heard: list[Event] = []
    names: dict[str, Any] = {"heard": heard}
    code = block("docs/metrics.md", "parse_event(")
    run_python(replaced(code, {"lambda event: ...": "heard.append"}), names)
    publish("swept", app="flights")
    assert [one.kind for one in heard] == ["swept"]
    names["stop"]()
    assert 'event.kind, event.fields["count"]  # "swept", 1\n' in code
    assert (names["event"].kind, names["event"].fields["count"]) == ("swept", 1)


def test_the_port_of_the_metrics_in_a_job_file():
    lines = block("docs/metrics.md", "metrics_port = 9108")
    text = replaced(JOB, {"[app]\n": lines})
    assert parse_job(text, Path("/jobs/job.toml"), {}).option("metrics_port") == 9108
