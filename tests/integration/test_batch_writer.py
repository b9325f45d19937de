"""A query of the user's own writes exactly once: `foreachBatch(BatchWriter(...))`.

Seen from outside: a plain Spark script with default settings, SIGKILL at the points of the
protocol, and an independent read_committed reader.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from connectors import KafkaSink
from connectors.kafka.sink import producer_pool
from connectors.spark import BatchWriter, open_run
from connectors.spark.sink_stage import BatchOrder, SinkStage
from tests.auditor.reader import read_committed
from tests.integration.query_script import (
    COUNTED,
    FILE_SOURCE,
    FILES,
    KAFKA_SOURCE,
    KEEPS_STATE,
    PER_FILE,
    PLAIN,
    POINTS,
    RATE_SOURCE,
    THREE_BATCHES,
    TO_THE_END,
    WINDOWED,
    WINDOWS,
    WORKER_POINTS,
    Script,
    text_files,
)
from tests.pages import block, replaced, run_python
from tests.parity.query import produce
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from tests.waiting import until
from transactions import crash_points
from transactions.clock import Deadline
from transactions.errors import ConfigurationError, PhaseOneError


@pytest.fixture
def script(bootstrap, topic, application_id, tmp_path) -> Callable[[dict[str, str]], Script]:
    def made(changes: dict[str, str]) -> Script:
        out = topic()
        own = {'topic="lines"': f'topic="{out}"', 'app_id="lines"': f'app_id="{application_id}"'}
        return Script("own_query.py", bootstrap, out, tmp_path, own | changes)

    return made


@pytest.fixture
def from_files(script, tmp_path) -> Script:
    return script({"examples/*.py": str(text_files(tmp_path / "in"))})


@long
@pytest.mark.timeout(1200)  # eleven starts of Spark
def test_a_kill_in_a_batch_loses_and_doubles_nothing(script, tmp_path):
    """One query dies in one batch after the other, each time at the next point."""
    files = text_files(tmp_path / "in", len(POINTS) + 1)
    query = script({"examples/*.py": str(files)})

    def died(point: str, code: int, said: str) -> None:
        in_a_worker = point in WORKER_POINTS  # then the query fails, and the script ends
        assert code == (1 if in_a_worker else -signal.SIGKILL), said
        if in_a_worker:
            assert_no_open_transaction(query.bootstrap, query.ours.name)

    query.die_at_each(POINTS, died)
    assert (query.ours / "decisions").is_dir()


@long
def test_kafka_as_the_source(script, bootstrap, topic):
    name = topic(name="in")
    produce(bootstrap, name, range(60))
    kafka = script({FILE_SOURCE: KAFKA_SOURCE.format(bootstrap, name)})
    code, said = kafka.run("one_committed@1")
    assert code == -signal.SIGKILL, said
    code, said = kafka.run()
    assert code == 0, said
    assert kafka.values() == list(range(60))


#: What the next run recovers of a run that was killed at a point; at the other points, nothing.
RECOVERED = {
    "committables_collected": ["swept"],
    "prepared_checked": ["swept"],
    "decision_durable": ["recommitted"],
}


@long
@pytest.mark.timeout(1200)  # eleven starts of Spark
def test_a_source_that_counts_and_a_query_that_is_stopped(script):
    """It dies in one batch after the other, and a run of three batches is stopped at the end. What
    Spark prints about its stop may be long; ours is only what was recovered.
    """
    rate = script({FILE_SOURCE: RATE_SOURCE, TO_THE_END: THREE_BATCHES})

    recovered: list[str] = []
    for batch, point in enumerate(POINTS, 1):
        code, said = rate.run(f"{point}@{batch}")
        in_a_worker = point in WORKER_POINTS
        assert code == (1 if in_a_worker else -signal.SIGKILL), said
        failed = ["checkpoint_failed", "swept"] if in_a_worker else []
        assert events(said) == recovered + failed, (point, said)
        (rate.folder / "log").unlink()
        recovered = RECOVERED.get(point, [])
    code, said = rate.run()
    assert code == 0, said
    assert events(said) == recovered, said
    assert "Traceback" not in said, said
    values = rate.values()
    assert values == list(range(len(values)))
    assert len(values) >= 20 * (len(POINTS) + 1)


def events(said: str) -> list[str]:
    """Return the events that a run has told of, in their order."""
    return re.findall(r"sparkonce event=(\w+)", said)


@long
@pytest.mark.parametrize("point", ["committables_collected", "decision_durable", "all_committed"])
def test_state_and_output_agree(script, tmp_path, point):
    """Every file has the same 15 words, so each word is counted 1, 2, 3, 4."""
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    counts = script(
        {
            PLAIN: KEEPS_STATE,
            FILE_SOURCE: files + COUNTED,
            "lines.writeStream.": 'lines.writeStream.outputMode("update").',
        }
    )
    code, said = counts.run(f"{point}@1")
    assert code == -signal.SIGKILL, said
    code, said = counts.run()
    assert code == 0, said
    expected = [100 * word + count for word in range(15) for count in range(1, FILES + 1)]
    assert counts.values() == expected


@long
def test_a_kill_in_the_batch_without_data_that_closes_a_window(script, tmp_path):
    """Spark runs it by default, and `build_session` switches it off."""
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    windows = script({PLAIN: KEEPS_STATE, FILE_SOURCE: files + WINDOWED})
    code, said = windows.run(f"decision_durable@{FILES}")
    assert code == -signal.SIGKILL, said
    assert windows.ends_at(FILES) == windows.ends_at(FILES - 1), "the batch has no data"
    code, said = windows.run()
    assert code == 0, said
    assert windows.values() == WINDOWS


@long
def test_another_app_id_does_not_write_a_decided_batch_again(from_files):
    code, said = from_files.run("all_committed@1")
    assert code == -signal.SIGKILL, said
    app = from_files.ours.name
    ours = from_files.path.read_text()
    from_files.path.write_text(ours.replace(f'app_id="{app}"', f'app_id="{app}-new"'))
    code, said = from_files.run()
    assert code == 1, said
    assert "Another application has written this batch." in said
    from_files.path.write_text(ours)
    code, said = from_files.run()
    assert code == 0, said
    assert from_files.values() == list(range(FILES * PER_FILE))


@long
def test_what_the_broker_has_aborted_is_written_again(from_files):
    code, said = from_files.run("decision_durable@1")
    assert code == -signal.SIGKILL, said
    from_files.abort_decided()
    assert from_files.values() == list(range(PER_FILE)), "aborted: batch 1 is not there"
    code, said = from_files.run()
    assert code == 0, said
    assert from_files.values() == list(range(FILES * PER_FILE))


# --- what is refused: in this process, nothing is killed ------------------------------------------


def run(frame: DataFrame, each: Callable[[DataFrame, int], None], checkpoint: str = "") -> str:
    """Run a query to its end; return the text of its failure, "" for none."""
    writer = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
    if checkpoint:
        writer = writer.option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    finally:
        query.stop()
    return ""


def values_in(writer: BatchWriter) -> list[int]:
    """Return what a reader sees of a writer's output."""
    sink: Any = writer._sink
    found = read_committed(sink.bootstrap_servers, sink.topic)
    return sorted(int(one.value or b"") for one in found)


@pytest.fixture
def lines(spark, tmp_path) -> DataFrame:
    """The text files as a stream, one file a batch."""
    files = str(text_files(tmp_path / "in"))
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(files)


@pytest.fixture
def writer(bootstrap, topic, application_id) -> BatchWriter:
    sink = KafkaSink(bootstrap_servers=bootstrap, topic=topic(name="out"))
    return BatchWriter(sink, app_id=application_id)


def test_the_page(spark, bootstrap, topic, application_id, tmp_path):
    out = topic(name="out")
    words = {
        "localhost:9092": bootstrap,
        'topic="clean"': f'topic="{out}"',
        'app_id="clean"': f'app_id="{application_id}"',
        "/data/in": str(text_files(tmp_path / "in")),
        "/data/clean": str(tmp_path / "checkpoint"),
    }
    names: dict[str, Any] = {"spark": spark}
    run_python(replaced(block("docs/own_query.md", "BatchWriter"), words), names)
    try:
        while names["query"].lastProgress is None:
            assert not names["query"].awaitTermination(0.1), "the query ended"
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    found = read_committed(bootstrap, out)
    assert sorted(int(one.value or b"") for one in found) == list(range(FILES * PER_FILE))


def test_an_error_that_the_function_catches_ends_the_query_at_the_next_batch(
    lines, writer, checkpoint
):
    """And so does the next start: nobody finds out later that batch 0 is missing."""

    def each(frame: DataFrame, batch_id: int) -> None:
        with contextlib.suppress(Exception):
            writer(frame.select(f.expr("raise_error('broken')").alias("value")), batch_id)

    def each_well(frame: DataFrame, batch_id: int) -> None:
        if batch_id > 0:
            writer(frame, batch_id)
        else:
            each(frame, batch_id)

    failure = run(lines, each_well, checkpoint)
    assert "The query went on after a batch that was not written." in failure
    assert "broken" in failure
    again = run(lines, writer, checkpoint)
    assert "Spark has finished a batch that this application has not written." in again
    assert "remove commits/0" in again


def test_a_batch_without_a_call_ends_the_query_at_the_next_one(lines, writer, checkpoint):
    def each(frame: DataFrame, batch_id: int) -> None:
        if batch_id != 1:
            writer(frame, batch_id)

    failure = run(lines, each, checkpoint)
    assert "Batches were left out: the writer was not called for them." in failure
    assert "the last batch written is 0, this one is 2" in failure


def test_a_second_call_in_a_batch_is_refused(lines, writer, checkpoint):
    def each(frame: DataFrame, batch_id: int) -> None:
        writer(frame.where("value < 7"), batch_id)
        writer(frame.where("value >= 7"), batch_id)

    assert "called a second time for one batch" in run(lines, each, checkpoint)
    # A function that is mended now would lose the rows of the second call: batch 0 is committed.
    assert "The rows of a second call are not written." in run(lines, writer, checkpoint)


def test_a_second_writer_of_the_same_application_is_refused(lines, writer, checkpoint):
    """It would take the batch for written, and drop its rows."""
    twin = BatchWriter(writer._sink, app_id=writer._app_id)

    def each(frame: DataFrame, batch_id: int) -> None:
        writer(frame.where("value < 7"), batch_id)
        twin(frame.where("value >= 7"), batch_id)

    assert "Two writers of one application write the same query." in run(lines, each, checkpoint)


def test_a_decided_batch_whose_repeat_is_skipped_is_committed(lines, writer, checkpoint):
    """Spark writes commits/1 although nobody has committed batch 1: that is no proof."""

    def fail(point: str, checkpoint_id: int) -> None:
        if (point, checkpoint_id) == ("decision_durable", 1):
            raise ValueError("between decision and commit")

    def each(frame: DataFrame, batch_id: int) -> None:
        if batch_id != 1:
            writer(frame, batch_id)

    crash_points.install(fail)
    try:
        assert "between decision and commit" in run(lines, writer, checkpoint)
    finally:
        crash_points.install(None)
    assert run(lines, each, checkpoint) == ""
    assert values_in(writer) == list(range(FILES * PER_FILE))


def test_another_thread_is_refused(lines, writer, checkpoint):
    def each(frame: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(writer, frame, batch_id).result()

    assert "was not called by foreachBatch" in run(lines, each, checkpoint)


def test_a_thread_that_inherits_the_batch_is_refused(lines, writer, checkpoint):
    def each(frame: DataFrame, batch_id: int) -> None:
        def call() -> None:
            try:
                writer(frame, batch_id)
            except ConfigurationError as error:
                raised.append(str(error))

        thread = InheritableThread(target=call)
        thread.start()
        thread.join()

    raised: list[str] = []
    assert run(lines, each, checkpoint) == ""
    assert len(raised) == FILES
    assert "in another thread" in raised[0]


def test_the_writer_leaves_adaptive_execution_as_it_was(lines, writer, checkpoint):
    """Spark plans the next batch by it. A replay of that batch, the first one of another run, is
    planned by the user's setting.
    """
    seen = []

    def each(frame: DataFrame, batch_id: int) -> None:
        conf = frame.sparkSession.conf
        if batch_id == 0:
            conf.set("spark.sql.adaptive.enabled", "true")
        writer(frame, batch_id)
        seen.append(conf.get("spark.sql.adaptive.enabled"))

    assert run(lines, each, checkpoint) == ""
    assert seen == ["true"] * FILES


def test_a_query_without_a_checkpoint_is_refused(lines, writer):
    failure = run(lines, writer)
    assert "The query has no checkpoint of its own." in failure
    assert "checkpointLocation" in failure


def test_a_second_query_is_refused(lines, writer, tmp_path):
    assert run(lines, writer, str(tmp_path / "one")) == ""
    assert "A writer can serve one query only." in run(lines, writer, str(tmp_path / "two"))


def test_a_socket_is_refused(spark, writer, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        frame = spark.readStream.format("socket").option("host", "127.0.0.1")
        query = (
            frame.option("port", port)
            .load()
            .writeStream.foreachBatch(writer)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        client, _ = server.accept()
        with client:
            client.sendall(b"one\n")
            with pytest.raises(StreamingQueryException, match="cannot read a record twice"):
                query.awaitTermination()


def test_other_columns_in_a_later_batch_are_refused(lines, writer, checkpoint):
    def each(frame: DataFrame, batch_id: int) -> None:
        writer(frame if batch_id == 0 else frame.withColumn("key", f.lit("a")), batch_id)

    failure = run(lines, each, checkpoint)
    assert "The columns of a batch differ from those of the batches before." in failure


def test_state_that_spark_cannot_make_twice_is_refused(spark, lines, writer, checkpoint):
    """In a plain session: ours have settings for it."""
    plain = spark.newSession()
    version = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    plain.conf.set(version, "1")
    counted = plain.readStream.format("text").load(str(Path(checkpoint).parent / "in"))
    counted = counted.groupBy("value").count().select("value")
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(writer)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match=f"{version}=2"):
        query.awaitTermination()


def test_one_writer_serves_a_query_that_is_started_again(lines, writer, checkpoint):
    """The first query of this process writes two batches and fails; the second goes on."""

    def each(frame: DataFrame, batch_id: int) -> None:
        if batch_id == 2 and not failed:
            failed.append(batch_id)
            raise ValueError("the user's own")
        writer(frame, batch_id)

    failed: list[int] = []
    assert "the user's own" in run(lines, each, checkpoint)
    assert run(lines, each, checkpoint) == ""
    assert values_in(writer) == list(range(FILES * PER_FILE))


def clients_of_workers() -> dict[int, int]:
    """Return how many clients of librdkafka each process of this session has."""
    found: dict[int, int] = {}
    for one in psutil.Process().children(recursive=True):
        found[one.pid] = 0
        for comm in Path(f"/proc/{one.pid}/task").glob("*/comm"):
            with contextlib.suppress(OSError):  # the thread has ended
                found[one.pid] += comm.read_text() == "rdk:main\n"
    return found


@long
def test_f50_a_stopped_query_leaves_no_producer_in_workers_with_other_work(
    spark, lines, writer, checkpoint
):
    """Each one queued 170 KB of statistics a second, and took more of a core with every minute."""
    before = clients_of_workers()
    assert run(lines, writer, checkpoint) == ""
    after = clients_of_workers()
    writing = {pid for pid, clients in after.items() if clients > before.get(pid, 0)}
    assert writing
    deadline = Deadline(120.0)
    while any(clients_of_workers()[pid] > before.get(pid, 0) for pid in writing):
        assert not deadline.expired(), "they are still there"
        spark.range(8).mapInArrow(lambda batches: batches, "id long").count()
        deadline.pause(0.5)


def test_two_writers_of_one_function_do_not_stop_each_other(
    lines, writer, checkpoint, bootstrap, topic
):
    """The first one has written batch 2 when the function fails, and the query is started again."""
    sink = KafkaSink(bootstrap_servers=bootstrap, topic=topic(name="out"))
    other = BatchWriter(sink, app_id=f"{writer._app_id}-2")

    def each(frame: DataFrame, batch_id: int) -> None:
        writer(frame, batch_id)
        if batch_id == 2 and not failed:
            failed.append(batch_id)
            raise ValueError("between the two")
        other(frame, batch_id)

    failed: list[int] = []
    assert "between the two" in run(lines, each, checkpoint)
    assert run(lines, each, checkpoint) == ""
    for one in (writer, other):
        assert values_in(one) == list(range(FILES * PER_FILE))


def test_what_a_task_opens_after_the_end_of_a_batch_is_swept(
    lines, writer, checkpoint, bootstrap, swept, monkeypatch
):
    """One task fails and ends the query. Another one, which Spark cancels, runs on for seconds."""
    monkeypatch.setattr(open_run, "IDLE_SWEEP_S", 0.2)
    stages: list[SinkStage] = []

    def each(frame: DataFrame, batch_id: int) -> None:
        if writer._open is not None:
            stages.append(writer._open.stage)
        writer(frame, batch_id)

    broken = lines.select(f.expr("IF(value = '29', raise_error('broken'), value)").alias("value"))
    assert "broken" in run(broken, each, checkpoint)
    deadline = Deadline(2)
    while writer._open is not None and not deadline.expired():
        deadline.pause(0.05)  # until the thread that waits for the query's end has swept
    context: Any = SimpleNamespace(partitionId=lambda: 1, taskAttemptId=lambda: 99)
    rows = iter([pa.record_batch([pa.array([b"29"])], names=["value"])])
    with contextlib.suppress(PhaseOneError):  # a sweep can come in the middle of it
        stages[0].write(rows, BatchOrder(checkpoint_id=1, write=True), context)
    until(
        lambda: any(f".{producer_pool._PROCESS}." in one for one in swept),
        said=lambda: "it has opened nothing, or that was not swept",
    )
    assert_no_open_transaction(bootstrap, writer._app_id)
    assert run(lines, writer, checkpoint) == "", "the next query does not wait"
    assert values_in(writer) == list(range(FILES * PER_FILE))
