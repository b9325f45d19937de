"""Where a pipeline begins: a topic that is written all the time, default options, another reader.

`latest` is another place at every look, so it is looked up once and written into the log (A1). A
topic that was made anew is another topic, however far it has grown (A7).
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from connectors import KafkaSink, KafkaSource
from connectors.kafka.source.offsets import parse_offsets, split_key
from connectors.options.modes import MODES
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from connectors.spark.pipeline import ArrowPipeline, arrow_pipeline
from tests.auditor.reader import Follower, Record, read_committed
from tests.integration.job_process import PATIENCE_S, running
from tests.tiers import long, sampled
from tests.waiting import until
from transactions import crash_points
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.errors import DataLossError, SparkOnceError
from transactions.log_backend import LocalFileBackend

PARTITIONS = 2
#: What is there before a pipeline starts: nothing of it is to be seen.
BEFORE = 3_000
RECORDS_A_SECOND = 3_000


class Busy:
    """Somebody else's producer, which never stops: 0, 1, 2, ... over the partitions by turns."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic = topic
        self._sent = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._send(BEFORE)

    def _send(self, count: int) -> None:
        for number in range(self._sent, self._sent + count):
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
        self._sent += count
        assert self._producer.flush(30) == 0

    def _write(self) -> None:
        while not self._ended.wait(0.01):
            self._send(RECORDS_A_SECOND // 100)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)


@pytest.fixture
def topics(topic: Callable[..., str]) -> tuple[str, str]:
    return topic(PARTITIONS, "in"), topic(PARTITIONS, "out")


def job_file(
    folder: Path, bootstrap: str, app: str, topics: Sequence[str], mode: str, **reads: Any
) -> Path:
    """Write what the README shows, with nothing said about where to begin but in `reads`."""
    path = folder / "job.toml"
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topics[0]}
    if reads:
        given = {"bootstrap_servers": bootstrap, "subscribe": topics[0], **reads}
        source = KafkaSource(**given).to_options()
    lines = "\n".join(f"{json.dumps(name)} = {json.dumps(text)}" for name, text in source.items())
    path.write_text(f"""
[app]
id = "{app}"
checkpoint = "state"
mode = "{mode}"
master = "local[2]"
[source]
{lines}
[[sink]]
kafka.bootstrap.servers = "{bootstrap}"
topic = "{topics[1]}"
""")
    return path


def number_of(record: Record) -> int:
    return int(record.value or b"-1")


def assert_dense_from_the_start(output: Sequence[Record]) -> None:
    """Nothing from before the run, and from the first record on each partition without a hole."""
    numbers = defaultdict(list)
    for record in output:
        number = number_of(record)
        numbers[number % PARTITIONS].append(number)
    assert numbers
    for found in numbers.values():
        first, last = min(found), max(found)
        assert first >= BEFORE, f"the output begins with record {first}"
        assert sorted(found) == list(range(first, last + 1, PARTITIONS))


def some(seen: Sequence[Record]) -> bool:
    """Enough to be of several checkpoints."""
    return len(seen) >= 2_000


# In micro-batches it is a journey: journeys/test_first_start.py.
@pytest.mark.parametrize("mode", sampled(MODES, CONTINUOUS))
def test_a1_sparkonce_run_begins_where_the_topic_ends(
    tmp_path: Path, bootstrap: str, application_id: str, topics: tuple[str, str], mode: str
):
    path = job_file(tmp_path, bootstrap, application_id, topics, mode)
    reader = Follower(bootstrap, topics[1])
    with Busy(bootstrap, topics[0]), reader, running(path) as job:
        reader.until(some, timeout=PATIENCE_S)
        assert job.terminate() == 0, job.text

    assert_dense_from_the_start(read_committed(bootstrap, topics[1]))


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    def crash(reached: str, _: int) -> None:
        if reached == point:
            crash_points.install(None)
            raise SparkOnceError(point)

    crash_points.install(crash)
    try:
        yield
    finally:
        crash_points.install(None)


@dataclass(frozen=True)
class Pipeline:
    """One application; each `driver` is a run of its own, in this process."""

    spark: SparkSession
    bootstrap: str
    app: str
    folder: Path
    topics: tuple[str, str]

    def driver(self, mode: str = MICRO_BATCH, **options: Any) -> ArrowPipeline:
        """Make a driver; `source` has options of the source."""
        source: dict[str, Any] = options.pop("source", {})
        return arrow_pipeline(
            self.spark,
            app_id=self.app,
            checkpoint=self.folder / "state",
            source=KafkaSource(
                **{"bootstrap_servers": self.bootstrap, "subscribe": self.topics[0], **source}
            ),
            sink=KafkaSink(bootstrap_servers=self.bootstrap, topic=self.topics[1]),
            mode=mode,
            restart_strategy="none",
            **options,
        )

    def read_until(self, condition: Callable[[Sequence[Record]], bool], mode: str, **source: Any):
        """Run a driver until another reader has seen enough of its output, then stop it."""
        driver = self.driver(mode, source=source)
        with Follower(self.bootstrap, self.topics[1]) as reader:
            driver.start()
            reader.until(condition, timeout=PATIENCE_S)
            driver.request_stop()
            driver.wait()


@pytest.fixture
def pipeline(
    spark: SparkSession,
    bootstrap: str,
    application_id: str,
    tmp_path: Path,
    topics: tuple[str, str],
) -> Pipeline:
    return Pipeline(spark, bootstrap, application_id, tmp_path, topics)


#: In batch 0, one after the other on one checkpoint folder; then the ends of two starts.
POINTS = ("batch_started", "committables_collected", "prepared_checked", "decision_durable")


@long  # `unit/test_source_stream.py` plans batch 0 again in `make test`
def test_a1_a_crash_at_each_point_of_batch_0_moves_nothing(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
):
    """Nor does an option that says later that it shall begin elsewhere; one line tells it."""
    with Busy(pipeline.bootstrap, pipeline.topics[0]):
        for point in POINTS:
            with dying_at(point), pytest.raises(SparkOnceError, match=point):
                pipeline.driver().run()
        pipeline.driver(trigger="available-now").run()
        assert "is not used for" not in caplog.text
        pipeline.read_until(some, MICRO_BATCH, starting_offsets="earliest")
    assert caplog.text.count("startingOffsets=earliest is not used for") == 1

    assert_dense_from_the_start(read_committed(pipeline.bootstrap, pipeline.topics[1]))


#: Other ways to say "latest" than the default: each finds another place at every look.
LATEST: dict[str, Callable[[str], dict[str, Any]]] = {
    "pattern": lambda topic: {"subscribe": (), "subscribe_pattern": f"{topic[:-1]}."},
    "partitions": lambda topic: {"subscribe": (), "assign": {topic: [0, 1]}},
    "a time to come": lambda _: {
        "starting_timestamp": int(time.time() * 1000) + 3_600_000,
        "unmatched_timestamp": "latest",
    },
    "times to come": lambda topic: {
        "starting_offsets_by_timestamp": json.dumps(
            {topic: dict.fromkeys("01", int(time.time() * 1000) + 3_600_000)}
        ),
        "unmatched_timestamp": "latest",
    },
    "a topic's end": lambda topic: {"starting_offsets": json.dumps({topic: "latest"})},
    "a new group": lambda topic: {"starting_group": f"g-{topic}", "starting_offsets": "latest"},
}


#: Of these the process is killed; of the others it fails, which takes a third of the time.
KILLED = ("pattern", "times to come")


@long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("latest", LATEST)
def test_a1_each_kind_of_start_is_resolved_once(pipeline: Pipeline, mode: str, latest: str):
    """It dies at each step of the first start. The second death comes after the look: the output
    begins with exactly the records that were the next ones then.
    """
    reads = LATEST[latest](pipeline.topics[0])
    dies = is_killed if latest in KILLED else fails
    with Busy(pipeline.bootstrap, pipeline.topics[0]):
        dies(pipeline, mode, reads, "recovery_settled")
        dies(pipeline, mode, reads, "committables_collected")
        log = read_log(LocalFileBackend(pipeline.folder / "state" / "decisions"))
        begins = {split_key(name)[1]: at for name, at in parse_offsets(log.start[0]).items()}
        dies(pipeline, mode, reads, "decision_durable")
        pipeline.read_until(some, mode, **reads)

    found = read_committed(pipeline.bootstrap, pipeline.topics[1])
    assert_dense_from_the_start(found)
    first = {n % PARTITIONS: n for n in sorted(map(number_of, found), reverse=True)}
    assert first == {part: part + PARTITIONS * at for part, at in begins.items()}


def fails(pipeline: Pipeline, mode: str, reads: dict[str, Any], point: str) -> None:
    with dying_at(point), pytest.raises(SparkOnceError, match=point):
        pipeline.driver(mode, source=reads).run()


def is_killed(pipeline: Pipeline, mode: str, reads: dict[str, Any], point: str) -> None:
    names = pipeline.bootstrap, pipeline.app, pipeline.topics
    path = job_file(pipeline.folder, *names, mode, **reads)
    with running(path, SPARKONCE_CRASH_AT=point) as job:
        assert job.wait() == -signal.SIGKILL, job.text


@long
def test_a1_a_continuous_pipeline_from_python(pipeline: Pipeline):
    with Busy(pipeline.bootstrap, pipeline.topics[0]):
        pipeline.read_until(some, CONTINUOUS)

    assert_dense_from_the_start(read_committed(pipeline.bootstrap, pipeline.topics[1]))


def make_anew(bootstrap: str, topic: str) -> None:
    """Delete a topic and create another one of its name, as a person does with two commands."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    # Else the records go into the old one.
    until(lambda: topic not in admin.list_topics(timeout=30).topics, 60.0, pause_s=0.1)
    deadline = Deadline(60.0)
    while (error := _created(admin, topic)) is not None:
        assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS  # it is still being deleted
        assert not deadline.expired()
        deadline.pause(0.1)


def _created(admin: AdminClient, topic: str) -> KafkaError | None:
    try:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    except KafkaException as error:
        refused: KafkaError = error.args[0]
        return refused
    return None


def put(pipeline: Pipeline, numbers: range) -> None:
    """Write records into the source, by turns."""
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for number in numbers:
        producer.produce(pipeline.topics[0], b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("mode", sampled(MODES, CONTINUOUS))
def test_a7_a_topic_that_was_made_anew_is_not_read_on_from_the_old_offset(
    pipeline: Pipeline, mode: str
):
    def seen(count: int) -> Callable[[Sequence[Record]], bool]:
        return lambda records: len(records) >= count

    def output() -> list[int]:
        records = read_committed(pipeline.bootstrap, pipeline.topics[1])
        return sorted(int(record.value or b"-1") for record in records)

    put(pipeline, range(100))
    pipeline.read_until(seen(100), mode, starting_offsets="earliest")
    make_anew(pipeline.bootstrap, pipeline.topics[0])
    put(pipeline, range(100, 400))

    if mode == MICRO_BATCH:  # as a stranger sees it
        names = pipeline.bootstrap, pipeline.app, pipeline.topics
        with running(job_file(pipeline.folder, *names, mode)) as job:
            assert job.wait() == 1
            said = job.text
    else:
        with pytest.raises(DataLossError) as raised:
            pipeline.driver(mode).run()
        said = str(raised.value)
    assert "created again" in said
    assert f"{pipeline.topics[0]} has the id" in said
    assert "failOnDataLoss=true" in said
    assert output() == list(range(100))

    pipeline.read_until(seen(400), mode, fail_on_data_loss=False)
    put(pipeline, range(400, 450))
    pipeline.read_until(seen(450), mode)  # with failOnDataLoss again: it is the same topic

    assert output() == list(range(450))
