"""The one word: `writeStream.format("kafka-exactly-once")`, and `df.write` with the same word.

Seen from outside: a plain Spark script with default settings, SIGKILL at the points of the
protocol, and an independent read_committed reader.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.peers import SPARK_VERSION, jars
from tests.auditor.reader import assert_no_open_transaction as log_ends
from tests.auditor.reader import read_committed
from tests.integration.query_script import (
    COUNTED,
    ENDLESS,
    FILE_SOURCE,
    FILES,
    JOB,
    KAFKA_SOURCE,
    KEEPS_STATE,
    PER_FILE,
    PLAIN,
    POINTS,
    RATE_SOURCE,
    SPARKS_KAFKA_SOURCE,
    THREE_BATCHES,
    TO_THE_END,
    WINDOWED,
    WINDOWS,
    WORKER_POINTS,
    Script,
    text_files,
)
from tests.integration.test_examples import started
from tests.pages import block, replaced, run_python
from tests.parity.query import produce
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from tests.waiting import until
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend

ALL = list(range(FILES * PER_FILE))
MANY_STARTS = pytest.mark.timeout(1200)
PROCESS = "connectors.spark.commit_process"


#: Points that the commit process reaches.
DRIVER_POINTS = [point for point in POINTS if point not in WORKER_POINTS]
#: One job can die at every point up to its decision; behind it, its next run has no more to do.
DECIDED = POINTS.index("decision_durable")
ONE_JOB_DIES_AT = [POINTS[: DECIDED + 1], *([point] for point in POINTS[DECIDED + 1 :])]


def commit_processes(folder: str) -> list[psutil.Process]:
    """Return the commit processes that a script of a test has started, told by its variable."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if PROCESS in one.cmdline() and one.environ().get("OF_TEST") == folder:
                found.append(one)
    return found


def await_no_commit_process(folder: str) -> None:
    deadline = Deadline(20)
    while (left := commit_processes(folder)) and not deadline.expired():
        deadline.pause(0.1)
    for one in left:
        one.kill()
    assert not left, "the commit process has not ended with its JVM"


@pytest.fixture
def script(bootstrap, topic, tmp_path) -> Iterator[Callable[[dict[str, str]], Script]]:
    os.environ["OF_TEST"] = str(tmp_path)

    def made(changes: dict[str, str]) -> Script:
        out = topic()
        own = {'"topic", "lines"': f'"topic", "{out}"'}
        return Script("one_word.py", bootstrap, out, tmp_path, own | changes)

    yield made
    del os.environ["OF_TEST"]
    await_no_commit_process(str(tmp_path))


@pytest.fixture
def from_files(script, tmp_path) -> Script:
    return script({"examples/*.py": str(text_files(tmp_path / "in"))})


@long
@MANY_STARTS
def test_a_kill_in_a_batch_loses_and_doubles_nothing(script, tmp_path):
    """One query dies in one batch after the other, each time at the next point: a worker dies, or
    the commit process. The query fails, and says so.
    """
    files = text_files(tmp_path / "in", len(POINTS) + 1)
    query = script({"examples/*.py": str(files)})

    def died(point: str, code: int, said: str) -> None:
        assert code == 1, (point, said)
        assert (point in DRIVER_POINTS) == ("The process that commits has died" in said), said

    query.die_at_each(POINTS, died)
    assert (query.ours / "decisions").is_dir()


@long
@pytest.mark.parametrize("died", [False, True])
def test_the_word_is_changed_on_the_checkpoint_of_another_sink(script, tmp_path, died: bool):
    """The query goes on behind the last batch that Spark has finished. A batch in which the old
    sink died is written again.
    """
    files = text_files(tmp_path / "in")
    later = sorted(files.iterdir())[2:]
    for one in later:
        one.rename(tmp_path / one.name)
    here = {"examples/*.py": str(files)}
    code, said = script(here | {'format("kafka-exactly-once")': 'format("noop")'}).run()
    assert code == 0, said
    if died:  # as a kill in batch 1 leaves it: planned, not finished
        for one in (tmp_path / "checkpoint/commits").glob("*1*"):
            one.unlink()
    for one in later:
        (tmp_path / one.name).rename(files / one.name)
    changed = script(here)
    code, said = changed.run()
    assert code == 0, said
    first = 1 if died else 2
    assert changed.values() == list(range(first * PER_FILE, FILES * PER_FILE))
    assert f"begins with batch {first} of the query" in said


@long
@MANY_STARTS
def test_a_source_that_counts_and_a_query_that_is_stopped(script):
    """It dies in one batch after the other, and a run of three batches is stopped at the end."""
    rate = script({FILE_SOURCE: RATE_SOURCE, TO_THE_END: THREE_BATCHES})
    for batch, point in enumerate(POINTS, 1):
        code, said = rate.run(f"{point}@{batch}")
        assert code == 1, said
    code, said = rate.run()
    assert code == 0, said
    values = rate.values()
    assert values == list(range(len(values)))
    assert len(values) >= 20 * (len(POINTS) + 1)


@long
@MANY_STARTS
@pytest.mark.parametrize("what", ["files", "counts"])
def test_a_driver_killed_while_its_commit_process_sleeps(script, tmp_path, what):
    """The JVM and its Python die, in one batch after the other; each commit process stands still,
    and wakes up too late.
    """
    if what == "files":
        files = text_files(tmp_path / "in", len(DRIVER_POINTS) + 1)
        query = script({"examples/*.py": str(files)})
    else:
        query = script({FILE_SOURCE: RATE_SOURCE, TO_THE_END: ENDLESS})
    asleep: list[psutil.Process] = []
    for batch, point in enumerate(DRIVER_POINTS, 1):
        asleep += killed_beside_a_sleeper(query, f"{point}@{batch}", known=asleep)
    if what == "counts":
        query.path.write_text(query.path.read_text().replace(ENDLESS, THREE_BATCHES))
    per_batch = PER_FILE if what == "files" else 20
    assert_sleepers_change_nothing(query, asleep, at_least=(len(DRIVER_POINTS) + 1) * per_batch)


@long
@MANY_STARTS
@pytest.mark.parametrize("points", ONE_JOB_DIES_AT)
def test_a_job_killed_while_its_commit_process_sleeps(job, points):
    asleep: list[psutil.Process] = []
    for point in points:
        if point in DRIVER_POINTS:
            asleep += killed_beside_a_sleeper(job, point, known=asleep)
    assert_sleepers_change_nothing(job, asleep, at_least=len(ALL))


def killed_beside_a_sleeper(
    written: Script, crash_at: str, known: list[psutil.Process]
) -> list[psutil.Process]:
    """Kill a driver when its commit process stands still at a point; return that process."""
    environment = written.environment(SPARKONCE_CRASH_AT=crash_at, SPARKONCE_CRASH_SIGNAL="STOP")
    with started([sys.executable, written.path.name], written.folder, **environment):
        return until(
            lambda: [one for one in stopped(written.folder) if one not in known],
            120,
            lambda: (crash_at, written.said()),
            pause_s=0.1,
        )


def assert_sleepers_change_nothing(
    written: Script, asleep: list[psutil.Process], at_least: int
) -> None:
    """Run to the end, then wake the commit processes of older runs up."""
    code, said = written.run()
    assert code == 0, said
    values = written.values()
    assert values == list(range(len(values)))
    assert len(values) >= at_least
    for one in asleep:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.resume()
    await_no_commit_process(str(written.folder))
    assert written.values() == values, "a sleeper has changed what a newer run wrote"
    assert_no_open_transaction(written.bootstrap, written.ours.name)


def stopped(folder: Path) -> list[psutil.Process]:
    """Return the commit processes of a test that stand still."""
    return [one for one in commit_processes(str(folder)) if one.status() == psutil.STATUS_STOPPED]


@long
def test_kafka_as_the_source(script, bootstrap, topic):
    name = topic(name="in")
    produce(bootstrap, name, range(60))
    kafka = script({FILE_SOURCE: KAFKA_SOURCE.format(bootstrap, name)})
    code, said = kafka.run("one_committed@1")
    assert code == 1, said
    code, said = kafka.run()
    assert code == 0, said
    assert kafka.values() == list(range(60))


@long
@pytest.mark.parametrize("point", ["records_flushed", "one_committed", "all_committed"])
def test_sparks_own_kafka_source(script, bootstrap, topic, point):
    name = topic(name="in")
    produce(bootstrap, name, range(60))
    own = ",".join(str(one) for one in jars("spark", SPARK_VERSION))
    with_jars = PLAIN.replace("builder.", f'builder.config("spark.jars", "{own}").')
    source = SPARKS_KAFKA_SOURCE.format(bootstrap, name)
    kafka = script({PLAIN: with_jars, FILE_SOURCE: source})
    code, said = kafka.run(f"{point}@1")
    assert code == 1, said
    code, said = kafka.run()
    assert code == 0, said
    assert kafka.values() == list(range(60))


@long
@pytest.mark.parametrize("point", ["committables_collected", "decision_durable", "all_committed"])
def test_state_and_output_agree(script, tmp_path, point):
    """Every file has the same 15 words, so each word is counted 1, 2, 3, 4. In mode complete each
    batch writes all words.
    """
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    changes = {PLAIN: KEEPS_STATE, FILE_SOURCE: files + COUNTED}
    counts = script({**changes, "lines.writeStream.": 'lines.writeStream.outputMode("complete").'})
    code, said = counts.run(f"{point}@1")
    assert code == 1, said
    code, said = counts.run()
    assert code == 0, said
    assert counts.values() == sorted(
        100 * word + count for word in range(15) for count in range(1, FILES + 1)
    )


@long
def test_a_kill_in_the_batch_without_data_that_closes_a_window(script, tmp_path):
    """Spark runs it by default, and `build_session` switches it off."""
    files = FILE_SOURCE.replace("examples/*.py", str(text_files(tmp_path / "in")))
    windows = script({PLAIN: KEEPS_STATE, FILE_SOURCE: files + WINDOWED})
    code, said = windows.run(f"decision_durable@{FILES}")
    assert code == 1, said
    assert windows.ends_at(FILES) == windows.ends_at(FILES - 1), "the batch has no data"
    code, said = windows.run()
    assert code == 0, said
    assert windows.values() == WINDOWS


@long
def test_a_batch_that_the_source_gives_otherwise_is_not_written_again(from_files):
    """Its transactions are lost, and somebody has changed its file meanwhile."""
    code, said = from_files.run("decision_durable@1")
    assert code == 1, said
    from_files.abort_decided()
    changed = from_files.folder / "in/1.txt"
    times = changed.stat().st_mtime_ns
    changed.write_text(changed.read_text().replace("20", "99"))
    os.utime(changed, ns=(times, times))
    code, said = from_files.run()
    assert code == 1, said
    assert "as many records (15), but not the same" in said
    assert from_files.values() == list(range(PER_FILE)), "nothing of the batch is visible"


@long
def test_what_the_broker_has_aborted_is_written_again(from_files):
    code, said = from_files.run("decision_durable@1")
    assert code == 1, said
    from_files.abort_decided()
    assert from_files.values() == list(range(PER_FILE)), "aborted: batch 1 is not there"
    code, said = from_files.run()
    assert code == 0, said
    assert from_files.values() == ALL


# --- in one session -------------------------------------------------------------------------------


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """The text files as a stream, one file a batch."""
    files = str(text_files(tmp_path / "in"))
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(files)


def to_topic(writer: Any, bootstrap: str, topic: str, checkpoint: str, **options: str) -> Any:
    """Set the options of a write."""
    return (
        writer.format("kafka-exactly-once")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .options(**options)
    )


def run(writer: DataStreamWriter) -> str:
    """Run a query to its end; return the text of its failure, "" for none."""
    query = None
    try:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except (PySparkException, StreamingQueryException) as error:
        return str(error)
    finally:
        if query is not None:
            query.stop()
    return ""


def values_of(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(one.value or b"") for one in read_committed(bootstrap, topic))


def test_the_page(spark, lines, bootstrap, topic, tmp_path, application_id):
    out = topic(name="out")
    own = {"localhost:9092": bootstrap, '"topic", "lines"': f'"topic", "{out}"'}
    names: dict[str, Any] = {"lines": lines, "table": spark.sql("SELECT '60' AS value")}
    query = replaced(block("docs/own_query.md", 'it was "kafka"'), own | {"/data/": f"{tmp_path}/"})
    run_python(query, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    job = own | {"/data/": f"{tmp_path}/", "load-2026-11-25": application_id}
    run_python(replaced(block("docs/own_query.md", "job.id"), job), names)
    assert values_of(bootstrap, out) == [*ALL, 60]


@pytest.mark.parity(59)
def test_spark_s_progress_counts_the_rows_of_each_batch(lines, bootstrap, topic, checkpoint):
    """The last batch is empty."""
    some = lines.where(f"value < {(FILES - 1) * PER_FILE}")
    writer = to_topic(some.writeStream, bootstrap, topic(name="out"), checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = [one.sink.numOutputRows for one in query.recentProgress]
    assert found == [PER_FILE] * (FILES - 1) + [0]


def test_two_queries_of_one_session_that_are_stopped_and_started(
    spark, lines, bootstrap, topic, tmp_path
):
    """One process commits for both; a stop undoes nothing, and a start goes on, also under another
    name: Spark gives the name of a query to its sink, as an option.
    """
    outs = [topic(name="one"), topic(name="two")]

    def start(name: str) -> list[Any]:
        writers = [
            to_topic(lines.writeStream, bootstrap, out, str(tmp_path / f"checkpoint-{out}"))
            for out in outs
        ]
        queries = [writers[0].queryName(name).start(), writers[1].start(queryName=f"{name} too")]
        assert [query.name for query in queries] == [name, f"{name} too"]
        return queries

    queries = start("All my lines")
    for query in queries:
        while query.lastProgress is None:
            assert not query.awaitTermination(0.1), "the query ended"
        query.stop()
    queries = start("The same lines")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    for out in outs:
        assert values_of(bootstrap, out) == ALL
        (ours,) = (tmp_path / f"checkpoint-{out}/sparkonce").iterdir()
        assert_no_open_transaction(bootstrap, ours.name)


@long
@pytest.mark.filterwarnings("ignore:.*[Tt]rigger.*:FutureWarning")
def test_sparks_other_triggers(lines, bootstrap, topic, checkpoint):
    """`once` takes one batch of all that is there; an interval goes on behind it."""
    out = topic(name="out")
    folder = Path(checkpoint).parent
    later = sorted(folder.glob("in/*.txt"))[1:]
    for one in later:
        one.rename(folder / one.name)
    query = to_topic(lines.writeStream, bootstrap, out, checkpoint).trigger(once=True).start()
    assert query.awaitTermination(60)
    assert values_of(bootstrap, out) == ALL[:PER_FILE]
    for one in later:
        (folder / one.name).rename(one)
    writer = to_topic(lines.writeStream, bootstrap, out, checkpoint)
    query = writer.trigger(processingTime="200 milliseconds").start()
    query.processAllAvailable()
    query.stop()
    assert values_of(bootstrap, out) == ALL


def test_a_batch_that_fails_leaves_nothing_and_runs_again(lines, bootstrap, topic, checkpoint):
    out = topic(name="out")
    broken = lines.select(f.expr("IF(value = '29', raise_error('broken'), value)").alias("value"))
    failure = run(to_topic(broken.writeStream, bootstrap, out, checkpoint))
    assert "broken" in failure
    (ours,) = Path(checkpoint, "sparkonce").iterdir()
    assert_no_open_transaction(bootstrap, ours.name)
    assert values_of(bootstrap, out) == list(range(PER_FILE))
    assert run(to_topic(lines.writeStream, bootstrap, out, checkpoint)) == ""
    assert values_of(bootstrap, out) == ALL


def test_another_app_id_does_not_write_a_decided_batch_again(lines, bootstrap, topic, checkpoint):
    """Spark runs a batch again whose commits/N is missing: a stop came before Spark wrote it."""
    out = topic(name="out")
    assert run(to_topic(lines.writeStream, bootstrap, out, checkpoint)) == ""
    last = FILES - 1
    for path in Path(checkpoint, "commits").glob(f"*{last}*"):
        path.unlink()
    renamed = {"app.id": f"another-{out}"}
    failure = run(to_topic(lines.writeStream, bootstrap, out, checkpoint, **renamed))
    assert "Another application has written this batch." in failure
    assert run(to_topic(lines.writeStream, bootstrap, out, checkpoint)) == ""
    assert values_of(bootstrap, out) == ALL


def test_a_commit_process_that_is_killed_between_two_queries(
    spark, lines, bootstrap, topic, tmp_path
):
    """The next plan starts another one."""
    for name in ("one", "two"):
        out = topic(name=name)
        assert run(to_topic(lines.writeStream, bootstrap, out, str(tmp_path / name))) == ""
        assert values_of(bootstrap, out) == ALL
        (process,) = of_this_session()
        process.kill()


def of_this_session() -> list[psutil.Process]:
    """Return the commit processes of the JVM of this test's session."""
    ours = [str(one.pid) for one in psutil.Process().children(recursive=True)]
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if PROCESS in one.cmdline() and one.cmdline()[-2] in ours:
                found.append(one)
    return found


@pytest.mark.parity(22)
def test_asynchronous_progress_is_refused(lines, bootstrap, topic, checkpoint):
    out = topic(name="out")
    asks = {"asyncProgressTrackingEnabled": "true"}
    writer = to_topic(lines.writeStream, bootstrap, out, checkpoint, **asks)
    with pytest.raises((PySparkException, StreamingQueryException)) as raised:
        writer.trigger(processingTime="0 seconds").start().awaitTermination(60)
    assert "does not support async progress" in str(raised.value)
    assert read_committed(bootstrap, out) == []


def test_the_mode_update_is_refused_by_spark(lines, bootstrap, topic, checkpoint):
    """It has this mode for its own sinks, and for `foreachBatch`."""
    out = topic(name="out")
    counted = lines.groupBy("value").count().select("value").writeStream.outputMode("update")
    failure = run(to_topic(counted, bootstrap, out, checkpoint))
    assert "kafka-exactly-once does not support Update mode" in failure
    assert read_committed(bootstrap, out) == []


@long
def test_settings_that_source_and_sink_share_are_named_once_each(script, bootstrap, topic):
    """Spark reads the source's in three processes, and plans each batch in any of its workers."""
    shared = (
        '.option("kafka.group.id", "g").option("kafka.isolation.level", "read_committed")'
        '.option("kafka.max.block.ms", "1").option("kafka.enable.idempotence", "true")'
        '.option("kafka.transaction.timeout.ms", "660000")'
    )
    full = topic(2, name="in")
    produce(bootstrap, full, range(30), range(30, 60))
    source = KAFKA_SOURCE.format(bootstrap, full).replace(
        ".load()", f'{shared}.load().select("value")'
    )
    query = script({FILE_SOURCE: source, '.option("topic"': f'{shared}.option("topic"'})
    code, said = query.run()
    assert code == 0, said
    assert query.values() == ALL
    assert said.count("options of the source: no effect") == 1, said
    assert said.count("options of the Kafka sink: no effect") == 1, said
    assert said.count("kafka.max.block.ms (") == said.count("kafka.group.id (") == 2, said


def test_a_socket_is_refused(spark, bootstrap, topic, checkpoint):
    out = topic(name="out")
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"host": "127.0.0.1", "port": server.getsockname()[1]}
        frame = spark.readStream.format("socket").options(**place).load()
        query = to_topic(frame.writeStream, bootstrap, out, checkpoint).start()
        client, _ = server.accept()
        with client:
            client.sendall(b"one\n")
            with pytest.raises(StreamingQueryException, match="cannot read a record twice"):
                query.awaitTermination()
    assert read_committed(bootstrap, out) == []


@long  # `test_batch_writer.py` has the refusal in `make test`
def test_state_that_spark_cannot_make_twice_is_refused(spark, bootstrap, topic, checkpoint):
    """In a plain session: ours have settings for it."""
    plain = spark.newSession()
    plain.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    folder = str(text_files(Path(checkpoint).parent / "in"))
    counted = plain.readStream.format("text").load(folder).groupBy("value").count().select("value")
    out = topic(name="out")
    writer = to_topic(counted.writeStream.outputMode("complete"), bootstrap, out, checkpoint)
    assert "stateStore.checkpointFormatVersion=2" in run(writer)
    assert values_of(bootstrap, out) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topci": "a"}, "The Kafka sink has no option 'topci'"),
        ({"checkpointTimeout": "soon"}, "The value of checkpointTimeout cannot be used"),
        ({"job.id": "a"}, "The option job.id does not belong here."),
        ({"app.id": "a.b"}, "An application id may have only letters"),
        ({"kafka.transaction.timeout.ms": "900"}, "A transaction timeout below a second"),
        ({"kafka.partitioner.class": "com.example.Mine"}, "A partitioner of Java's client cannot"),
    ],
)
def test_an_option_that_is_wrong_is_refused(lines, bootstrap, topic, checkpoint, options, says):
    out = topic(name="out")
    assert says in run(to_topic(lines.writeStream, bootstrap, out, checkpoint, **options))
    assert values_of(bootstrap, out) == []


def test_columns_that_are_wrong_are_refused(lines, bootstrap, topic, checkpoint):
    numbers = lines.select(f.length("value").alias("value"))
    failure = run(to_topic(numbers.writeStream, bootstrap, topic(name="out"), checkpoint))
    assert "The column 'value' has the type int." in failure


def test_x11_a_query_of_empty_batches_goes_on(lines, bootstrap, topic, checkpoint):
    """An empty batch is decided, and has no transaction."""
    out = topic(name="out")
    empty = lines.where("value < 0")
    assert run(to_topic(empty.writeStream, bootstrap, out, checkpoint)) == ""
    assert log_ends(bootstrap, out) == {0: 0}
    (ours,) = Path(checkpoint, "sparkonce").iterdir()
    decided = read_log(LocalFileBackend(ours / "decisions")).decision
    assert decided is not None
    assert (decided.checkpoint_id, decided.committables) == (FILES - 1, ())
    (Path(checkpoint).parent / "in/new.txt").write_text("60\n61\n")
    assert run(to_topic(lines.writeStream, bootstrap, out, checkpoint)) == ""
    assert values_of(bootstrap, out) == [60, 61]
    decided = read_log(LocalFileBackend(ours / "decisions")).decision
    assert decided is not None
    assert (decided.checkpoint_id, len(decided.committables)) == (FILES, 1)


# --- df.write -------------------------------------------------------------------------------------


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(60, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")


def save(writer: DataFrameWriter) -> str:
    try:
        writer.mode("append").save()
    except PySparkException as error:
        return str(error)
    return ""


def test_a_job_that_runs_twice_writes_once(numbers, bootstrap, topic, checkpoint, application_id):
    out = topic(name="out", partitions=2)
    options = {"job.id": application_id}
    assert save(to_topic(numbers.write, bootstrap, out, checkpoint, **options)) == ""
    assert values_of(bootstrap, out) == ALL
    ends = log_ends(bootstrap, out)
    assert save(to_topic(numbers.write, bootstrap, out, checkpoint, **options)) == ""
    assert values_of(bootstrap, out) == ALL
    assert log_ends(bootstrap, out) == ends, "the second run has written something"
    another = {"job.id": f"{application_id}-2"}
    assert save(to_topic(numbers.write, bootstrap, out, checkpoint, **another)) == ""
    assert values_of(bootstrap, out) == sorted(2 * ALL)


def test_x11_an_empty_job(numbers, bootstrap, topic, checkpoint, application_id):
    """It is done like any other: a second run of it writes nothing, another job writes. A task
    without rows has no transaction.
    """
    out = topic(name="out")
    options = {"job.id": application_id}
    empty = numbers.where("value < 0")
    assert save(to_topic(empty.write, bootstrap, out, checkpoint, **options)) == ""
    assert log_ends(bootstrap, out) == {0: 0}
    assert save(to_topic(numbers.write, bootstrap, out, checkpoint, **options)) == ""
    assert log_ends(bootstrap, out) == {0: 0}
    another = {"job.id": f"{application_id}-2"}
    some = numbers.where("value < 20")  # those of one task of three
    assert save(to_topic(some.write, bootstrap, out, checkpoint, **another)) == ""
    assert values_of(bootstrap, out) == ALL[:20]
    assert log_ends(bootstrap, out) == {0: 21}, "20 records and one marker"


def test_a_job_whose_task_fails_writes_nothing(
    numbers, bootstrap, topic, checkpoint, application_id
):
    out = topic(name="out")
    broken = numbers.select(f.expr("IF(value = '59', raise_error('broken'), value)").alias("value"))
    options = {"job.id": application_id}
    assert "broken" in save(to_topic(broken.write, bootstrap, out, checkpoint, **options))
    assert_no_open_transaction(bootstrap, application_id)
    assert values_of(bootstrap, out) == []
    assert save(to_topic(numbers.write, bootstrap, out, checkpoint, **options)) == ""
    assert values_of(bootstrap, out) == ALL


def test_a_job_without_a_name_is_refused(numbers, bootstrap, topic, checkpoint):
    assert "A batch write needs a name." in save(
        to_topic(numbers.write, bootstrap, topic(name="out"), checkpoint)
    )


def test_a_topic_cannot_be_overwritten(numbers, bootstrap, topic, checkpoint):
    writer = to_topic(numbers.write, bootstrap, topic(name="out"), checkpoint, **{"job.id": "a"})
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()


@pytest.fixture
def job(script, bootstrap, topic, tmp_path, application_id) -> Script:
    """A batch job as a script."""
    made = script({})
    made.path = tmp_path / "job.py"
    made.topic = topic(name="out", partitions=2)
    place = str(tmp_path / "checkpoint")
    made.path.write_text(JOB.format(bootstrap, made.topic, place, application_id))
    return made


@long
@MANY_STARTS
@pytest.mark.parametrize("points", ONE_JOB_DIES_AT)
def test_a_job_that_is_killed_is_completed_by_its_next_run(job, points):
    for point in points:
        code, said = job.run(point)
        assert code == 1, (point, said)
    code, said = job.run()
    assert code == 0, said
    assert job.values() == ALL


@long
def test_a_job_that_the_broker_has_aborted_is_written_again(job):
    code, said = job.run("decision_durable")
    assert code == 1, said
    job.abort_decided()
    assert job.values() == []
    code, said = job.run()
    assert code == 0, said
    assert job.values() == ALL
