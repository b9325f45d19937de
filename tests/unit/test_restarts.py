"""What a driver does about a failed run: plans the next one, waits for it, or gives up aloud."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.spark.restarts import Restarts
from connectors.spark.stuck_jobs import cancelled_after
from transactions import errors, events
from transactions.errors import BrokerUnavailableError, CheckpointTimeoutError, ConfigurationError

GONE = BrokerUnavailableError("No answer.", where="b:1", cause="down", option="x=1")


def session(*, stopped: bool = False) -> Any:
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))


def restarts(strategy: str, tolerable: int = 0) -> Restarts:
    return Restarts("app", strategy, tolerable_failed_checkpoints=tolerable)


def test_the_next_run_is_planned_published_and_begun():
    one = restarts("fixed-delay(attempts=1, delay=0)")
    found: list[events.Event] = []
    unsubscribe = events.subscribe(found.append)
    try:
        assert not one.pending
        one.failed(GONE, session(), in_checkpoint=False)
        assert one.pending
        assert one.wait(threading.Event(), 1.0)
    finally:
        unsubscribe()
    assert not one.pending
    assert [(e.kind, e.fields["attempt"], e.fields["cause"]) for e in found] == [
        ("restarted", 1, "BrokerUnavailableError: No answer.")
    ]


def test_a_stop_ends_the_wait():
    one = restarts("fixed-delay(attempts=1, delay=1h)")
    one.failed(GONE, session(), in_checkpoint=False)
    stopping = threading.Event()
    threading.Timer(0.01, stopping.set).start()
    assert not one.wait(stopping, 3600.0)
    assert one.pending


def test_giving_up_says_how_many_restarts_were_made_in_the_last_error():
    one = restarts("fixed-delay(attempts=2, delay=0)")
    for _ in range(2):
        one.failed(errors.PhaseOneError("first"), session(), in_checkpoint=True)
    with pytest.raises(BrokerUnavailableError) as caught:
        one.failed(GONE, session(), in_checkpoint=True)
    error = caught.value
    assert error.__cause__ is GONE
    assert error.where == "b:1; given up after 2 restart(s) by fixed-delay(attempts=2, delay=0s)"
    assert (error.what, error.cause, error.option) == (GONE.what, GONE.cause, GONE.option)
    with pytest.raises(RuntimeError) as foreign:
        one.failed(RuntimeError("a worker died"), session(), in_checkpoint=True)
    assert "after 2 restart(s)" in foreign.value.__notes__[0]


@pytest.mark.parametrize(
    ("strategy", "error", "spark"),
    [
        ("none", GONE, session()),
        ("exponential-delay", errors.FencedError("newer"), session()),
        ("exponential-delay", GONE, session(stopped=True)),
        ("exponential-delay", GONE, SimpleNamespace()),  # its JVM is gone
    ],
)
def test_without_a_restart_the_error_comes_as_it_was(strategy: str, error: Exception, spark: Any):
    one = restarts(strategy)
    with pytest.raises(type(error)) as caught:
        one.failed(error, spark, in_checkpoint=False)
    assert caught.value is error
    assert not one.pending


def test_a_completed_checkpoint_forgives_the_tolerable_ones():
    one = restarts("none", tolerable=1)
    one.failed(GONE, session(), in_checkpoint=True)
    one.checkpoint_completed()
    one.failed(GONE, session(), in_checkpoint=True)
    with pytest.raises(BrokerUnavailableError, match="after 2 restart"):
        one.failed(GONE, session(), in_checkpoint=True)


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigurationError, match="tolerable_failed_checkpoints=-1"):
        restarts("none", tolerable=-1)


def test_a_batch_in_time_is_left_alone_and_one_that_is_not_is_cancelled():
    cancelled: list[str] = []
    told = threading.Event()

    def cancel(group: str) -> None:
        cancelled.append(group)
        told.set()

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=cancel))
    with cancelled_after(60.0, spark, "run", 1):
        pass
    with pytest.raises(ValueError, match="a bug"), cancelled_after(60.0, spark, "run", 1):
        raise ValueError("a bug")
    assert cancelled == []
    watch = cancelled_after(0.001, spark, "run", 7)
    with pytest.raises(CheckpointTimeoutError) as caught, watch:
        assert told.wait(10)
        raise RuntimeError("Job 3 cancelled part of cancelled job group run")
    assert cancelled[0] == "run"
    error = caught.value
    assert "checkpoint 7" in error.where
    assert error.cause
    assert "checkpoint_timeout=0.001 s" in error.option
    assert isinstance(error.__cause__, RuntimeError)
