"""Restart strategies under a virtual clock: Flink's own examples, bounds, and what is permanent."""

from __future__ import annotations

import random

import pytest

from connectors.wal.record_buffer import BufferCorruptedError
from tests.simulation.virtual_clock import VirtualClock
from transactions import errors
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.restart_strategy import (
    DEFAULT_RESTART_STRATEGY,
    RETRIED,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartPolicy,
    RestartStrategy,
    is_retried,
    parse_restart_strategy,
)

BROKER_GONE = errors.BrokerUnavailableError("gone")


class Highest:
    """A generator that always gives the upper end."""

    def uniform(self, a: float, b: float) -> float:
        return b


def policy(strategy: str, clock: VirtualClock | None = None, tolerable: int = 0) -> RestartPolicy:
    return RestartPolicy(
        parse_restart_strategy(strategy),
        random.Random(7),
        tolerable_failed_checkpoints=tolerable,
        clock=clock or VirtualClock(),
    )


def fail(
    policy: RestartPolicy, error: BaseException = BROKER_GONE, *, in_checkpoint: bool = True
) -> float | None:
    return policy.after_failure(error, in_checkpoint=in_checkpoint)


# -- what may be said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("none", NoRestart()),
        (" None ", NoRestart()),
        ("fixed-delay", FixedDelay(attempts=1, delay_s=1.0)),
        ("fixed-delay()", FixedDelay()),
        ("fixed_delay(attempts=3, delay=10s)", FixedDelay(attempts=3, delay_s=10.0)),
        ("fixed-delay( delay = 500 ms )", FixedDelay(delay_s=0.5)),
        ("failure-rate", FailureRate(max_failures=1, interval_s=60.0, delay_s=1.0)),
        (
            "failure-rate(max_failures=3, interval=5min, delay=10s)",
            FailureRate(max_failures=3, interval_s=300.0, delay_s=10.0),
        ),
        (
            "exponential-delay",
            ExponentialDelay(
                initial_s=1.0,
                max_s=60.0,
                multiplier=1.5,
                jitter=0.1,
                reset_threshold_s=3600.0,
                attempts=None,
            ),
        ),
        (
            "exponential-delay(initial=2, max=1 minute, multiplier=2, jitter=0, "
            "reset_threshold=1h, attempts=8)",
            ExponentialDelay(initial_s=2.0, multiplier=2.0, jitter=0.0, attempts=8),
        ),
        ("exponential-delay(attempts=infinite)", ExponentialDelay()),
        ("exponential-delay(attempts=10)", DEFAULT_RESTART_STRATEGY),
    ],
)
def test_a_text_is_a_strategy_and_back(text: str, strategy: RestartStrategy):
    parsed = parse_restart_strategy(text)
    assert parsed == strategy
    assert parse_restart_strategy(str(parsed)) == strategy
    assert parse_restart_strategy(strategy) is strategy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "with one of none, fixed-delay"),
        ("fixed-dely(attempts=3)", "did you mean 'fixed-delay'"),
        ("always", "known: none"),
        ("fixed-delay(attempts=3", "write name(option=value, ...)"),
        ("fixed-delay(attempt=3)", "did you mean 'attempts'"),
        ("fixed-delay(3)", "has no option '3'"),
        ("none(attempts=3)", "it has none"),
        ("fixed-delay(attempts=3, attempts=4)", "given twice"),
        ("fixed-delay(attempts=3.5)", "not a whole number"),
        ("fixed-delay(attempts=infinite)", "not a whole number"),
        ("fixed-delay(delay=soon)", "not a duration"),
        ("fixed-delay(delay=10 parsecs)", "not a duration"),
        ("fixed-delay(delay=)", "not a duration"),
        ("fixed-delay(attempts=-1)", "0 or more"),
        ("failure-rate(max_failures=0)", "1 or more"),
        ("failure-rate(interval=0s)", "longer than zero"),
        ("exponential-delay(multiplier=1)", "more than 1"),
        ("exponential-delay(multiplier=nan)", "not a number"),
        ("exponential-delay(jitter=2)", "0 to 1"),
        ("exponential-delay(initial=2min)", "not below initial=120s"),
        ("exponential-delay(attempts=0)", "1 or more"),
    ],
)
def test_a_wrong_text_is_refused_in_four_parts(text: str, says: str):
    with pytest.raises(ConfigurationError) as caught:
        parse_restart_strategy(text)
    error = caught.value
    for part in (error.what, error.where, error.cause, error.option):
        assert part, f"a part is missing in: {error}"
    assert says in str(error)
    assert error.option == f"restart_strategy={text}"


# -- the strategies --------------------------------------------------------------------------


def test_none_never_restarts():
    one = policy("none")
    assert fail(one) is None
    assert one.restarts == 0


def test_fixed_delay_gives_up_after_its_attempts():
    one = policy("fixed-delay(attempts=3, delay=10s)")
    assert [fail(one) for _ in range(5)] == [10.0, 10.0, 10.0, None, None]
    assert one.restarts == 3


def test_failure_rate_gives_up_at_one_failure_too_many_in_the_interval():
    clock = VirtualClock()
    one = policy("failure-rate(max_failures=2, interval=60s, delay=5s)", clock)
    waits = []
    for now in (0, 50, 61, 111, 112):  # never three in a minute, until the last
        clock.time = now
        waits.append(fail(one))
    assert waits == [5.0, 5.0, 5.0, 5.0, None]


def test_exponential_delay_grows_as_in_flinks_example():
    one = policy("exponential-delay(initial=1s, multiplier=2, max=10s, jitter=0)")
    assert [fail(one) for _ in range(7)] == [1, 2, 4, 8, 10, 10, 10]


def test_exponential_delay_spreads_by_its_jitter_and_never_above_the_maximum():
    one = policy("exponential-delay(multiplier=2, max=10s, jitter=0.25)")
    for exact in (1, 2, 4, 8, 10, 10):
        wait = fail(one)
        assert wait is not None
        assert exact * 0.75 <= wait <= min(exact * 1.25, 10.0)
    same = policy("exponential-delay(multiplier=2, max=10s, jitter=0.25)")
    again = policy("exponential-delay(multiplier=2, max=10s, jitter=0.25)")
    assert [fail(same) for _ in range(9)] == [fail(again) for _ in range(9)]  # seeded
    highest = RestartPolicy(ExponentialDelay(max_s=1.0), Highest(), clock=VirtualClock())
    assert fail(highest) == 1.0


def test_exponential_delay_begins_anew_after_a_run_without_a_failure():
    clock = VirtualClock()
    text = "exponential-delay(multiplier=2, jitter=0, reset_threshold=6min, attempts=2)"
    one = policy(text, clock)
    assert [fail(one), fail(one)] == [1.0, 2.0]
    clock.time = 360.0 + 2.0 - 0.001  # it lived a moment less than six minutes after its wait
    assert fail(one) is None
    one = policy(text, clock)
    assert [fail(one), fail(one)] == [1.0, 2.0]
    clock.sleep(360.0 + 2.0)
    assert [fail(one), fail(one), fail(one)] == [1.0, 2.0, None]


def test_tolerable_failed_checkpoints_do_not_count():
    one = policy("fixed-delay(attempts=1, delay=9s)", tolerable=2)
    assert [fail(one), fail(one)] == [0.0, 0.0]
    one.checkpoint_completed()
    assert [fail(one), fail(one), fail(one), fail(one)] == [0.0, 0.0, 9.0, None]
    assert one.restarts == 5


def test_only_a_failed_checkpoint_is_tolerable():
    one = policy("none", tolerable=5)
    assert fail(one, in_checkpoint=False) is None
    assert fail(one, errors.DataLossError("gone")) is None
    assert fail(one) == 0.0


# -- what is permanent -----------------------------------------------------------------------


def all_errors(kind: type[SparkOnceError] = SparkOnceError) -> set[type[SparkOnceError]]:
    return {kind}.union(*(all_errors(below) for below in kind.__subclasses__()))


def test_every_error_has_a_row_and_the_row_agrees_with_its_class():
    known = {kind for kind in all_errors() if kind.__module__ == errors.__name__}
    assert known == set(RETRIED)
    for kind, (retried, why) in RETRIED.items():
        assert retried is not kind.permanent, kind.__name__
        assert why


@pytest.mark.parametrize(
    "kind",
    [
        errors.AuthenticationError,
        errors.MissingTopicError,
        errors.ConfigurationError,
        errors.LogCorruptedError,
        errors.LogVersionError,
        errors.IdentityMismatchError,
        errors.FencedError,
        errors.ReplayMismatchError,
        errors.TransactionLostError,
        errors.RecordRefusedError,
    ],
)
def test_a_permanent_error_is_never_retried(kind: type[SparkOnceError]):
    one = policy("exponential-delay", tolerable=3)
    assert fail(one, kind("no use")) is None
    assert one.restarts == 0


@pytest.mark.parametrize(
    "error",
    [
        BROKER_GONE,
        errors.PhaseOneError("failed"),
        errors.DecisionLogError("No space left on device"),
        errors.DeliveryError("not acknowledged"),
        errors.CheckpointTimeoutError("stuck"),
        errors.OutcomeUnknownError("unknown"),
        RuntimeError("a Python worker exited unexpectedly"),
    ],
)
def test_a_passing_fault_is_retried(error: Exception):
    assert fail(policy("fixed-delay(delay=1s)"), error) == 1.0


def test_the_table_and_the_errors_say_the_same():
    assert {kind: retried for kind, (retried, _) in RETRIED.items()} == {
        kind: not kind.permanent for kind in RETRIED
    }


def test_an_error_that_somebody_derived_is_judged_by_its_base():
    class OurMissingTopicError(errors.MissingTopicError):
        pass

    class OurPermanentError(SparkOnceError):
        permanent = True

    assert not is_retried(OurMissingTopicError("no"))
    assert not is_retried(OurPermanentError("no"))
    assert not is_retried(BufferCorruptedError("other bytes"))
    assert not is_retried(KeyboardInterrupt())
