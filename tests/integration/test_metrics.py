"""The metrics of a running pipeline, as Prometheus reads them: over HTTP, while it runs."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.auditor import checkers
from tests.auditor.reader import read_committed
from tests.integration.job_process import PATIENCE_S, JobProcess, running
from tests.integration.metrics_view import scraped
from tests.tiers import long
from transactions.clock import Deadline
from transactions.events import Event, parse_event

PARTITIONS = 2
RECORDS = 40


@pytest.fixture
def job(bootstrap, topic, application_id, tmp_path):
    source, output = topic(PARTITIONS, "source"), topic(PARTITIONS, "output")
    path = tmp_path / "job.toml"

    def write(port: int) -> Path:
        path.write_text(f"""
[app]
id = "{application_id}"
checkpoint = "state"
master = "local[2]"
trigger = "0 seconds"
metrics_port = {port}
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "{source}"
startingOffsets = "earliest"
[[sink]]
kafka.bootstrap.servers = "{bootstrap}"
topic = "{output}"
name = "out"
""")
        return path

    return write, source, output


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"record %d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def events(run: JobProcess) -> list[Event]:
    return [event for line in run.lines if (event := parse_event(line))]


def scraped_until(run: JobProcess, **expected: float) -> dict[str, float]:
    """Scrape until the metrics have these values; a commit's markers need a moment."""
    deadline = Deadline(PATIENCE_S)
    while True:
        found = scraped(run.text)
        if all(found.get(name) == value for name, value in expected.items()):
            return found
        assert not deadline.expired(), f"{expected} in {found}\n{run.text}"
        deadline.pause(0.5)


@pytest.mark.parity(33, 59)
@long
def test_a_recovery_is_in_the_log_and_in_the_metrics(bootstrap, job, application_id):
    """Killed between decision and commit; the next run says what it did about it."""
    write, source, output = job
    produce(bootstrap, source, range(RECORDS))
    with running(write(0), SPARKONCE_CRASH_AT="decision_durable@0") as run:
        assert run.wait() == -signal.SIGKILL, run.text

    with running(write(0)) as run:
        run.until(lambda text: "event=recovered" in text)
        # Before any batch of its own: what the broker says of the source is behind by nothing.
        settled = scraped_until(run, input_lag_records=0, transactions_open=0)
        assert settled["transactions_recommitted_total"] >= 1
        produce(bootstrap, source, range(RECORDS, 2 * RECORDS))
        found = scraped_until(
            run, records_committed_total=RECORDS, transactions_pending=0, input_lag_records=0
        )
        found = scraped_until(
            run, transactions_open=0, output_stable_offset_lag_records=0, transactions_pending=0
        )
        told = {event.kind: event for event in events(run)}
        assert run.terminate() == 0, run.text

    assert found["recoveries_total"] == 1
    assert found["checkpoints_replayed_total"] == 1
    assert found["checkpoints_completed_total"] >= 2
    assert found["commit_latency_seconds_count"] >= 1
    assert found["checkpoint_phase_seconds_count"] >= 5
    assert found["checkpoints_failed_total"] == 0
    assert found["broker_reading_failures_total"] == 0
    assert told["recommitted"].fields["app"] == application_id
    assert told["recommitted"].fields["checkpoint"] == 0
    recommitted = told["recommitted"].fields["transactions"]
    assert recommitted == found["transactions_recommitted_total"]
    assert told["recovered"].fields["recommitted"] == recommitted
    history = checkers.history_of(
        read_committed(bootstrap, source),
        read_committed(bootstrap, output),
        identify=lambda record: record.value,
    )
    checkers.assert_exactly_once(history)


@pytest.mark.long
def test_a_taken_port_ends_the_start_before_any_data_moves(bootstrap, job):
    write, source, output = job
    produce(bootstrap, source, range(RECORDS))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = write(port)
        with running(path) as run:
            assert run.wait() == 2, run.text
    assert "ConfigurationError: The metrics endpoint cannot listen" in run.text
    for part in ("where:", f"127.0.0.1:{port}", "cause:", f"look at: metrics_port={port}"):
        assert part in run.text
    assert not (path.parent / "state" / "decisions").exists()
    assert read_committed(bootstrap, output) == []
