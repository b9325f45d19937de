"""The options of `sparkonce bench`; all of them are checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from connectors.bench.shape import KEY_BYTES, LEAST_VALUE_BYTES, Shape
from connectors.bench.system import System, our_system
from connectors.options.modes import check_mode, check_options
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from transactions.errors import ConfigurationError

LATENCY: Final = "latency"
THROUGHPUT: Final = "throughput"
COMMIT: Final = "commit"

PICTURES: Final = (".svg", ".png", ".html")
LEAST_RECORD_BYTES: Final = KEY_BYTES + LEAST_VALUE_BYTES

_PARTITIONS: Final = 2
#: Records per second for each partition, so that each checkpoint has records in all of them.
_TRICKLE: Final = 200
#: The memory for the ids limits the number of records.
_MOST_RECORDS: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of one command.

    Attributes:
        what: one of latency, throughput and commit.
        kafka: client settings in Java naming; without brokers the command starts a broker.
        mode: one of `connectors.options.modes`.
        rate: records per second, for latency.
        records: number of records, for throughput.
        seconds: measured seconds, for latency and commit.
        warmup_s: seconds before the measurement.
        batch_records: maximum of records in a micro-batch, for throughput.
        record_bytes: size of key and value together.
        partitions: partitions of every topic; None for one per subtask, at least two.
        subtasks: numbers of writing tasks, one run for each number; () for one per partition.
        replication_factor: of every topic; None takes the brokers' default.
        barrier_interval_s: a fixed interval; continuous mode only.
        target_latency_s: target of the adaptive interval; continuous mode only.
        master: Spark's master URL; None is this machine with a slot for every subtask.
        conf: Spark settings, ``key=value``.
        plot: file for the picture of the distribution.
        slowest: how many of the slowest checkpoints are shown; for latency.
    """

    what: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    mode: str = MICRO_BATCH
    rate: int = 2000
    records: int = 1_000_000
    seconds: float = 30.0
    warmup_s: float = 10.0
    batch_records: int = 250_000
    record_bytes: int = 100
    partitions: int | None = None
    subtasks: tuple[int, ...] = ()
    replication_factor: int | None = None
    barrier_interval_s: float | None = None
    target_latency_s: float | None = None
    master: str | None = None
    conf: tuple[str, ...] = ()
    plot: Path | None = None
    slowest: int = 0

    @property
    def bootstrap(self) -> str | None:
        """Return the user's brokers; None if the user gave none."""
        return self.kafka.get("bootstrap.servers")

    @property
    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings."""
        return dict(pair.split("=", 1) for pair in self.conf)

    def validate(self) -> None:
        """Refuse options that cannot be measured.

        Raises:
            ConfigurationError: an option is out of range, or contradicts another one.
        """
        check_mode(self.mode)
        pace = {name: value for name, value in self._pace().items() if value is not None}
        check_options(self.mode, pace)
        self._check_numbers(pace)
        self._check_subtasks()
        for pair in self.conf:
            if "=" not in pair:
                raise _wrong(
                    "A Spark setting has no value.", "the form is key=value", f"--conf={pair}"
                )
        if self.plot is not None:
            self._check_plot(self.plot)

    def runs(self) -> list[Run]:
        """Return the runs, one for each number of subtasks."""
        return [self._run(number) for number in self.subtasks or (self._partitions(0),)]

    # --- rules --------------------------------------------------------------------------------

    def _check_numbers(self, pace: Mapping[str, Any]) -> None:
        if self.record_bytes < LEAST_RECORD_BYTES:
            raise _wrong(
                f"A record needs {LEAST_RECORD_BYTES} bytes at least.",
                f"the id takes {KEY_BYTES} bytes, the time stamp 8, and the job changes one more",
                f"--record-size={self.record_bytes}",
            )
        numbers = {
            "--rate": self.rate,
            "--records": self.records,
            "--seconds": self.seconds,
            "--batch-records": self.batch_records,
            "--partitions": self.partitions,
            "--replication-factor": self.replication_factor,
            **{f"--{name.removesuffix('_s').replace('_', '-')}": v for name, v in pace.items()},
        }
        for name, value in numbers.items():
            if value is not None and not value > 0:
                raise _wrong(
                    "The value must be more than 0.", "nothing could be measured", _of(name, value)
                )
        if self.slowest < 0:
            raise _wrong(
                "The number of checkpoints is negative.",
                "0 shows none",
                _of("--slowest", self.slowest),
            )
        if self.warmup_s < 0:
            raise _wrong(
                "The time is negative.", "the unit is seconds", _of("--warmup", self.warmup_s)
            )
        most = max(self.records, self.rate * (self.seconds + self.warmup_s))
        if most > _MOST_RECORDS:
            raise _wrong(
                f"More than {_MOST_RECORDS:,} records are too many.",
                "the check keeps every id in memory",
                "--records, or --rate with --seconds",
            )
        measured = int(self.rate * (self.seconds + self.warmup_s)) - int(self.rate * self.warmup_s)
        if self.what == LATENCY and measured < 1:
            raise _wrong(
                "No record would be measured.",
                "rate times seconds is less than 1",
                f"--rate={self.rate}, --seconds={self.seconds:g}",
            )
        if self.bootstrap is None and self.replication_factor not in {None, 1, 3}:
            raise _wrong(
                "The embedded cluster has one broker, or three.",
                "without --bootstrap the command starts the embedded cluster",
                f"--replication-factor={self.replication_factor}",
            )

    def _check_subtasks(self) -> None:
        if min(self.subtasks, default=1) < 1 or len(set(self.subtasks)) < len(self.subtasks):
            raise _wrong(
                "Subtasks must be different whole numbers from 1.",
                "the command makes one run for each number",
                f"--subtasks={','.join(map(str, self.subtasks))}",
            )
        if self.what != COMMIT and len(self.subtasks) > 1:
            raise _wrong(
                "Only the commit can be measured as a series.",
                f"{self.what} takes one number",
                f"--subtasks={','.join(map(str, self.subtasks))}",
            )
        for number in self.subtasks:
            if self.partitions is None:
                continue
            if self.mode == MICRO_BATCH and number != self.partitions:
                raise _wrong(
                    "In micro-batch mode each partition is a subtask.",
                    "Spark makes a task for each; give one of the options, or the same number",
                    f"--subtasks={number}, --partitions={self.partitions}",
                )
            if number > self.partitions:
                raise _wrong(
                    "A subtask without a partition would write nothing.",
                    "one subtask reads each partition",
                    f"--subtasks={number}, --partitions={self.partitions}",
                )

    def _check_plot(self, plot: Path) -> None:
        if self.what == THROUGHPUT:
            raise _wrong(
                "A throughput has no distribution to draw.",
                "only latency and commit have a distribution",
                f"--plot={plot}",
            )
        if plot.suffix.lower() not in PICTURES:
            raise _wrong(
                "The picture format is unknown.",
                f"the file name must end in one of {', '.join(PICTURES)}",
                f"--plot={plot}",
            )
        if not plot.absolute().parent.is_dir():
            raise _wrong(
                "The folder of the picture does not exist.",
                "create the folder first",
                f"--plot={plot}",
            )

    # --- what is run --------------------------------------------------------------------------

    def _pace(self) -> dict[str, float | None]:
        return {
            "barrier_interval_s": self.barrier_interval_s,
            "target_latency_s": self.target_latency_s,
        }

    def _partitions(self, subtasks: int) -> int:
        if self.mode == MICRO_BATCH and subtasks:
            return subtasks
        return self.partitions or max(_PARTITIONS, *self.subtasks, subtasks)

    def _run(self, subtasks: int) -> Run:
        partitions = self._partitions(subtasks)
        master = self.master or f"local[{subtasks}]"
        settings: dict[str, Any] = {"master": master}
        if self.mode == CONTINUOUS:
            # The cost of a commit by number of writers: all of them write.
            writers = {"parallelism": subtasks, "fixed_parallelism": self.what == COMMIT}
            settings |= {**writers, **self._pace()}
        return Run(
            system=our_system(self.mode, **settings),
            subtasks=subtasks,
            shape=Shape(partitions, self.record_bytes - KEY_BYTES),
            rate=self.rate if self.what == LATENCY else _TRICKLE * partitions,
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a command.

    Attributes:
        system: the system to run.
        subtasks: number of its writing tasks.
        shape: shape of records and topics.
        rate: records per second.
    """

    system: System
    subtasks: int
    shape: Shape
    rate: int


def _of(name: str, value: float) -> str:
    return f"{name}={value:g}"


def _wrong(what: str, cause: str, option: str) -> ConfigurationError:
    return ConfigurationError(what, where="sparkonce bench", cause=cause, option=option)
