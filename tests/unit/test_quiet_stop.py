"""A clean stop says one line: what py4j, Java and librdkafka would say beside it is not shown."""

from __future__ import annotations

import ast
import logging
import socketserver
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

import connectors
from connectors import KafkaSource
from connectors.cli import run
from connectors.clients import client_log
from connectors.kafka.sink.record_producer import RecordProducer
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native.native_reader import NativePartitionReader
from connectors.spark import StreamingDriver, driver_jvm, quiet_end, source_readers
from tests.unit.jvm import jvm_in
from transactions.coordinator import CheckpointReport
from transactions.errors import PhaseOneError, StoppedError

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


class Interrupted(Exception):  # noqa: N818 - stands for py4j's error
    pass


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The JVM's side of the query's thread: it sleeps until `stop` interrupts it."""
    stopped = threading.Event()

    def sleep(milliseconds: int) -> None:
        assert stopped.wait(milliseconds / 1000), "nobody stopped the query"
        raise Interrupted("java.lang.InterruptedException: sleep interrupted")

    monkeypatch.setattr(quiet_end, "Py4JJavaError", Interrupted)
    made = jvm_in("/")
    made.java.lang.Thread = SimpleNamespace(sleep=sleep)
    made.stopped = stopped
    return made


@pytest.fixture
def driver(tmp_path: Path, jvm: Any) -> StreamingDriver:
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda *_: None, set=lambda *_: None),
        sparkContext=SimpleNamespace(_jvm=jvm, defaultParallelism=1),
        dataSource=SimpleNamespace(register=lambda _source: None),
        _jsparkSession=None,
    )
    made = StreamingDriver(session, app_id="app", checkpoint=tmp_path, checkpoint_timeout_s=10.0)
    made._query_ready.set()
    made._query = SimpleNamespace(  # type: ignore[assignment]
        _jsq=SimpleNamespace(),
        runId="r",
        isActive=True,
        status={"message": "Processing new data"},
        stop=jvm.stopped.set,
        awaitTermination=lambda _s: True,
    )
    return made


def fails_with(error: BaseException) -> Any:
    def run(*_: object) -> None:
        raise error

    return SimpleNamespace(run=run)


@pytest.mark.parametrize("ask", ["stop", "await_termination"])
def test_a_batch_that_is_stopped_never_returns_and_waits_for_sparks_own_interruption(driver, ask):
    driver._batches = fails_with(StoppedError("The driver is stopping."))
    raised: list[BaseException] = []

    def batch() -> None:
        try:
            driver._run_batch(None, 7)
        except BaseException as error:
            raised.append(error)

    on_the_querys_thread = threading.Thread(target=batch)
    on_the_querys_thread.start()
    with driver._idle:
        assert driver._idle.wait_for(lambda: driver._waits_for_stop, 10)
    getattr(driver, ask)()
    on_the_querys_thread.join(10)
    (error,) = raised
    assert isinstance(error, StoppedError)
    # Spark finds its own stop by these words, at the end: its pattern recurses for what follows.
    text = "".join(traceback.format_exception(error))
    _, found, behind = text.partition(
        "py4j.protocol.Py4JJavaError: An error occurred while calling"
    )
    assert found
    assert "java.lang.InterruptedException" in behind
    assert len(behind) < 100


def test_a_stop_waits_until_the_source_has_started(driver, jvm):
    messages = ["Initializing StreamExecution", "Initializing sources", "Getting offsets from in"]
    asked: list[str] = []

    class Query:
        isActive, stop = True, jvm.stopped.set  # noqa: N815 - Spark's names

        @property
        def status(self) -> dict[str, str]:
            assert not jvm.stopped.is_set()
            asked.append(messages[len(asked)])
            return {"message": asked[-1]}

    driver._query = Query()
    driver.stop()
    assert asked == messages
    assert jvm.stopped.is_set()


def test_a_batch_that_fails_does_not_wait(driver):
    driver._batches = fails_with(PhaseOneError("A task died."))
    with pytest.raises(PhaseOneError):
        driver._run_batch(None, 7)


@pytest.mark.parametrize(
    ("error", "lines"), [(StoppedError("The driver is stopping."), 0), (PhaseOneError("Died."), 1)]
)
def test_py4j_says_nothing_of_a_stop(caplog, error, lines):
    logging.getLogger("py4j.clientserver").error("There was an exception", exc_info=error)
    assert len(caplog.records) == lines


# --- Java ------------------------------------------------------------------------------------


def test_warnings_of_java_go_to_logging_and_all_else_to_stderr(capfd, caplog):
    said = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"OpenJDK 64-Bit Server VM warning: Sharing is only supported for boot loader classes\n",
        b"26/11/24 01:30:28 ERROR MicroBatchExecution: Query x terminated with error\n",
        b"\tat org.apache.spark.Foo(Foo.scala:60)\n",
        b"no line end",
    ]
    with caplog.at_level("INFO"):
        driver_jvm._say(said)
    assert len(caplog.messages) == 2
    assert capfd.readouterr().err == b"".join(said[2:]).decode()


def test_what_workers_say_when_their_session_ends_is_no_news(monkeypatch, capfd, caplog):
    """Their connections break, and they are killed in the middle of the first line or later."""
    session = SimpleNamespace(stop=lambda: driver_jvm._say([b"Traceback (most recent call last):"]))
    monkeypatch.setattr(driver_jvm, "_ends", threading.Event())
    with caplog.at_level("INFO", logger=driver_jvm.__name__):
        driver_jvm.end(session)
    assert caplog.messages == ["Traceback (most recent call last):"]
    assert capfd.readouterr().err == ""


def test_a_connection_of_accumulators_that_breaks_at_the_end_is_no_news(monkeypatch, capfd, caplog):
    """PySpark's server may see that the JVM is gone before it is told to end."""
    server = socketserver.BaseServer(("", 0), socketserver.BaseRequestHandler)
    context = SimpleNamespace(_accumulatorServer=server)
    monkeypatch.setattr(driver_jvm.SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(driver_jvm, "_ends", threading.Event())

    def stop() -> None:
        server.handle_error(None, ("", 0))

    with caplog.at_level("INFO", logger=driver_jvm.__name__):
        driver_jvm.end(SimpleNamespace(stop=stop))
    assert caplog.messages == ["accumulators"]
    assert capfd.readouterr().err == ""


def test_a_log_configuration_of_the_users_own_stays(monkeypatch, tmp_path):
    assert "log4j2-quiet.properties" in driver_jvm.quiet_log_options("-Xmx1g")
    assert driver_jvm.quiet_log_options("-Dlog4j2.configurationFile=mine") == ""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert driver_jvm.quiet_log_options("")
    (tmp_path / "log4j2.properties").touch()
    assert driver_jvm.quiet_log_options("") == ""


# --- librdkafka ------------------------------------------------------------------------------


def consumer(kind: type[PartitionReader]) -> Any:
    source = KafkaSource(subscribe="in", bootstrap_servers=NOBODY["bootstrap.servers"])
    return kind(source, {"in-0": 0})


def look(client: Any) -> None:
    if isinstance(client, PartitionReader):
        client.read(0.1)
    elif isinstance(client, RecordProducer):
        client._producer.poll(0.1)
    else:
        client.poll(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: consumer(PartitionReader),
        lambda: consumer(NativePartitionReader),
        lambda: RecordProducer(NOBODY, "a producer", {}),
        lambda: AdminClient({**NOBODY, **client_log.log_settings()}),
        lambda: Consumer({**NOBODY, "group.id": "g", **client_log.log_settings()}),
    ],
    ids=["reader", "native reader", "producer", "admin", "consumer"],
)
def test_lines_of_librdkafka_are_records_of_logging(make, monkeypatch, caplog, capfd):
    monkeypatch.setattr(client_log.LIBRDKAFKA, "level", logging.INFO)
    client = make()
    for _ in range(100):
        look(client)
        if caplog.records:
            break
    if isinstance(client, (PartitionReader, Consumer)):
        client.close()
    refused = caplog.records[0]
    assert refused.levelno == logging.ERROR
    assert refused.name == "connectors.kafka.librdkafka"
    assert "Connection refused" in refused.getMessage()
    assert "%3|" not in capfd.readouterr().err


def test_by_default_they_are_not_even_made():
    assert client_log.log_settings()["log_level"] == 2


def test_no_client_is_made_without_a_place_for_its_lines():
    """Those of the benchmarks and of `sparkonce kafka` are silent; tests have their own."""
    without = []
    root = Path(connectors.__file__).parent
    for path in set(root.rglob("*.py")) - set((root / "testing").rglob("*.py")):
        text = path.read_text("utf-8")
        if any(one in text for one in ("log_settings()", "consumer_settings(", '"log_level"')):
            continue
        made = {
            node.func.id
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if made & {"Producer", "Consumer", "AdminClient"}:
            without.append(path.name)
    assert without == []


# --- the command's own lines -----------------------------------------------------------------


def test_a_minute_shows_few_checkpoints_and_a_clean_stop_shows_no_more(capsys):
    now = 0.0
    clock: Any = SimpleNamespace(monotonic=lambda: now)
    progress = run.Progress(clock)
    for number in range(600):
        now = number / 10
        progress.checkpoint(CheckpointReport(checkpoint_id=number))
    shown = capsys.readouterr().err
    assert 3 <= shown.count("\n") <= 5, shown
    progress.close(stopped=True)
    assert capsys.readouterr().err == ""
    progress.close(stopped=False)
    assert "checkpoint 599" in capsys.readouterr().err


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), PhaseOneError("A real one.")])
def test_the_process_of_the_source_ends_quietly_when_spark_has_left(monkeypatch, error):
    ended: list[int] = []
    monkeypatch.setattr(source_readers.os, "_exit", ended.append)
    reader = source_readers.KafkaStreamReader.__new__(source_readers.KafkaStreamReader)
    try:
        try:
            raise error
        finally:  # as PySpark's runner calls it
            reader.stop()
    except type(error):
        assert ended == ([] if isinstance(error, PhaseOneError) else [0])
    reader.stop()
    assert len(ended) <= 1
