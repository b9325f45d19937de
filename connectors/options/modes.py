"""The two modes of a pipeline, and which option belongs to which; for Python and for job files.

The protocol is the same in both, and so are source, Arrow function and sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from connectors.options.kafka_source import KafkaSource
from connectors.options.sink import takes_messages
from connectors.options.table import CONTINUOUS, MICRO_BATCH, PIPELINE, SOURCE
from connectors.options.trigger import AVAILABLE_NOW
from transactions.errors import ConfigurationError, nearest
from transactions.sink import Sink

MODES: Final = (MICRO_BATCH, CONTINUOUS)

#: The longest time from one barrier to the next if the user does not set it.
MOST_INTERVAL_S: Final = 1.0

_SECONDS: Final = "_s"


def longest_interval_s(
    most_interval_s: float = MOST_INTERVAL_S, barrier_interval_s: float | None = None
) -> float:
    """Return how long a transaction of the continuous mode can be open before its barrier."""
    return max(most_interval_s, barrier_interval_s or 0.0)


def check_positive(**options: float | None) -> None:
    """Check options of the continuous mode that count tasks, or are times in seconds.

    Raises:
        ConfigurationError: one is given, and is not above 0.
    """
    for name, value in options.items():
        if value is not None and not value > 0:
            raise ConfigurationError(
                f"The option {name} must be more than 0.",
                where="the continuous driver",
                cause="it counts tasks, or is a time in seconds",
                option=f"{name}={value}",
            )


def check_mode(mode: str) -> None:
    """Check that a mode exists.

    Raises:
        ConfigurationError: it does not.
    """
    if mode not in MODES:
        raise ConfigurationError(
            f"There is no mode {mode!r}.",
            where="options of the pipeline",
            cause=nearest(mode, MODES),
            option=f"mode={mode}",
        )


def check_options(mode: str, given: Mapping[str, object]) -> None:
    """Check that every option can be used in a mode, and with the others.

    Args:
        mode: one of `MODES`.
        given: what the user gave, by its name in Python or in a job file.

    Raises:
        ConfigurationError: an option belongs to the other mode, or two contradict each other.
    """
    by_name = {name.removesuffix(_SECONDS): name for name, value in given.items()}
    for name, written in by_name.items():
        option = PIPELINE.find(name)
        if option is not None and option.mode not in ("", mode):
            raise ConfigurationError(
                f"{written!r} is an option of the {option.mode} mode.",
                where=f"a pipeline in {mode} mode",
                cause=option.instead,
                option=f"{written}={given[written]}",
            )
    if mode == CONTINUOUS and given.get("trigger", AVAILABLE_NOW) != AVAILABLE_NOW:
        raise ConfigurationError(
            "A continuous pipeline has no batches that a trigger could start.",
            where=f"a pipeline in {mode} mode",
            cause="records move all the time; see target_latency or barrier_interval. Only "
            f"{AVAILABLE_NOW} has a meaning: read the records that exist, then end",
            option=f"trigger={given['trigger']}",
        )
    for name in ("target_latency", "most_interval"):
        if "barrier_interval" in by_name and name in by_name:
            raise ConfigurationError(
                "The barrier interval is fixed and adaptive at the same time.",
                where=f"a pipeline in {mode} mode",
                cause="a fixed interval cannot follow a latency target; set only one of them",
                option=f"{by_name['barrier_interval']}, {by_name[name]}",
            )


def check_source(mode: str, source: KafkaSource) -> None:
    """Check that a source can be read in a mode.

    Raises:
        ConfigurationError: one of its options is about micro-batches, and there are none; or about
            a batch read.
    """
    source.check_stream()
    for option in SOURCE.options:
        value = getattr(source, option.python_name)
        if option.mode not in ("", mode) and value not in (None, option.value_in(mode)):
            raise ConfigurationError(
                f"{option.name} is an option of the {option.mode} mode.",
                where=f"a source in {mode} mode",
                cause=option.instead,
                option=f"{option.name}={value}",
            )


def refuse_columns(columns: Sequence[str] | None, sink: Sink) -> None:
    """Check that a sink has columns of its own, if a pipeline chooses some.

    Raises:
        ConfigurationError: the sink is Kafka's.
    """
    if columns is not None and takes_messages(sink):
        raise ConfigurationError(
            "The option columns needs a sink with columns of its own.",
            where=f"sink {sink.name!r}",
            cause="a Kafka record has exactly the columns that the Arrow function returns",
            option=f"columns={', '.join(columns)}",
        )


def one_sink(sinks: Sink | Sequence[Sink]) -> Sink:
    """Return the sink of a continuous pipeline: Kafka, or any other two-phase sink.

    Raises:
        ConfigurationError: there are several, or none.
    """
    if not isinstance(sinks, Sequence):
        return sinks
    if len(sinks) != 1:
        names = ", ".join(one.name for one in sinks)
        raise ConfigurationError(
            "A continuous pipeline has one sink.",
            where=f"a pipeline in {CONTINUOUS} mode",
            cause="a task writes one output; its rows can name their Kafka topics in a column, "
            f'or take mode = "{MICRO_BATCH}"',
            option=f"sinks: {names or 'none'}",
        )
    return sinks[0]
