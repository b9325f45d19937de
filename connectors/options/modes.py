"""The two modes of a pipeline, and which option belongs to which; for Python and for job files.

The protocol is the same in both, and so are source, Arrow function and sink.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.options.branch_sink import BranchSink
from connectors.options.kafka_sink import KafkaSink
from connectors.options.kafka_source import KafkaSource
from transactions.duration import WANTED, seconds_of
from transactions.errors import ConfigurationError

MICRO_BATCH: Final = "micro-batch"
CONTINUOUS: Final = "continuous"
MODES: Final = (MICRO_BATCH, CONTINUOUS)

#: How long a checkpoint may take when the user does not say it: a batch is a Spark job, a barrier
#: waits for one batch of records to be queued and flushed.
CHECKPOINT_TIMEOUT_S: Final[Mapping[str, float]] = {MICRO_BATCH: 600.0, CONTINUOUS: 60.0}

#: The longest time from one barrier to the next when the user does not say it.
MOST_INTERVAL_S: Final = 1.0

#: The trigger that reads what is there, and ends.
AVAILABLE_NOW: Final = "available-now"

_SECONDS: Final = "_s"


@dataclasses.dataclass(frozen=True, slots=True)
class OneMode:
    """An option that one mode has; `why` says what the other one has instead."""

    mode: str
    why: str


#: Named as in a job file; in Python a time ends in ``_s``. Options of both modes are not here.
OF_ONE_MODE: Final[Mapping[str, OneMode]] = {
    "trigger": OneMode(
        MICRO_BATCH, "records move all the time; see target_latency or barrier_interval"
    ),
    "target_checkpoint": OneMode(
        MICRO_BATCH, "barriers come as often as a record's latency wants; see target_latency"
    ),
    "tolerable_failed_checkpoints": OneMode(
        MICRO_BATCH, "a failed checkpoint ends its stage; see restart_strategy"
    ),
    "parallelism": OneMode(CONTINUOUS, "Spark plans each batch; see minPartitions"),
    "target_latency": OneMode(CONTINUOUS, "a batch follows the one before; see trigger"),
    "most_interval": OneMode(CONTINUOUS, "a batch follows the one before; see trigger"),
    "native": OneMode(CONTINUOUS, "Spark's source takes records as objects"),
    "barrier_interval": OneMode(CONTINUOUS, "there are no barriers; see trigger"),
}

#: Options of the source that cut micro-batches: field, Spark's name.
_BATCH_OPTIONS: Final = (
    ("max_offsets_per_trigger", "maxOffsetsPerTrigger"),
    ("min_partitions", "minPartitions"),
)


def longest_interval_s(
    most_interval_s: float = MOST_INTERVAL_S, barrier_interval_s: float | None = None
) -> float:
    """Return how long a transaction of the continuous mode can be open before its barrier."""
    return max(most_interval_s, barrier_interval_s or 0.0)


def trigger_ms(trigger: str) -> int | None:
    """Return the time from batch to batch that a trigger says; None for `AVAILABLE_NOW`.

    Raises:
        ConfigurationError: it says neither.
    """
    if trigger == AVAILABLE_NOW:
        return None
    try:
        return round(seconds_of(trigger) * 1000)
    except ValueError as error:
        raise ConfigurationError(
            "The trigger is neither a duration nor available-now.",
            where="options of the pipeline",
            cause=f'write {WANTED}, or "{AVAILABLE_NOW}"',
            option=f"trigger={trigger}",
        ) from error


def check_mode(mode: str) -> None:
    """Check that a mode exists.

    Raises:
        ConfigurationError: it does not.
    """
    if mode not in MODES:
        near = difflib.get_close_matches(mode.lower(), MODES, 1)
        raise ConfigurationError(
            f"There is no mode {mode!r}.",
            where="options of the pipeline",
            cause=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(MODES)}",
            option=f"mode={mode}",
        )


def check_options(mode: str, given: Mapping[str, object]) -> None:
    """Check that every option can be used in a mode, and with the others.

    Args:
        mode: one of `MODES`.
        given: what the user gave, by its name in Python or in a job file.

    Raises:
        ConfigurationError: one belongs to the other mode, or two contradict each other.
    """
    by_name = {name.removesuffix(_SECONDS): name for name, value in given.items()}
    for name, written in by_name.items():
        option = OF_ONE_MODE.get(name)
        if option is not None and option.mode != mode:
            raise ConfigurationError(
                f"{written!r} is an option of the {option.mode} mode.",
                where=f"a pipeline in {mode} mode",
                cause=option.why,
                option=f"{written}={given[written]}",
            )
    for name in ("target_latency", "most_interval"):
        if "barrier_interval" in by_name and name in by_name:
            raise ConfigurationError(
                "The barrier interval is fixed and adaptive at the same time.",
                where=f"a pipeline in {mode} mode",
                cause="a fixed interval holds no latency target; give one of them",
                option=f"{by_name['barrier_interval']}, {by_name[name]}",
            )


def check_source(mode: str, source: KafkaSource) -> None:
    """Check that a source can be read in a mode.

    Raises:
        ConfigurationError: an option of it is about micro-batches, and there are none; or about a
            batch read.
    """
    source.check_stream()
    for field, name in _BATCH_OPTIONS:
        value = getattr(source, field)
        if mode == CONTINUOUS and value is not None:
            raise ConfigurationError(
                f"{name} is an option of the {MICRO_BATCH} mode.",
                where=f"a source in {mode} mode",
                cause="it says how micro-batches are cut; each task reads on as fast as it can",
                option=f"{name}={value}",
            )


def refuse_columns(columns: Sequence[str] | None, sink: BranchSink) -> None:
    """Check that a sink has columns of its own, where a pipeline chooses some.

    Raises:
        ConfigurationError: it is Kafka's.
    """
    if columns is not None and isinstance(sink, KafkaSink):
        raise ConfigurationError(
            "columns is for sinks that have columns of their own.",
            where=f"sink {sink.name!r}",
            cause="a Kafka record has all that the Arrow function returns, and no more",
            option=f"columns={', '.join(columns)}",
        )


def one_sink(sinks: BranchSink | Sequence[BranchSink]) -> BranchSink:
    """Return what a continuous pipeline writes to: Kafka, or any other two-phase sink.

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
