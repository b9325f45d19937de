"""`sparkonce verify` on a real broker: the clean topics pass, each fault fails by its name (A6)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.cli.verify import command
from connectors.kafka.source.offsets import format_offsets
from connectors.operations.verdict import Verdict
from connectors.operations.verify import verify
from connectors.operations.verify_options import VerifyOptions
from tests.tiers import sampled
from transactions.decision_log import DecisionLog
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DataLossError,
    MissingTopicError,
)
from transactions.log_entries import Start
from transactions.log_location import LogLocation

PARTITIONS = 2
RECORDS = 200

Row = tuple[int, int]
"""Output partition and number of the record."""

CLEAN: list[Row] = [(number % PARTITIONS, number) for number in range(RECORDS)]


def value(number: int, side: str) -> bytes:
    """The pipeline changes the value, but for the field id."""
    return json.dumps({"id": number, "side": side}).encode()


@contextmanager
def transaction(bootstrap: str, transactional_id: str) -> Iterator[Producer]:
    """An open transaction; the body ends it, or leaves it open until the producer is fenced."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer


def put(producer: Producer, topic: str, rows: Iterable[Row], side: str = "out") -> None:
    """Produce records and wait until the broker has them."""
    for partition, number in rows:
        key = str(number).encode()
        producer.produce(topic, value(number, side), key, partition, headers={"n": key})
    assert producer.flush(30) == 0


@pytest.fixture
def pipeline(bootstrap: str, topic: Callable[..., str]) -> Callable[[list[Row]], tuple[str, str]]:
    """Fill an input topic, and an output topic with the given rows in committed transactions."""

    def fill(rows: list[Row]) -> tuple[str, str]:
        source, sink = topic(PARTITIONS, name="in"), topic(PARTITIONS, name="out")
        put(Producer({"bootstrap.servers": bootstrap}), source, CLEAN, side="in")
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            with transaction(bootstrap, f"fill-{sink}") as producer:
                put(producer, sink, part)
                producer.commit_transaction(30)
        return source, sink

    return fill


def judged(bootstrap: str, topics: tuple[str, str], **changed: object) -> Verdict:
    """Verify with json:id, order included."""
    options: dict[str, object] = {
        "kafka": {"bootstrap.servers": bootstrap},
        "inputs": (topics[0],),
        "outputs": (topics[1],),
        "key_id": "json:id",
        "ordered": True,
        "timeout": 20.0,
    }
    return verify(VerifyOptions(**(options | changed)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key_id", "output_key_id"),
    sampled(
        [("json:id", None), ("json:id", "key"), ("header:n", "json:id")], ("header:n", "json:id")
    ),
)
@pytest.mark.parametrize("ordered", [False, True], ids=["sum", "search"])
def test_a6_a_clean_output_passes(bootstrap, pipeline, key_id, output_key_id, ordered):
    """Control records at both ends of every partition do not count and do not hang the reader."""
    topics = pipeline(CLEAN)
    ids = {"key_id": key_id, "output_key_id": output_key_id}
    # Where identities may repeat, sums are the whole proof.
    verdict = judged(bootstrap, topics, **ids, ordered=ordered, allow_repeats=not ordered)
    assert (verdict.anomalies, verdict.still_growing) == ({}, ())
    assert (verdict.records_in, verdict.records_out) == (RECORDS, RECORDS)
    assert verdict.searched == ordered


def without(number: int) -> list[Row]:
    """The clean rows but one."""
    return [row for row in CLEAN if row[1] != number]


SWAPPED = [(p, {50: 52, 52: 50}.get(number, number)) for p, number in CLEAN]
FAULTS = [
    ("duplicated", [*CLEAN, (0, 50)], "-0@25"),
    ("lost at the tail", without(RECORDS - 1), "-1@99"),
    ("lost in the middle", without(50), "-0@25"),
    ("out of order", SWAPPED, "-0@25"),
    ("foreign", [*CLEAN, (0, 9999)], "-0@"),
]


@pytest.mark.parametrize(("name", "rows", "place"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a6_one_fault_fails_by_its_name_only(bootstrap, pipeline, name, rows, place):
    """And the verdict says where."""
    verdict = judged(bootstrap, pipeline(rows))
    assert not verdict.ok
    assert verdict.failures == {name: 1}
    (example,) = verdict.examples[name]
    assert place in str(example)


def test_a6_an_aborted_transaction_is_not_counted(bootstrap, pipeline):
    """K10: its records are in the log, and no reader of committed records sees them."""
    topics = pipeline(CLEAN)
    with transaction(bootstrap, f"abort-{topics[1]}") as producer:
        put(producer, topics[1], [(0, 50), (1, 9999)])
        producer.abort_transaction(30)
    verdict = judged(bootstrap, topics)
    assert verdict.ok, verdict
    assert verdict.records_out == RECORDS


def test_a6_an_aborted_value_made_visible_is_foreign(bootstrap, pipeline):
    """An attempt that was to be aborted, and was committed, with a record nobody sent."""
    topics = pipeline(CLEAN)
    with transaction(bootstrap, f"wrong-{topics[1]}") as producer:
        put(producer, topics[1], [(0, 7777)])
        producer.commit_transaction(30)
    assert judged(bootstrap, topics).failures == {"foreign": 1}


def test_s11_an_open_transaction_fails_by_name_even_when_nothing_else_does(bootstrap, pipeline):
    """All records are visible, but readers would stop before what comes next."""
    topics = pipeline(CLEAN)
    with transaction(bootstrap, f"open-{topics[1]}") as producer:
        put(producer, topics[1], [(1, 9999)])
        verdict = judged(bootstrap, topics, timeout=5.0)
        producer.abort_transaction(30)
    assert verdict.failures == {"open transaction": 1}
    (example,) = verdict.examples["open transaction"]
    assert f"{topics[1]}-1: readers stop at" in str(example)
    assert judged(bootstrap, topics).ok


def test_a_filter_passes_only_when_missing_records_are_allowed(bootstrap, pipeline):
    """--allow-missing: what is there is still there once, and from the input."""
    topics = pipeline([row for row in CLEAN if row[1] % 3])
    assert not judged(bootstrap, topics).ok
    verdict = judged(bootstrap, topics, allow_missing=True)
    assert verdict.ok
    assert sum(verdict.anomalies.values()) == RECORDS - verdict.records_out


def test_records_without_identity_leave_no_verdict(bootstrap, pipeline):
    """They are counted on both sides and named."""
    verdict = judged(bootstrap, pipeline(CLEAN), key_id="json:no_such_field", ordered=False)
    assert verdict.failures == {"without identity": 2 * RECORDS}
    assert verdict.uncompared


def test_several_topics_are_one_bag(bootstrap, pipeline, topic):
    """A pipeline that routes into two topics."""
    source, sink = pipeline([row for row in CLEAN if row[1] % 3])
    second = topic(name="out2")
    producer = Producer({"bootstrap.servers": bootstrap})
    put(producer, second, [(0, row[1]) for row in CLEAN if not row[1] % 3])
    assert judged(bootstrap, (source, sink), outputs=(sink, second)).ok


def test_an_input_that_grows_is_named(bootstrap, pipeline):
    """What comes while the records are read does not count; the ends are fixed by then."""
    topics = pipeline(CLEAN)
    producer = Producer({"bootstrap.servers": bootstrap})
    steps = []

    def grow(step: str, done: int, total: int) -> None:
        if not steps:
            put(producer, topics[0], [(1, 4242)], side="in")
        steps.append((step, done, total))

    options = VerifyOptions(
        kafka={"bootstrap.servers": bootstrap},
        inputs=(topics[0],),
        outputs=(topics[1],),
        key_id="json:id",
    )
    verdict = verify(options, progress=grow)
    assert verdict.ok
    assert verdict.records_in == RECORDS
    assert verdict.still_growing == (f"{topics[0]}-1",)
    assert ("input", RECORDS, RECORDS) in steps


def test_records_that_retention_removes_meanwhile_stop_the_proof(bootstrap, pipeline):
    """Both in the first reading, and between it and the search: there is no verdict then."""

    def delete_at(when: tuple[str, int]):
        steps: list[str] = []

        def progress(step: str, done: int, total: int) -> None:
            steps.extend([step] if done == 0 else [])
            if (step, steps.count(step)) == when and done == 0:
                admin = AdminClient({"bootstrap.servers": bootstrap})
                removed = admin.delete_records([TopicPartition(topics[0], 0, 10)])
                assert all(future.result().low_watermark == 10 for future in removed.values())

        return progress

    for when in (("input", 1), ("input", 2)):
        topics = pipeline(without(50))
        options = VerifyOptions(
            kafka={"bootstrap.servers": bootstrap},
            inputs=(topics[0],),
            outputs=(topics[1],),
            key_id="json:id",
            allow_repeats=True,  # so that there are two readings
        )
        with pytest.raises(DataLossError, match=f"{topics[0]}-0"):
            verify(options, progress=delete_at(when))


def test_empty_topics_prove_nothing(bootstrap, topic):
    """As after a pipeline that began at the end of its input and has moved no record."""
    code, text = run(bootstrap, (topic(), topic(3)))
    assert (code, "No verdict: no record was compared" in text) == (2, True), text


def test_a_loss_and_a_duplicate_of_one_key_are_not_taken_for_success(bootstrap, topic):
    """Both records of an account go in, the first one comes out twice: each key as often."""
    topics = topic(name="in"), topic(name="out")
    producer = Producer({"bootstrap.servers": bootstrap})
    for name, value in zip([*topics, *topics], [b"v1", b"V1", b"v2", b"V1"], strict=True):
        producer.produce(name, value, b"acct-7", 0)
    assert producer.flush(30) == 0
    code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, "No verdict: identity repeats (2)" in text) == (2, True), text
    assert f"{topics[0]}-0@1" in text
    assert "--allow-repeats" in text
    code, text = run(bootstrap, topics, "--key-id", "key", "--allow-repeats")
    assert (code, "each identity as often as in the input, by key" in text) == (0, True), text


def test_records_that_retention_has_removed_are_named(bootstrap, pipeline):
    """They are in the output, so they look foreign."""
    topics = pipeline(CLEAN)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for removed in admin.delete_records([TopicPartition(topics[0], 0, 10)]).values():
        assert removed.result().low_watermark == 10
    code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, "The proof fails: foreign (10)" in text) == (1, True), text
    assert f"{topics[0]}-0: offsets 0 to 9" in text


def test_a_topic_that_is_compacted_is_named(bootstrap, topic):
    """The broker may remove older values of a key, on either side, and a real duplicate."""
    topics = topic(name="in", **{"cleanup.policy": "compact,delete"}), topic(name="out")
    for name in topics:
        put(Producer({"bootstrap.servers": bootstrap}), name, [(0, 1)])
    code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, f"Compacted (cleanup.policy): {topics[0]}." in " ".join(text.split())) == (
        0,
        True,
    ), text


def test_records_of_the_input_behind_an_open_transaction_are_named(bootstrap, pipeline):
    """No reader has them, so they do not count; the proof says so."""
    topics = pipeline(CLEAN)
    with transaction(bootstrap, f"open-{topics[0]}") as producer:
        put(producer, topics[0], [(1, 9999)], side="in")
        code, text = run(bootstrap, topics, "--key-id", "key")
        producer.abort_transaction(30)
    assert (code, "The proof holds" in text) == (0, True), text
    assert f"{topics[0]}-1: readers stop at 100, the log ends at 101" in " ".join(text.split())


def test_a_missing_topic_is_named_and_not_created(bootstrap, topic):
    """Asking for it by name could create it."""
    there = topic()
    for _ in range(2):
        with pytest.raises(MissingTopicError, match="no-such-topic"):
            judged(bootstrap, (there, "no-such-topic"))


def test_an_unreachable_broker_is_an_error_in_time():
    """No verdict, and no endless wait."""
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        judged("127.0.0.1:1", ("a", "b"), timeout=1.0)


def test_an_unknown_client_setting_is_refused(bootstrap):
    """Librdkafka's refusal becomes ours."""
    with pytest.raises(ConfigurationError, match=r"no\.such"):
        judged(bootstrap, ("a", "b"), kafka={"bootstrap.servers": bootstrap, "no.such": "1"})


def run(bootstrap: str, topics: tuple[str, str], *more: str) -> tuple[int, str]:
    """The command as a user types it."""
    arguments = ["--bootstrap", bootstrap, "--input", topics[0], "--output", topics[1], *more]
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def test_exit_codes_of_the_command(bootstrap, pipeline):
    """0 the proof holds, 1 it fails, 2 no verdict."""
    topics = pipeline(CLEAN)
    code, text = run(bootstrap, topics, "--key-id", "json:id", "--ordered")
    assert (code, "The proof holds: exactly once" in text) == (0, True), text
    code, text = run(bootstrap, topics)  # the values differ, so no record is recognised
    assert (code, "--key-id record may not fit" in text) == (1, True), text
    code, text = run(bootstrap, (topics[0], "no-such-topic"))
    assert (code, "MissingTopicError" in text) == (2, True), text
    code, text = run("127.0.0.1:1", topics, "--timeout", "1")
    assert (code, "BrokerUnavailableError" in text) == (2, True), text


def begun_at(offset: int, topic: str, folder: Path) -> str:
    """The checkpoint folder of a pipeline that has begun with this offset of each partition."""
    place = LogLocation(folder / "decisions").backend()
    log = DecisionLog.open(place, application_id="flights", identity={})
    begins = {f"{topic}-{partition}": offset for partition in range(PARTITIONS)}
    log.begin(Start(sources=(format_offsets(begins),)))
    return str(folder)


def test_a_loss_behind_the_start_of_a_pipeline_fails(bootstrap, pipeline, tmp_path):
    """The first record that it read is the first that counts."""
    topics = pipeline(CLEAN[41:])
    checkpoint = begun_at(20, topics[0], tmp_path)
    code, text = run(bootstrap, topics, "--key-id", "key", "--checkpoint", checkpoint)
    assert (code, "The proof fails: lost in the middle (1)" in text) == (1, True), text


def test_where_a_pipeline_began_is_read_from_its_log(bootstrap, pipeline, tmp_path):
    """What lies before it does not count; no log, no verdict."""
    topics = pipeline(CLEAN[40:])
    begun_at(20, topics[0], tmp_path)
    code, text = run(bootstrap, topics, "--key-id", "key", "--checkpoint", str(tmp_path))
    assert (code, "The proof holds: exactly once" in text) == (0, True), text

    code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, "Without --job or --checkpoint" in text) == (1, True), text
    code, text = run(bootstrap, topics, "--checkpoint", str(tmp_path / "elsewhere"))
    assert (code, "There is no decision log in this checkpoint" in text) == (2, True), text
    assert not (tmp_path / "elsewhere").exists()


def test_results_of_an_earlier_query_in_the_same_topic(bootstrap, pipeline, tmp_path):
    """As behind `sparkonce migrate`: the pipeline itself is not to blame, and the hint says how the
    whole topic is proven.
    """
    topics = pipeline(CLEAN)
    checkpoint = begun_at(20, topics[0], tmp_path)
    code, text = run(bootstrap, topics, "--key-id", "key", "--checkpoint", checkpoint)
    assert (code, "The proof fails: foreign (40)" in text) == (1, True), text
    hint = "in place of --job and --checkpoint"
    assert hint in " ".join(text.split()), text
    code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, "exactly once" in text) == (0, True), text
    stray = pipeline([*CLEAN, (0, 9999)])
    code, text = run(bootstrap, stray, "--key-id", "key")
    assert (code, "foreign (1)" in text, hint in " ".join(text.split())) == (1, True, False), text


JOB = """
[app]
id = "flights"
checkpoint = "."

[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{input}"

[[sink]]
"kafka.bootstrap.servers" = "{bootstrap}"
topic = "{output}"
"""


def job_of(bootstrap: str, topics: tuple[str, str], folder: Path) -> str:
    path = folder / "flights.toml"
    path.write_text(JOB.format(bootstrap=bootstrap, input=topics[0], output=topics[1]))
    return str(path)


def test_a_job_file_says_topics_and_start(bootstrap, pipeline, tmp_path):
    """What lies before its start does not count, what lies behind it does."""
    topics = pipeline(CLEAN[40:])
    begun_at(20, topics[0], tmp_path)
    job = job_of(bootstrap, topics, tmp_path)
    result = CliRunner().invoke(command, ["--job", job, "--key-id", "key"])
    assert (result.exit_code, "exactly once" in result.output) == (0, True), result.output

    torn = (topics[0], pipeline(CLEAN[41:])[1])
    result = CliRunner().invoke(command, ["--job", job, "--output", torn[1], "--key-id", "key"])
    assert (result.exit_code, "lost in the middle (1)" in result.output) == (1, True)


def test_a_job_file_says_where_its_log_is(bootstrap, pipeline, tmp_path):
    """Not in the checkpoint: [decision_log]."""
    topics = pipeline(CLEAN[40:])
    begun_at(20, topics[0], tmp_path / "kept")
    job = Path(job_of(bootstrap, topics, tmp_path))
    job.write_text(job.read_text() + '[decision_log]\naddress = "kept/decisions"\n')
    result = CliRunner().invoke(command, ["--job", str(job), "--key-id", "key"])
    assert (result.exit_code, "exactly once" in result.output) == (0, True), result.output


def test_the_checkpoint_of_another_pipeline_is_refused(bootstrap, pipeline, tmp_path):
    """It would say nothing, and all of the input would count."""
    checkpoint = begun_at(20, "trains", tmp_path)
    code, text = run(bootstrap, pipeline(CLEAN), "--key-id", "key", "--checkpoint", checkpoint)
    assert (code, "belongs to another pipeline" in text, "trains" in text) == (2, True, True), text


def test_the_command_names_the_fault(bootstrap, pipeline):
    """In its last line, and in the table with the place."""
    code, text = run(bootstrap, pipeline([*CLEAN, (0, 50)]), "--key-id", "key")
    assert (code, "The proof fails: duplicated (1)" in text) == (1, True), text


def test_an_output_without_records_proves_nothing_of_a_filter(bootstrap, pipeline):
    """As of a pipeline that has never run: nothing of it was compared."""
    topics = pipeline([])
    code, text = run(bootstrap, topics, "--key-id", "key", "--allow-missing")
    assert (code, "No verdict: no record was compared" in text) == (2, True), text


def writes(bootstrap: str, topic: str, stop: Event) -> None:
    """A writer that never stops: some 200 records a second, each with a key of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in count(RECORDS):
        if stop.wait(0.005):
            break
        put(producer, topic, [(number % PARTITIONS, number)], side="in")


def copies(bootstrap: str, topics: tuple[str, str], twice: int, stop: Event) -> None:
    """A pipeline: a transaction is open nearly always. Each `twice`-th record is copied twice."""
    group = {"bootstrap.servers": bootstrap, "group.id": "copies", "enable.auto.commit": False}
    consumer = Consumer(group)
    consumer.assign([TopicPartition(topics[0], number, 0) for number in range(PARTITIONS)])
    with transaction(bootstrap, f"copies-{topics[1]}") as producer, contextlib.closing(consumer):
        while not stop.is_set():
            for message in consumer.consume(50, 0.3):
                number = int(message.key())
                again = 2 if twice and number > RECORDS and number % twice == 0 else 1
                put(producer, topics[1], [(message.partition(), number)] * again)
            producer.commit_transaction(30)
            producer.begin_transaction()
        producer.abort_transaction(30)


@contextmanager
def live(bootstrap: str, topics: tuple[str, str], *, twice: int = 0) -> Iterator[None]:
    """Two topics that are written as long as it is entered."""
    stop = Event()
    threads = [
        Thread(target=writes, args=(bootstrap, topics[0], stop)),
        Thread(target=copies, args=(bootstrap, topics, twice, stop)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_a_writer_and_a_pipeline_may_go_on(bootstrap, pipeline):
    """The first look comes before the pipeline has caught up, the last one long after."""
    topics = pipeline([])
    with live(bootstrap, topics):
        told = [run(bootstrap, topics, "--key-id", "key", "--ordered") for _ in range(3)]
    for code, text in told:
        assert (code, "The proof holds: exactly once" in text) == (0, True), text
    assert any("input, since then" in text for _, text in told)


def test_a_duplicate_of_a_record_that_came_meanwhile_fails(bootstrap, pipeline):
    """A pipeline that is wrong is not excused by being alive."""
    topics = pipeline([])
    with live(bootstrap, topics, twice=100):
        code, text = 0, ""
        for _ in range(20):
            if code == 0:
                code, text = run(bootstrap, topics, "--key-id", "key")
    assert (code, "The proof fails: duplicated (" in text) == (1, True), text
