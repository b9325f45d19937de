"""Restart strategies: whether, and after how long, a failed run is started again. No I/O.

Names, defaults and meaning are those of Apache Flink ("Task Failure Recovery" in the operations
part of its documentation, and `flink-runtime/.../executiongraph/failover/*BackoffTimeStrategy`):

    none                                        a failure ends the pipeline
    fixed-delay(attempts=1, delay=1s)           so many restarts in all, never more
    failure-rate(max_failures=1, interval=1min, delay=1s)
                                                gives up at more failures than that in an interval
    exponential-delay(initial=1s, max=1min, multiplier=1.5, jitter=0.1, reset_threshold=1h,
                      attempts=infinite)        waits longer each time; a run without a failure
                                                for reset_threshold begins anew

One table, `RETRIED`, says what is never restarted, whatever the strategy says; nor is an error of
ours that says itself that it is `permanent`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from transactions import errors
from transactions.clock import SYSTEM_CLOCK, Clock
from transactions.duration import WANTED, seconds_of
from transactions.errors import ConfigurationError, SparkOnceError, nearest

# --- what may be said ---------------------------------------------------------------------------


def _check(strategy: object, holds: bool, name: str, wanted: str) -> None:
    if not holds:
        raise _wrong(
            f"The option {name!r} of a restart strategy is out of its range.",
            f"it must be {wanted}",
            str(strategy),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NoRestart:
    """`none`: the first failure ends the pipeline."""

    def __str__(self) -> str:
        return "none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """`fixed-delay`: a number of restarts in all.

    Attributes:
        attempts: how many.
        delay_s: seconds before each.
    """

    attempts: int = 1
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        _check(self, self.attempts >= 0, "attempts", "0 or more")
        _check(self, self.delay_s >= 0.0, "delay", "a time")

    def __str__(self) -> str:
        return _shown(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """`failure-rate`: restarts while failures stay rare.

    Attributes:
        max_failures: most failures in one interval; one more gives up.
        interval_s: its length in seconds, ending now.
        delay_s: seconds before each restart.
    """

    max_failures: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        _check(self, self.max_failures >= 1, "max_failures", "1 or more")
        _check(self, self.interval_s > 0.0, "interval", "longer than zero")
        _check(self, self.delay_s >= 0.0, "delay", "a time")

    def __str__(self) -> str:
        return _shown(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """`exponential-delay`: waits longer after each failure.

    Attributes:
        initial_s: seconds before the first restart.
        max_s: most seconds before any.
        multiplier: by how much the wait grows.
        jitter: part of the wait that is added or taken away at random, 0 to 1, so that many
            pipelines do not come back to one broker in the same moment.
        reset_threshold_s: after a run of this length without a failure the count begins anew.
        attempts: restarts until such a reset; None for no limit.
    """

    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_threshold_s: float = 3600.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, self.initial_s > 0.0, "initial", "longer than zero")
        _check(self, self.max_s >= self.initial_s, "max", f"not below initial={self.initial_s:g}s")
        _check(self, self.multiplier > 1.0, "multiplier", "more than 1")
        _check(self, 0.0 <= self.jitter <= 1.0, "jitter", "0 to 1")
        _check(self, self.reset_threshold_s > 0.0, "reset_threshold", "longer than zero")
        _check(self, self.attempts is None or self.attempts >= 1, "attempts", "1 or more")

    def __str__(self) -> str:
        return _shown(self)


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay

_BY_NAME: Final[Mapping[str, type[RestartStrategy]]] = MappingProxyType(
    {
        "none": NoRestart,
        "fixed-delay": FixedDelay,
        "failure-rate": FailureRate,
        "exponential-delay": ExponentialDelay,
    }
)
_NAMES: Final = {kind: name for name, kind in _BY_NAME.items()}
_TEXT: Final = re.compile(r"\s*([A-Za-z_-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_restart_strategy(given: str | RestartStrategy) -> RestartStrategy:
    """Return the strategy that a text describes; a strategy is returned as it is.

    Args:
        given: ``"none"``, ``"fixed-delay(attempts=3, delay=10s)"`` and so on; an option that is not
            given has its default. Times are durations (`transactions.duration`).

    Raises:
        ConfigurationError: the name, an option or a value is wrong.
    """
    if not isinstance(given, str):
        return given
    match = _TEXT.fullmatch(given)
    if match is None:
        raise _wrong(
            "The restart strategy cannot be read.",
            f"write name(option=value, ...), with one of {', '.join(_BY_NAME)}",
            given,
        )
    kind = _BY_NAME.get(match[1].lower().replace("_", "-"))
    if kind is None:
        raise _wrong("The restart strategy is unknown.", nearest(match[1], _BY_NAME), given)
    options = {_option_name(field): field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        name, _, text = (piece.strip() for piece in part.partition("="))
        field = options.get(name)
        if field is None:
            raise _wrong(
                f"The restart strategy {_NAMES[kind]!r} has no option {name!r}.",
                nearest(name, options) if options else "it has none",
                given,
            )
        if field.name in values:
            raise _wrong(f"The option {name!r} is given twice.", "give it once", given)
        values[field.name] = _value(field, text, given)
    try:
        return kind(**values)
    except ConfigurationError as error:
        raise _wrong(error.what, error.cause, given) from error


def _value(field: dataclasses.Field[Any], text: str, given: str) -> float | int | None:
    wanted = "a number"
    try:
        if field.name.endswith("_s"):
            wanted = WANTED
            return seconds_of(text)
        if "int" in str(field.type):
            wanted = "a whole number"
            endless = text.lower() in {"infinite", "none"} and "None" in str(field.type)
            return None if endless else int(text)
        number = float(text)
        return number if math.isfinite(number) else float("none")
    except ValueError:
        raise _wrong(
            f"The value of {_option_name(field)!r} is not {wanted}.", f"it is {text!r}", given
        ) from None


def _option_name(field: dataclasses.Field[Any]) -> str:
    return field.name.removesuffix("_s")


def _wrong(what: str, cause: str, given: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        where="the driver's restart strategy",
        cause=cause,
        option=f"restart_strategy={given}",
    )


def _shown(strategy: RestartStrategy) -> str:
    parts = []
    for field in dataclasses.fields(strategy):
        value = getattr(strategy, field.name)
        if field.name.endswith("_s"):
            parts.append(f"{_option_name(field)}={value:g}s")
        elif value is not None:
            parts.append(f"{field.name}={value:g}")
    return f"{_NAMES[type(strategy)]}({', '.join(parts)})"


# --- which failures are worth it ----------------------------------------------------------------


#: The default of a driver. Flink too restarts a checkpointed job by exponential delay, but for
#: ever. Here a supervisor or a person waits for the exit code, and a test that fails in a user's
#: function must end. So the tenth restart in a row is the last (two minutes of waiting in all,
#: longer than most brokers need to come back).
DEFAULT_RESTART_STRATEGY: Final[RestartStrategy] = ExponentialDelay(attempts=10)

#: Error class -> whether a new run can do better, and why. It has every class of ours.
RETRIED: Final[Mapping[type[SparkOnceError], tuple[bool, str]]] = MappingProxyType(
    {
        SparkOnceError: (True, "no reason forbids another attempt"),
        errors.ConfigurationError: (False, "the same options fail the same way"),
        errors.SavepointError: (False, "the savepoint stays broken, or does not fit"),
        errors.SavepointNotMadeError: (True, "what was not ready can be ready later"),
        errors.IdentityMismatchError: (False, "the checkpoint belongs to another topology"),
        errors.MissingTopicError: (False, "only a person can create the topic"),
        errors.AuthenticationError: (False, "repeated wrong credentials can lock the account"),
        errors.DecisionLogError: (True, "the disk or the store can work again later"),
        errors.LogCorruptedError: (False, "a torn entry stays torn"),
        errors.LogVersionError: (False, "the version stays too old for the entry"),
        errors.FencedError: (False, "two runs would fence each other for ever; the newer one wins"),
        errors.StoppedError: (False, "somebody stopped the run"),
        errors.PhaseOneError: (True, "nothing of the attempt is visible; all of it runs again"),
        errors.InitInDoubtError: (True, "the next attempt takes other transactional ids"),
        errors.CheckpointTimeoutError: (True, "the stuck job was cancelled; the next may succeed"),
        errors.DeliveryError: (True, "a broker was slow or not available"),
        errors.RecordRefusedError: (False, "the same record would be refused again"),
        errors.OutcomeUnknownError: (True, "the next start proves the outcome"),
        errors.TransactionLostError: (False, "decided records are missing; a retry would hide it"),
        errors.HiddenCommitError: (False, "only a person may write the missing marker"),
        errors.ReplayMismatchError: (False, "the run would not write the decided records"),
        errors.DataLossError: (False, "records that are gone do not come back"),
        errors.BrokerUnavailableError: (True, "the brokers can come back"),
        errors.TokenUnavailableError: (True, "the identity provider can come back"),
        errors.IllegalTransitionError: (False, "a bug in sparkonce; its state is not reliable"),
    }
)


def is_retried(error: BaseException) -> bool:
    """Return whether a new run may do better after this failure.

    An exception that is not ours is retried, as in Flink: it comes from a killed worker, a lost
    executor or a function of the user, and such faults (a service that did not answer) often pass.
    A fault that does not pass ends with the strategy's attempts. An error that is derived from one
    of ours may be permanent where its base is not.
    """
    if isinstance(error, SparkOnceError) and error.permanent:
        return False
    for kind in type(error).__mro__:
        if kind in RETRIED:
            return RETRIED[kind][0]
    return isinstance(error, Exception)


# --- the strategy at work -----------------------------------------------------------------------


class Random(Protocol):
    """What we need of a random generator; `random.Random` has it."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between the two."""


class RestartPolicy:
    """Counts one pipeline's failures, and decides what follows the next one.

    Args:
        strategy: what the user said.
        random: for the jitter of `exponential-delay`.
        tolerable_failed_checkpoints: how many checkpoints may fail one after the other without
            counting as a failure for the strategy; a completed one begins the count anew.
        clock: for intervals and resets.

    Attributes:
        restarts: how many were granted so far.
    """

    def __init__(
        self,
        strategy: RestartStrategy,
        random: Random,
        *,
        tolerable_failed_checkpoints: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.strategy = strategy
        self.restarts = 0
        self._tolerable = tolerable_failed_checkpoints
        self._failed_in_a_row = 0
        self._delay_of = _delays(strategy, random, clock)

    def after_failure(self, error: BaseException, *, in_checkpoint: bool) -> float | None:
        """Return how many seconds to wait before the next run, None to give up.

        Args:
            error: what ended the run.
            in_checkpoint: a checkpoint was under way; only such a failure is tolerable.
        """
        if not is_retried(error):
            return None
        self._failed_in_a_row += in_checkpoint
        tolerated = in_checkpoint and self._failed_in_a_row <= self._tolerable
        delay = 0.0 if tolerated else self._delay_of()
        self.restarts += delay is not None
        return delay

    def checkpoint_completed(self) -> None:
        """Begin the count of tolerable failures anew."""
        self._failed_in_a_row = 0


def _delays(strategy: RestartStrategy, random: Random, clock: Clock) -> Callable[[], float | None]:
    """Return the function that is called at each failure, and returns the wait or None."""
    match strategy:
        case NoRestart():
            return lambda: None
        case FixedDelay():
            return _fixed_delay(strategy)
        case FailureRate():
            return _failure_rate(strategy, clock)
        case ExponentialDelay():
            return _exponential_delay(strategy, random, clock)


def _fixed_delay(strategy: FixedDelay) -> Callable[[], float | None]:
    left = iter(range(strategy.attempts))
    return lambda: None if next(left, None) is None else strategy.delay_s


def _failure_rate(strategy: FailureRate, clock: Clock) -> Callable[[], float | None]:
    failures: deque[float] = deque(maxlen=strategy.max_failures + 1)

    def failed() -> float | None:
        failures.append(clock.monotonic())
        too_many = len(failures) > strategy.max_failures
        too_fast = failures[-1] - failures[0] <= strategy.interval_s
        return None if too_many and too_fast else strategy.delay_s

    return failed


def _exponential_delay(
    strategy: ExponentialDelay, random: Random, clock: Clock
) -> Callable[[], float | None]:
    wait, last_failure, attempts = strategy.initial_s, -math.inf, 0

    def failed() -> float | None:
        nonlocal wait, last_failure, attempts
        now = clock.monotonic()
        # The wait itself does not count as time without a failure.
        if now - last_failure >= strategy.reset_threshold_s + wait:
            wait, attempts = strategy.initial_s, 0
        else:
            wait = min(wait * strategy.multiplier, strategy.max_s)
        last_failure = now
        attempts += 1
        if strategy.attempts is not None and attempts > strategy.attempts:
            return None
        jitter = strategy.jitter * wait
        return min(wait + random.uniform(-jitter, jitter), strategy.max_s)

    return failed
