"""Events: a line can be read back whole, and publishing one never fails."""

from __future__ import annotations

import logging
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as some

from transactions import events
from transactions.events import Event, parse_event, publish, subscribe

VALUES = some.text() | some.integers() | some.floats(allow_nan=False)


@pytest.fixture
def heard():
    """Collect events while a test runs."""
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    yield found
    unsubscribe()


def test_a_line_reads_as_key_value_pairs(caplog, heard):
    with caplog.at_level(logging.DEBUG, "sparkonce.events"):
        publish("swept", app="flights", sink="out", ids="a.1 a.2", count=2, took_ms=1.5)
    assert [record.getMessage() for record in caplog.records] == [
        'sparkonce event=swept app=flights sink=out ids="a.1 a.2" count=2 took_ms=1.5'
    ]
    fields = {"app": "flights", "sink": "out", "ids": "a.1 a.2", "count": 2, "took_ms": 1.5}
    assert heard == [Event("swept", fields)]


@given(some.dictionaries(some.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), VALUES))
def test_any_line_is_read_back_as_it_was(fields):
    line = Event("decided", fields).line()
    assert line.isascii()
    assert len(line.splitlines()) == 1
    back = parse_event(f"2026-11-21 10:00:00 INFO sparkonce.events: {line}\n")
    assert back == Event("decided", fields)
    assert {k: type(v) for k, v in back.fields.items()} == {k: type(v) for k, v in fields.items()}


@pytest.mark.parametrize("text", ["7", "-1.5", "1e9", "nan", "inf", "", "a b", 'a"b', "x=y", "ü\n"])
def test_text_stays_text(text):
    line = Event("retried", {"cause": text, "after": 1}).line()
    assert parse_event(line) == Event("retried", {"cause": text, "after": 1})


def test_not_a_number_is_a_number():
    back = parse_event(Event("retried", {"ms": math.nan, "most_ms": math.inf}).line())
    assert back is not None
    assert math.isnan(back.fields["ms"])
    assert back.fields["most_ms"] == math.inf


def test_lines_of_others_and_lines_cut_short():
    assert parse_event("INFO kafka: connected") is None
    assert parse_event("sparkonce event=") is None
    line = Event("swept", {"sink": "out", "ids": "a b"}).line()
    assert parse_event(line[:-2]) == Event("swept", {"sink": "out"})


def test_foreign_values_become_text(heard):
    publish("recovered", app=("a", "b"), done=True)  # type: ignore[arg-type]
    assert heard == [Event("recovered", {"app": "('a', 'b')", "done": 1})]


def test_publishing_never_raises(heard, caplog):
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def broken(event: Event) -> None:
        raise ValueError("listener")

    unsubscribe = subscribe(broken)
    try:
        publish("recovered", app=Unprintable())  # type: ignore[arg-type]
        publish("healed", app="flights")
    finally:
        unsubscribe()
    assert heard == [Event("recovered"), Event("healed", {"app": "flights"})]
    assert "a listener failed" in caplog.text
    before = len(caplog.records)
    publish("fenced", app="flights")
    assert len(caplog.records) == before + 1


def test_a_failing_log_handler_does_not_stop_the_listeners(heard):
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler = Broken()
    events.logger.addHandler(handler)
    try:
        publish("swept", sink="out")
    finally:
        events.logger.removeHandler(handler)
    assert heard == [Event("swept", {"sink": "out"})]


def test_a_listener_hears_once_per_subscription_until_it_ends():
    found: list[Event] = []
    first, second = subscribe(found.append), subscribe(found.append)
    publish("healed")
    assert len(found) == 2
    first()
    first()  # again is harmless
    publish("healed")
    assert len(found) == 3
    second()
    publish("healed")
    assert len(found) == 3


def test_threads_may_publish_and_subscribe_at_once():
    heard: list[Event] = []
    unsubscribe = subscribe(heard.append)

    def work() -> None:
        for number in range(100):
            gone = subscribe(lambda _: None)
            publish("decided", checkpoint=number)
            gone()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unsubscribe()
    assert len(heard) == 400
    assert events._listeners == {}
