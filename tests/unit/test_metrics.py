"""Metrics: events in, the text of a scrape out, read back with Prometheus' own parser."""

from __future__ import annotations

import importlib
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from connectors.options.job_file import parse_job
from connectors.pipeline import metrics
from connectors.pipeline.broker_readings import BrokerReading, next_offsets
from connectors.pipeline.driver_metrics import ONLY_THIS_MACHINE, DriverMetrics
from connectors.pipeline.metrics import BrokerMetrics, EventMetrics
from connectors.pipeline.metrics_endpoint import LIVE, READY, MetricsEndpoint
from tests.waiting import until
from transactions.checkpoint_watch import tell_completed, tell_decided, tell_failed
from transactions.clock import Deadline
from transactions.errors import BrokerUnavailableError, ConfigurationError, PhaseOneError
from transactions.events import KINDS, Event, publish, subscribe

from .samples import committable

PHASES = {"start": 1.0, "write": 700.0, "check": 10.0, "decide": 20.0, "commit": 30.0}


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def monotonic(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return self.ms

    def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class Scrape:
    """The metrics of application `app`, fed by published events."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.events = EventMetrics("app", self.registry, clock=self.clock)

    def __call__(self, name: str, **labels: str) -> float | None:
        found = samples(generate_latest(self.registry).decode())
        return found.get((f"sparkonce_{name}", frozenset({"app": "app", **labels}.items())))


@pytest.fixture
def scrape() -> Iterator[Scrape]:
    made = Scrape()
    unsubscribe = subscribe(made.events.hear)
    yield made
    unsubscribe()


COUNTED = [
    ("recommitted", {"transactions": 3}, {"transactions_recommitted_total": 3}),
    ("aging", {"transactions": 2}, {"transactions_aging_total": 2}),
    ("lost", {"transactions": 2}, {"transactions_lost_total": 2}),
    (
        "healed",
        {"transactions": 2, "records": 50},
        {"transactions_healed_total": 2, "records_healed_total": 50},
    ),
    ("heal_refused", {}, {"heals_refused_total": 1}),
    ("hidden_commit", {"partitions": 2}, {"commits_hidden_total": 2}),
    ("recovered", {"recommitted": 0, "swept": 1}, {"recoveries_total": 1}),
    ("restarted", {"attempt": 2}, {"restarts_total": 1}),
    ("refused", {"sink": "out", "records": 3}, {"records_refused_total": 3}),
    ("retried", {}, {"retries_total": 1}),
    ("fenced", {"by": "host/1"}, {"fenced_total": 1}),
    ("rescaled", {"checkpoint": 4, "tasks": 1, "parallelism": 8}, {"rescales_total": 1}),
    ("savepoint", {"checkpoint": 4, "place": "/s/app-4"}, {"savepoints_total": 1}),
    ("restored", {"checkpoint": 4, "savepoint": "c0ffee"}, {"restores_total": 1}),
    ("decided", {"transactions": 4, "records": 9}, {"transactions_decided_total": 4}),
    ("checkpoint_failed", {"cause": "disk full"}, {"checkpoints_failed_total": 1}),
    (
        "checkpoint_completed",
        {"checkpoint": 7, "transactions": 4, "records": 9, "replayed": 1},
        {
            "checkpoints_completed_total": 1,
            "checkpoints_replayed_total": 1,
            "transactions_committed_total": 4,
            "records_committed_total": 9,
            "last_checkpoint_id": 7,
        },
    ),
]


@pytest.mark.parametrize(("kind", "fields", "expected"), COUNTED, ids=[one[0] for one in COUNTED])
def test_each_event_is_counted_once(scrape, kind, fields, expected):
    for name in expected:
        assert scrape(name) in (0, -1), "there from the start, so that a first increase is seen"
    publish(kind, app="app", **fields)
    publish(kind, app="app-2", **fields)  # another application in the same process
    assert {name: scrape(name) for name in expected} == expected


def test_every_kind_of_event_is_a_metric():
    counted = {kind for kind, _, _ in COUNTED}
    assert counted | {"recovering", "swept"} == set(KINDS)


def test_swept_transactions_by_sink(scrape):
    publish("swept", app="app", sink="out", count=2, ids="app.l.1.p.0 app.l.1.p.1")
    publish("swept", app="app", sink="out", count=1, ids="app.l.1.p.0")
    assert scrape("transactions_swept_total", sink="out") == 3


def test_phases_become_histograms(scrape):
    tell_completed("app", 5, PHASES, records=9, transactions=4, replayed=0)
    assert scrape("commit_latency_seconds_count") == 1
    assert scrape("commit_latency_seconds_sum") == pytest.approx(0.060)
    assert scrape("checkpoint_duration_seconds_sum") == pytest.approx(0.761)
    assert scrape("checkpoint_phase_seconds_sum", phase="write") == pytest.approx(0.7)
    assert scrape("commit_latency_seconds_bucket", le="0.05") == 0
    assert scrape("commit_latency_seconds_bucket", le="0.1") == 1
    assert scrape("last_checkpoint_timestamp_seconds") == scrape.clock.ms / 1000
    tell_completed("app", 6, {}, records=0, transactions=0, replayed=1)  # finished, not made
    assert scrape("commit_latency_seconds_count") == 1
    assert scrape("checkpoints_completed_total") == 2


def pending(scrape: Scrape) -> tuple[float | None, float | None]:
    age = scrape("transactions_pending_oldest_age_seconds")
    return scrape("transactions_pending"), age


def test_pending_from_the_decision_until_it_is_proven(scrape):
    assert pending(scrape) == (0, 0)
    started = [scrape.clock.ms - 7000, scrape.clock.ms - 2000]
    tell_decided("app", 5, [committable(start_time_ms=ms) for ms in started], scrape.clock.ms)
    assert pending(scrape) == (2, 7)
    scrape.clock.sleep(3)
    assert pending(scrape) == (2, 10)
    tell_failed("app", 5, PhaseOneError("the answer was lost"))
    assert pending(scrape) == (2, 10)
    tell_completed("app", 5, PHASES, records=9, transactions=2, replayed=0)
    assert pending(scrape) == (0, 0)


def test_pending_in_a_recovery_that_lasts(scrape):
    begun = scrape.clock.ms - 60_000
    publish("recovering", app="app", run=2, transactions=3, oldest_start_ms=begun)
    assert pending(scrape) == (3, 60)
    publish("recovered", app="app", run=2, transactions=3, lost=1)
    assert pending(scrape) == (1, 60)  # waits to be healed
    publish("healed", app="app", transactions=1, records=4)
    publish("checkpoint_completed", app="app", checkpoint=5, replayed=1)
    assert pending(scrape) == (0, 0)


def test_pending_of_a_fenced_run_is_the_newer_runs(scrape):
    tell_decided("app", 5, [committable(start_time_ms=scrape.clock.ms)], scrape.clock.ms)
    publish("fenced", app="app", run=1, by="host/2", entry=9)
    assert pending(scrape) == (0, 0)


# --- the brokers ---------------------------------------------------------------------------------

READING = BrokerReading(
    open_transactions=2,
    oldest_open_ms=990_000,
    stable_lag={("out", "clean-1"): 5, ("out", "clean-0"): 0},
    latest={"in-topic-0": 100, "in-topic-1": 50},
)


class Brokers:
    """Answers when `answers` is set; fails when `reading` is None."""

    def __init__(self, reading: BrokerReading | None) -> None:
        self.reading = reading
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def read(self, deadline: Deadline) -> BrokerReading:
        self.asked += 1
        assert self.answers.wait(30)
        if self.reading is None:
            raise BrokerUnavailableError("no broker")
        return self.reading

    def close(self) -> None:
        """Nothing is held."""


def broker_samples(collector: BrokerMetrics):
    registry = CollectorRegistry()
    registry.register(collector)
    found = samples(generate_latest(registry).decode())
    return {
        (name.removeprefix("sparkonce_"), *(v for k, v in sorted(labels) if k != "app")): value
        for (name, labels), value in found.items()
    }


def test_what_the_brokers_say():
    clock = Clock()
    committed = {"in-topic-0": 40, "in-topic-1": 50, "gone-0": 3}
    collector = BrokerMetrics("app", Brokers(READING), lambda: committed, clock=clock)
    assert broker_samples(collector) == {
        ("broker_reading_age_seconds",): 0,
        ("broker_reading_failures_total",): 0,
        ("transactions_open",): 2,
        ("transactions_open_oldest_age_seconds",): 10,
        ("output_stable_offset_lag_records", "0", "out", "clean"): 0,
        ("output_stable_offset_lag_records", "1", "out", "clean"): 5,
        ("input_lag_records", "0", "in-topic"): 60,
        ("input_lag_records", "1", "in-topic"): 0,
    }


def test_scrapes_close_together_ask_the_brokers_once():
    clock, brokers = Clock(), Brokers(READING)
    collector = BrokerMetrics("app", brokers, dict, clock=clock)
    broker_samples(collector)
    broker_samples(collector)
    assert brokers.asked == 1
    clock.sleep(2)
    broker_samples(collector)
    assert brokers.asked == 2


def test_a_broker_that_fails_leaves_the_last_reading_and_its_age():
    clock, brokers = Clock(), Brokers(READING)
    collector = BrokerMetrics("app", brokers, dict, clock=clock)
    broker_samples(collector)
    brokers.reading = None
    clock.sleep(30)
    found = broker_samples(collector)
    assert found["broker_reading_age_seconds",] == 30
    assert found["broker_reading_failures_total",] == 1
    assert found["transactions_open",] == 2


def test_a_broker_that_does_not_answer_does_not_hold_a_scrape(monkeypatch):
    monkeypatch.setattr(metrics, "_PATIENCE_S", 0.05)
    clock, brokers = Clock(), Brokers(READING)
    brokers.answers.clear()
    collector = BrokerMetrics("app", brokers, dict, clock=clock)
    assert set(broker_samples(collector)) == {
        ("broker_reading_age_seconds",),
        ("broker_reading_failures_total",),
    }
    broker_samples(collector)
    assert brokers.asked == 1, "one question at a time"
    brokers.answers.set()
    until(lambda: ("transactions_open",) in broker_samples(collector))


def test_offsets_that_two_sources_read_count_from_the_smaller_one():
    assert next_offsets(['{"in":{"0":7,"1":9}}', '{"in":{"0":5}}']) == {"in-0": 5, "in-1": 9}


# --- the endpoint --------------------------------------------------------------------------------


def endpoint(port: int) -> MetricsEndpoint:
    return MetricsEndpoint("app", port, ONLY_THIS_MACHINE, reader=Brokers(READING), committed=dict)


def fetched(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return samples(answer.read().decode())


def test_the_endpoint_serves_on_a_free_port_and_ends(caplog):
    with caplog.at_level("INFO", "sparkonce.metrics"):
        served = endpoint(0)
    try:
        assert f"metrics of app: {served.url}" in caplog.text
        publish("recovered", app="app")
        found = fetched(served.url)
        assert found["sparkonce_recoveries_total", frozenset({("app", "app")})] == 1
        assert ("sparkonce_transactions_open", frozenset({("app", "app")})) in found
    finally:
        served.close()
        served.close()  # again is harmless
    with pytest.raises(OSError, match="refused"):
        fetched(served.url)


def test_probes_ask_no_broker():
    """A broker that is down is no reason to kill a driver."""
    brokers = Brokers(READING)
    served = MetricsEndpoint("app", 0, ONLY_THIS_MACHINE, reader=brokers, committed=dict)
    try:
        assert probed(served, LIVE) == (200, "ok\n")
        assert probed(served, READY) == (503, "recovering\n")
        publish("recovering", app="app", transactions=2, oldest_start_ms=1)
        publish("recovered", app="app", lost=0)
        assert probed(served, READY) == (200, "ok\n")
        assert not brokers.asked
    finally:
        served.close()


@pytest.mark.parametrize(
    ("events", "ready"),
    [
        ([("recovered", {"lost": 0})], True),
        ([("recovered", {"lost": 1})], False),  # healing follows
        ([("recovered", {"lost": 1}), ("checkpoint_completed", {"checkpoint": 3})], True),
        ([("recovered", {"lost": 0}), ("fenced", {})], False),
        ([("recovered", {"lost": 0}), ("recovering", {"transactions": 1})], False),
        ([("recovered", {"lost": 0, "app": "another"})], False),
    ],
)
def test_a_driver_is_ready_when_nothing_is_left_of_an_earlier_run(events, ready):
    heard = EventMetrics("app", CollectorRegistry())
    for kind, fields in events:
        heard.hear(Event(kind, {"app": "app", **fields}))
    assert heard.ready is ready


def probed(served: MetricsEndpoint, path: str) -> tuple[int, str]:
    url = served.url.removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


def test_a_host_that_is_not_of_this_machine():
    with pytest.raises(ConfigurationError, match=r"metrics_host=192\.0\.2\.1"):
        MetricsEndpoint("app", 0, "192.0.2.1", reader=Brokers(READING), committed=dict)


def test_a_taken_port_is_an_error_of_four_parts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as caught:
            endpoint(port)
    text = str(caught.value)
    assert "cannot listen" in text
    assert f"127.0.0.1:{port}" in text
    assert "Address already in use" in text
    assert f"metrics_port={port}" in text


def test_a_number_that_is_no_port():
    with pytest.raises(ConfigurationError, match="metrics_port=65536"):
        endpoint(65536)


def test_without_the_library_a_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for name in ("metrics", "metrics_endpoint"):
        monkeypatch.delitem(sys.modules, f"connectors.pipeline.{name}")
    driver_metrics = DriverMetrics("app", 0)
    with pytest.raises(ConfigurationError, match=r"'\.\[metrics\]'"):
        driver_metrics.open([], [], lambda: None)
    DriverMetrics("app", None).open([], [], lambda: None)  # needs nothing
    monkeypatch.undo()
    assert importlib.import_module("connectors.pipeline.metrics") is metrics


def test_events_are_no_longer_heard_after_the_end():
    registry = CollectorRegistry()
    heard = EventMetrics("app", registry)
    unsubscribe = subscribe(heard.hear)
    unsubscribe()
    publish("fenced", app="app")
    assert 'sparkonce_fenced_total{app="app"} 0.0' in generate_latest(registry).decode()
    heard.hear(Event("fenced"))  # an event that names no application is this one's
    assert 'sparkonce_fenced_total{app="app"} 1.0' in generate_latest(registry).decode()


# --- what users read -----------------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")


def test_every_event_and_metric_is_in_the_docs_and_no_other():
    registry = CollectorRegistry()
    EventMetrics("app", registry)
    registry.register(BrokerMetrics("app", Brokers(READING), lambda: {"in-topic-0": 1}))
    there = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if not family.name.endswith("_created")  # the library adds them
    }
    assert set(re.findall(r"sparkonce_[a-z_]+", DOCS)) == there
    assert set(re.findall(r"^\| `(?!sparkonce_)([a-z_]+)` \|", DOCS, re.MULTILINE)) == set(KINDS)


@pytest.mark.parametrize(("text", "port"), [("", None), ("metrics_port = 0", 0)])
def test_the_port_in_a_job_file(text, port):
    job = f"""
        [app]
        id = "app"
        checkpoint = "state"
        {text}
        [source]
        kafka.bootstrap.servers = "b:9092"
        subscribe = "in"
        [[sink]]
        kafka.bootstrap.servers = "b:9092"
        topic = "out"
    """
    assert parse_job(job, Path("/jobs/job.toml"), {}).option("metrics_port") == port
