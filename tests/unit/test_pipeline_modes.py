"""One option chooses the mode; what belongs to the other one is refused, with the reason."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from connectors import KafkaSink, KafkaSource
from connectors.files import FileSink
from connectors.options.modes import (
    MODES,
    check_options,
    one_sink,
)
from connectors.options.option import Table
from connectors.options.sink_table import KAFKA_SINK
from connectors.options.table import CONTINUOUS, MICRO_BATCH, PIPELINE
from connectors.options.table import SOURCE as SOURCE_TABLE
from connectors.postgres import PostgresSink
from connectors.records.arrow_transform import columns_of, copy_records
from connectors.records.message_schema import SINK_SCHEMA, SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS
from connectors.spark import ContinuousDriver, StreamingDriver, arrow_pipeline
from connectors.spark.arrow_stage import ArrowStage
from connectors.spark.branches import Branch, schema_in_a_task
from connectors.spark.fused_stage import ReadingStage, compact
from connectors.spark.pipeline import options_of, transformed
from connectors.spark.query_files import FolderFiles
from connectors.spark.query_plan import QueryPlan
from connectors.wal import FileCheckpointCommitter, WriteAheadSink
from tests.unit.jvm import JVM
from transactions.errors import ConfigurationError

DRIVERS = {MICRO_BATCH: StreamingDriver, CONTINUOUS: ContinuousDriver}
#: Arguments of the drivers that have another place in a job file, or are said on the command line.
IN_PYTHON = {"on_checkpoint", "decision_log", "from_savepoint", "accept_duplicates"}
SOURCE = {"bootstrap_servers": "b:1", "subscribe": "in"}
SINK = KafkaSink(bootstrap_servers="b:1", topic="out")
RECORD = {"key": b"k", "value": b"v", "topic": "in", "partition": 1, "offset": 7}


def refused(mode: str, *, source: dict[str, object] | None = None, **options: object) -> str:
    """Make a pipeline without a session: a wrong option is seen before one is needed."""
    with pytest.raises(ConfigurationError) as caught:
        arrow_pipeline(
            None,  # type: ignore[arg-type]
            app_id="app",
            checkpoint="state",
            source=KafkaSource(**{**SOURCE, **(source or {})}),
            mode=mode,
            **{"sink": SINK, **options},
        )
    error = caught.value
    for part in (error.what, error.where, error.cause, error.option):
        assert part, f"a part is missing in: {error}"
    return str(error)


def test_the_table_is_what_the_drivers_take():
    """A new argument of a driver needs a row in the table, or its default is said nowhere."""
    for mode, driver in DRIVERS.items():
        rows = {row.python_name for row in PIPELINE.options if row.mode in {"", mode}}
        assert rows == options_of(driver) - IN_PYTHON


def test_the_defaults_of_the_table_are_those_of_the_drivers():
    for mode, driver in DRIVERS.items():
        arguments = inspect.signature(driver).parameters
        for row in PIPELINE.options:
            if row.mode in {"", mode}:
                assert row.value_in(mode) == arguments[row.python_name].default, row.name


@pytest.mark.parametrize(
    ("table", "target"), [(SOURCE_TABLE, KafkaSource), (KAFKA_SINK, KafkaSink)]
)
def test_the_defaults_of_source_and_sink(table: Table, target: type):
    fields = {field.name: field.default for field in dataclasses.fields(target)}
    for row in table.options:
        if row.name not in {"startingOffsets", "subscribe", "name"}:  # each says its own
            assert row.value_in("") == fields[row.python_name], row.name


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("continuous", {"trigger": "1 second"}, "no batches that a trigger could start"),
        ("continuous", {"tolerable_failed_checkpoints": 1}, "restart_strategy"),
        ("micro-batch", {"barrier_interval_s": 1.0}, "barrier_interval_s=1.0"),
        ("micro-batch", {"parallelism": 4}, "minPartitions"),
        ("micro-batch", {"triger": "1 second"}, "did you mean 'trigger'"),
        ("continuous", {"checkpoint_timeout": 1}, "did you mean 'checkpoint_timeout_s'"),
        ("continuous", {"barrier_interval_s": 1, "target_latency_s": 1}, "fixed and adaptive"),
        ("continuous", {"source": {"max_offsets_per_trigger": 1}}, "maxOffsetsPerTrigger=1"),
        ("continuous", {"source": {"min_partitions": 4}}, "minPartitions=4"),
        ("continuous", {"source": {"max_trigger_delay_ms": 5}}, "maxTriggerDelay=5"),
        ("realtime", {}, "known: micro-batch, continuous"),
        ("Continuous", {}, "did you mean 'continuous'"),
        ("continuous", {"transform": "no_such_module:f"}, "cannot be imported"),
        ("micro-batch", {"transform": "os:sep"}, "not a function"),
    ],
)
def test_what_does_not_fit_the_mode_is_refused(mode, options, says):
    assert says in refused(mode, **options)


def test_several_sinks_are_refused_in_continuous_mode():
    sinks = [SINK, FileSink(path="out", name="files")]
    assert "one sink" in refused("continuous", sink=sinks)
    assert "sinks: out, files" in refused("continuous", sink=sinks)
    assert "sinks: none" in refused("continuous", sink=[])
    assert one_sink(SINK) is one_sink([SINK]) is SINK


ZONE = {"spark.sql.session.timeZone": "Europe/Berlin"}
#: What a driver asks a session for before it starts.
SESSION: Any = SimpleNamespace(
    conf=SimpleNamespace(get=ZONE.get),
    sparkContext=SimpleNamespace(_jvm=JVM),
    _jsparkSession=None,
)


class WriteAhead(WriteAheadSink):
    """A user's own; it promises to send."""

    def send_values(self, records, *, checkpoint_id, subtask, timestamp_ms):
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize("kind", ["parquet", "json", "write-ahead"])
def test_a_sink_that_is_not_kafkas_is_told_all_columns(kind, tmp_path):
    """Those of a micro-batch, before any data moves."""
    sink = (
        WriteAhead(name="own", buffer=tmp_path, committer=FileCheckpointCommitter(tmp_path))
        if kind == "write-ahead"
        else FileSink(path=str(tmp_path), format=kind, name="own")
    )
    driver = ContinuousDriver(
        SESSION, app_id="app", checkpoint=tmp_path, source=KafkaSource(**SOURCE), sink=sink
    )
    (told,) = driver._options.schemas.values()
    assert told.names == SINK_SCHEMA.names
    assert told == schema_in_a_task(from_arrow_schema(SINK_SCHEMA), SESSION)
    assert driver._options.sinks == [sink]
    # A transaction fills while the checkpoint before takes all the time that it has.
    assert driver._options.fills_s == 1.0 + 2 * 60.0


@pytest.mark.parametrize(("interval", "longest"), [(None, 1.0), (0.2, 1.0), (120.0, 120.0)])
def test_a_transaction_lives_longer_than_an_interval_a_checkpoint_and_a_restart(
    tmp_path, interval, longest
):
    """Rule 14; one that the interval alone outlives would never come to its barrier."""
    driver = ContinuousDriver(
        SESSION,
        app_id="app",
        checkpoint=tmp_path,
        source=KafkaSource(**SOURCE),
        sink=SINK,
        barrier_interval_s=interval,
        checkpoint_timeout_s=30.0,
        restart_budget_s=7.0,
    )
    assert driver._options.wanted.transaction_lives_s == longest + 30.0 + 7.0


def test_a_sink_that_cannot_carry_a_column_refuses_it_before_any_data_moves(tmp_path):
    sink = PostgresSink(conninfo="host=nowhere dbname=words", table="words")
    with pytest.raises(ConfigurationError, match=r"column 'headers'.*does not support"):
        ContinuousDriver(
            SESSION, app_id="app", checkpoint=tmp_path, source=KafkaSource(**SOURCE), sink=sink
        )


@pytest.mark.parametrize("mode", MODES)
def test_options_of_both_modes_are_not_asked_about(mode):
    check_options(mode, {"checkpoint_timeout_s": 1.0, "restart_budget": 1, "on_checkpoint": print})


def as_spark_gives_it(zone: str = "Europe/Berlin") -> pa.RecordBatch:
    """Other names inside of lists, another time zone, and types that may be large ones."""
    item = pa.struct([pa.field("key", pa.large_string(), nullable=False), ("value", pa.binary())])
    fields = [
        pa.field("headers", pa.list_(pa.field("element", item)))
        if field.name == "headers"
        else pa.field("timestamp", pa.timestamp("us", tz=zone))
        if field.name == "timestamp"
        else field
        for field in SOURCE_SCHEMA_WITH_HEADERS
    ]
    rows = [{**RECORD, "timestamp": 5, "headers": [{"key": "h", "value": b"x"}]}, RECORD]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def test_the_function_sees_the_columns_of_the_source_and_the_sink_gets_all_of_its_own():
    seen: list[pa.Schema] = []

    def only_the_value(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        return pa.RecordBatch.from_arrays([batch["value"].cast(pa.string())], names=["value"])

    batches = [as_spark_gives_it(), as_spark_gives_it().select(SOURCE_SCHEMA.names)]
    made = list(ArrowStage(only_the_value)(iter(batches)))

    assert seen == [SOURCE_SCHEMA_WITH_HEADERS, SOURCE_SCHEMA]
    for batch in made:
        assert batch.schema == SINK_SCHEMA
        empty = dict.fromkeys(SINK_SCHEMA.names)
        assert batch.to_pylist() == [{**empty, "value": b"v"}] * 2


def test_rows_can_be_dropped_and_made():
    def twice_the_first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["key", "value", "headers", "timestamp"]).take(pa.array([0, 0]))

    (made,) = ArrowStage(twice_the_first)(iter([as_spark_gives_it()]))
    assert [row["headers"] for row in made.to_pylist()] == [[{"key": "h", "value": b"x"}]] * 2
    (none,) = ArrowStage(lambda batch: batch.slice(0, 0).select(["value"]))(
        iter([as_spark_gives_it()])
    )
    assert (none.num_rows, none.schema) == (0, SINK_SCHEMA)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda batch: batch.to_pylist(), "returned list"),
        (lambda batch: batch, "no column 'offset'"),
        (lambda batch: batch.select(["key"]), "no column 'value'"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_name(function, says):
    with pytest.raises(ConfigurationError, match=says):
        list(ArrowStage(function)(iter([as_spark_gives_it()])))


def test_a_sink_gets_the_chosen_columns_only():
    schema = columns_of(["value", "key"])
    assert schema.names == ["key", "value"]
    stage = ArrowStage(lambda batch: batch.select(["value"]), schema)
    (made,) = stage(iter([as_spark_gives_it()]))
    assert made.schema == schema
    assert made["key"].null_count == made.num_rows == 2
    with pytest.raises(ConfigurationError, match="'headers', which `columns` leaves out"):
        list(ArrowStage(copy_records, schema)(iter([as_spark_gives_it()])))


@pytest.mark.parametrize("columns", [["value"], ["value", "key"], ["value", "timestamp"]])
def test_a10_a_copy_gives_the_chosen_columns_in_both_modes(columns, tmp_path):
    """It failed at the first batch: a copy returned key and headers, which `columns` leaves out."""
    schema = columns_of(columns)
    (stage,) = plain_copy(columns)
    driver = ContinuousDriver(
        SESSION,
        app_id="app",
        checkpoint=tmp_path,
        source=KafkaSource(**SOURCE),
        sink=FileSink(path=str(tmp_path), format="json", name="own"),
        columns=columns,
    )
    for transform in (stage.transform, driver._transform):
        (made,) = ArrowStage(transform, stage.schema)(iter([as_spark_gives_it()]))
        assert made.schema == schema
        assert made["value"].to_pylist() == [b"v", b"v"]


def plain_copy(columns) -> list[ArrowStage]:
    """Return what `transformed` hands to Spark."""
    stages: list[ArrowStage] = []
    records = SimpleNamespace(mapInArrow=lambda stage, _: stages.append(stage))
    transformed(records, copy_records, columns)
    return stages


@pytest.mark.parametrize("mode", MODES)
def test_a10_a_stream_that_shall_end_is_refused_in_both_modes(mode, tmp_path):
    assert "a stream has no end" in refused(mode, source={"ending_offsets": "latest"})
    source = KafkaSource(**SOURCE, ending_offsets="latest")
    with pytest.raises(ConfigurationError, match="endingOffsets"):
        ContinuousDriver(SESSION, app_id="app", checkpoint=tmp_path, source=source, sink=SINK)
    with pytest.raises(ConfigurationError, match="endingOffsets"):
        QueryPlan(SESSION, FolderFiles(tmp_path), None).read(source)


def test_a_pipe_is_the_only_branch_of_its_driver(tmp_path):
    """Its records are read in the stage that writes: no other branch could get them."""
    other = KafkaSink(bootstrap_servers="b", topic="other")
    reading = ReadingStage(
        source=KafkaSource(**SOURCE),
        transform=copy_records,
        declared=SINK_SCHEMA,
        written=SINK_SCHEMA,
    )
    plan = QueryPlan(SESSION, FolderFiles(tmp_path), None)
    plan.branches.append(Branch(None, SINK))
    with pytest.raises(ConfigurationError, match=r"only branch(.|\n)*sink 'other'"):
        plan.pipe(KafkaSource(**SOURCE), other, copy_records, None)
    plan.branches[:] = [Branch(None, SINK, reading)]
    with pytest.raises(ConfigurationError, match=r"only branch(.|\n)*read\(\) and write\(\)"):
        plan.write(None, other)
    with pytest.raises(ConfigurationError, match="same name"):
        plan.write(None, SINK)
    with pytest.raises(ConfigurationError, match="only branch"):
        plan.read(KafkaSource(**SOURCE))
    assert len(plan.branches) == 1
    plan.branches.clear()
    plan.sources.append(KafkaSource(**SOURCE))
    with pytest.raises(ConfigurationError, match="only branch"):
        plan.pipe(KafkaSource(**SOURCE), other, copy_records, None)


def function_with_a_lock() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    lock = threading.Lock()

    def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    return hold


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"transform": "no_such_module:f"}, "cannot be imported"),
        ({"transform": function_with_a_lock()}, "cannot be sent to Spark's workers"),
        ({"columns": ["vlaue"]}, "columns of a pipeline are wrong"),
        ({"sink": KafkaSink(bootstrap_servers="b")}, "A topic is needed"),
    ],
)
def test_a_pipe_that_is_refused_leaves_nothing_behind(tmp_path, options, says):
    """Before the start: a start fences the run that is there, and this one could not follow."""
    given = {"sink": SINK, "transform": copy_records, "columns": None, **options}
    plan = QueryPlan(SESSION, FolderFiles(tmp_path), None)
    with pytest.raises(ConfigurationError, match=says):
        plan.pipe(KafkaSource(**SOURCE), **given)
    assert (plan.sources, plan.branches) == ([], [])


def test_a_slice_does_not_keep_what_it_was_cut_from():
    """A sink that collects rows until it has 64 MB counts what it sees."""
    whole = pa.record_batch({"value": pa.array([b"x" * 1000] * 1000, pa.binary())})
    part = whole.slice(500, 10)
    assert part.get_total_buffer_size() > 1_000_000
    made = compact(part)
    assert made.equals(part)
    assert made.get_total_buffer_size() < 20_000
    assert compact(whole) is whole


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["key"], "'value' must be"),
        ([], "'value' must be"),
        (["value", "offset"], "'offset' is unknown"),
        (["value", "value"], "'value' is unknown or twice"),
    ],
)
def test_wrong_columns_are_refused_with_what_is_known(columns, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        columns_of(columns)
    assert "known: key, value, headers, topic, partition, timestamp" in str(caught.value)


@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_columns_of_a_kafka_record_are_what_the_function_returns(mode):
    assert "a sink with columns of its own" in refused(mode, columns=["value"])
