"""The pipelines of the pages, in Python: one script as a notebook would run it, and one Spark.

Each pipeline runs until SIGTERM. The script has them one after the other; the test waits until a
reader has seen what one of them owes, and ends it. Where a page shows a sink only, another page's
driver stands before it.
"""

# ruff: noqa: F811 - fixtures are imported, and named again by who takes them

from __future__ import annotations

import itertools
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from connectors.cluster.broker_settings import choose_addresses
from connectors.testing.auditor.reader import Follower, Record, read_committed
from tests.integration.postgres_server import (  # noqa: F401 - two are fixtures
    PostgresDatabase,
    postgres,
    postgres_server,
)
from tests.journeys.conftest import PATIENCE_S, Process
from tests.journeys.terminal import Terminal, terminal  # noqa: F401 - a fixture
from tests.pages import block, replaced, run_python
from tests.tiers import long
from tests.unit.s3_server import KEY_ID, S3Server
from transactions.clock import Deadline

#: Keys and values, and how often each is there.
Pairs = Counter[tuple[bytes | None, bytes | None]]


def with_values(form: str) -> Pairs:
    return Counter((b"k%d" % number, f"{form}{number}".encode()) for number in range(100))


PAIRS, UPPER, CLEANED = map(with_values, ("v", "V", "clean v"))
#: What a page calls `my_module:clean`; its mark tells these records from the README's.
CLEAN = """\
import pyarrow as pa
import pyarrow.compute as pc


def clean(records):
    values = pc.binary_join_element_wise(pa.scalar(b"clean "), records["value"], b"")
    return records.select(["key", "value"]).set_column(1, "value", values)
"""
#: Between the pages: what a reader of them has by then.
SINK = 'sink = KafkaSink(bootstrap_servers="localhost:9092", topic="live")'
FRAME = """\
frame = words = driver.read(source).selectExpr(
    "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value"
)
"""


def pairs(records: Iterable[Record]) -> Pairs:
    return Counter((one.key, one.value) for one in records)


def begins_at_the_end(terminal: Terminal, reader: Follower, pipeline: Process) -> None:
    """Write single records until the first comes out: by default reading begins at the end."""
    deadline = Deadline(PATIENCE_S)
    numbers = itertools.count(1_000_000)
    while not reader.records:
        reader.check()
        assert pipeline.process.poll() is None, pipeline.text
        assert not deadline.expired(), pipeline.text
        number = next(numbers)
        terminal.produces("said", range(number, number + 1))
        deadline.pause(0.3)


def assert_came_once_since_the_start(reader: Follower) -> None:
    """Each record is there once, and of the single ones before them none twice."""
    seen = pairs(reader.records)
    assert max(seen.values()) == 1
    singles = {pair for pair in seen if int((pair[0] or b"")[1:]) >= 1_000_000}
    assert set(seen) - singles == set(UPPER)


def ends(pipeline: Process, reader: Follower, expected: Pairs) -> None:
    """Wait until a reader has seen all of it, then end this pipeline of the script."""
    shows(pipeline, reader, expected)
    pipeline.process.terminate()


def shows(pipeline: Process, reader: Follower, expected: Pairs) -> None:
    reader.until(
        lambda seen: expected <= pairs(seen) or pipeline.process.poll() is not None,
        timeout=PATIENCE_S,
    )
    assert pipeline.process.poll() is None, pipeline.text


@long
def test_the_pipelines_of_the_pages(
    terminal: Terminal, postgres: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
):
    data, port = f"{terminal.folder}/data", str(choose_addresses(1, None)[0].port)
    with S3Server() as store:
        store.bucket = "state"
        region = '"region": "eu-west-1"'
        log = {region: f'{region}, "endpoint": "{store.endpoint}"', "/data/": f"{data}/log-of-"}
        of_words = {"/data/": f"{data}/", "postgresql://localhost/words": postgres.conninfo}
        of_orders = {"postgresql://writer@db:5432/shop": postgres.conninfo}
        cluster = {"spark://host:7077": "local[2]", "/shared/": f"{data}/shared-"}
        in_data, metrics = {"/data/": f"{data}/"}, {"/data/": f"{data}/", "9108": port}
        script = [
            replaced(block("docs/cluster.md", "build_session("), cluster),
            replaced(block("README.md", "driver.run()"), in_data),
            replaced(block("docs/getting_started.md", "arrow_pipeline("), in_data),
            SINK,
            replaced(block("docs/metrics.md", "metrics_port=9108"), metrics),
            "driver.run()",
            replaced(block("docs/decision_log.md", "decision_log=log"), log),
            FRAME,
            replaced(block("docs/sinks.md", "driver.write("), of_words),
            replaced(block("docs/file_sink.md", "driver.write("), in_data),
            replaced(block("docs/postgres_sink.md", "driver.write("), of_orders),
            "driver.run()",
            replaced(block("docs/continuous.md", "arrow_pipeline("), in_data),
        ]
        terminal.writes("script.py", "\n".join(script))
        terminal.writes("my_module.py", CLEAN)
        postgres.execute(block("docs/postgres_sink.md", "CREATE TABLE"))
        for table in ("words", "public.orders"):
            postgres.execute(f"CREATE TABLE {table} (key text, value text)")

        topics = ("flights", "flights-clean", "live", "words", "said", "shouted")
        terminal.types("sparkonce kafka up" + "".join(f" --topic {one}:2" for one in topics))
        terminal.produces("flights", range(100))
        secret = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": "secret"}
        with (
            Follower(terminal.bootstrap, "flights-clean") as clean,
            Follower(terminal.bootstrap, "live") as live,
            Follower(terminal.bootstrap, "words") as words,
            Follower(terminal.bootstrap, "shouted") as shouted,
            terminal.starts("python script.py", **secret) as pipelines,
        ):
            ends(pipelines, clean, UPPER)
            ends(pipelines, clean, UPPER + CLEANED)
            shows(pipelines, live, PAIRS)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert b"sparkonce_" in answer.read()
            pipelines.process.terminate()
            ends(pipelines, words, PAIRS)
            begins_at_the_end(terminal, shouted, pipelines)
            terminal.produces("said", range(100))
            ends(pipelines, shouted, UPPER)
            assert pipelines.ends() == 0, pipelines.text
            assert_came_once_since_the_start(shouted)
        assert any("clicks/decisions/" in key for key in store.objects)

    committed = {one: pairs(read_committed(terminal.bootstrap, one)) for one in topics}
    assert committed["flights-clean"] == UPPER + CLEANED
    assert committed["live"] == committed["words"] == PAIRS
    assert_files_and_tables_have_it(Path(data), postgres)


def assert_files_and_tables_have_it(data: Path, postgres: PostgresDatabase) -> None:
    """Read the files as their page does, and the tables by SQL."""
    expected = sorted((key.decode(), value.decode()) for key, value in PAIRS if key and value)
    names: dict[str, Any] = {}
    all_files = block("docs/file_sink.md", "import pyarrow.dataset\n")
    whole_checkpoints = block("docs/file_sink.md", "import committed_files\n")
    for folder in ("clicks", "words"):
        for reader in (all_files, whole_checkpoints):
            code = replaced(reader, {"/data/clicks": f"{data}/{folder}"})
            rows = run_python(code, names).to_pylist()
            assert sorted((row["key"], row["value"]) for row in rows) == expected
    for table in ("words", "orders"):
        assert sorted(postgres.execute(f"SELECT key, value FROM {table}")) == expected

    orphans = block("docs/postgres_sink.md", "pg_prepared_xacts")
    assert postgres.execute(orphans) == []
    postgres.execute("BEGIN; INSERT INTO words VALUES (1, 2); PREPARE TRANSACTION 'clicks.1.2.3.4'")
    assert [gid for gid, *_ in postgres.execute(orphans)] == ["clicks.1.2.3.4"]


@long
def test_the_job_files_of_the_continuous_mode(terminal: Terminal):
    """One into Kafka, with the function of the Python pipeline, and one into files."""
    shout, _, _ = block("docs/continuous.md", "def shout(").partition("arrow_pipeline(\n")
    terminal.writes("my_module.py", shout)
    terminal.writes("shout.toml", block("docs/continuous.md", 'arrow = "my_module:shout"'))
    said = terminal.folder / "said"
    said.mkdir()
    here = {"/data/said": str(said)}
    terminal.writes("archive.toml", block("docs/continuous.md", 'id = "archive"'), here)
    terminal.types("sparkonce kafka up --topic said:2 --topic shouted:2")
    with (
        Follower(terminal.bootstrap, "shouted") as reader,
        terminal.starts("sparkonce run shout.toml") as pipeline,
    ):
        begins_at_the_end(terminal, reader, pipeline)
        terminal.produces("said", range(100))
        ends(pipeline, reader, UPPER)
        assert pipeline.ends() == 0, pipeline.text
    assert_came_once_since_the_start(reader)

    reader_of_files = block("docs/file_sink.md", "import pyarrow.dataset\n")
    code = replaced(reader_of_files, {"/data/clicks": str(said)})
    with terminal.starts("sparkonce run archive.toml") as pipeline:
        pipeline.until_it_says("running")
        terminal.produces("said", range(100))
        deadline = Deadline(PATIENCE_S)
        while run_python(code, {}).num_rows < 100:
            assert pipeline.process.poll() is None, pipeline.text
            assert not deadline.expired(), pipeline.text
            deadline.pause(0.3)
        assert pipeline.sigterm() == 0, pipeline.text
    rows = run_python(code, {}).to_pylist()
    assert Counter((row["key"], row["value"]) for row in rows) == PAIRS
