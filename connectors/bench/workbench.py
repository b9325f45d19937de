"""Broker, topics and folder of one command; the workbench always removes them."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from connectors.bench import broker_pauses, figures
from connectors.bench.bench_topics import BenchTopics
from connectors.bench.figures import Line
from connectors.bench.interruption import Interruption
from connectors.bench.measurements import Measurements, Pace
from connectors.bench.options import COMMIT, LATENCY, BenchOptions, Run
from connectors.bench.prober import Watch
from connectors.cluster.local_cluster import LocalCluster
from transactions.errors import BrokerUnavailableError, SparkOnceError

#: JVM options of a normal broker; the brokers of the tests have options for a quick start.
BROKER_JVM: Final = ("-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")

#: Spark adds a slash, a dot, a UUID and ".sock".
_LONGEST_SOCKET_FOLDER: Final = 103 - 43


class Workbench:
    """A context manager; `measure` does what the options say.

    Args:
        options: the options; the workbench checks them.
        emit: receives each line.
        watch: receives the progress, for people.
        interruption: an open one; it holds signals back during set-up and clean-up.
    """

    def __init__(
        self,
        options: BenchOptions,
        *,
        emit: Callable[[Line], None],
        watch: Watch,
        interruption: Interruption,
    ) -> None:
        options.validate()
        self._options = options
        self._emit_line = emit
        self._watch = watch
        self._interruption = interruption
        self._stack = ExitStack()
        self._lines: list[Line] = []
        self._folder = Path()
        self._kafka = dict(options.kafka)
        self._topics: BenchTopics | None = None
        #: Errors that ended measurements, in their order.
        self.errors: list[SparkOnceError] = []

    @property
    def lines(self) -> list[Line]:
        """Return what has been measured."""
        return self._lines

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def measure(self) -> None:
        """Make every run; a failed one is a line with `error`, and ends the series."""
        for run in self._options.runs():
            self._measure(run)
            if self.errors:
                return
        if self._options.what == COMMIT and len(self._lines) > 1:
            self._emit(series(self._lines))

    def _open(self) -> None:
        with self._interruption.shielded():
            self._folder = Path(tempfile.mkdtemp(prefix="sparkonce-bench-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        options = self._options
        if options.bootstrap is None:
            self._watch("no --bootstrap: starting an embedded Kafka", 0, 0)
            brokers = options.replication_factor or 1
            told = (broker_pauses.log_option(self._folder),) if options.slowest else ()
            cluster = LocalCluster(brokers=brokers, jvm_options=(*BROKER_JVM, *told))
            self._stack.enter_context(cluster)
            self._kafka["bootstrap.servers"] = cluster.bootstrap_servers
        self._topics = BenchTopics(self._kafka, replication_factor=options.replication_factor)
        if options.bootstrap is not None:  # our own broker needs no clean-up
            self._stack.callback(self._remove, self._topics)

    def _close(self) -> None:
        try:
            self._interruption.shield()
        finally:
            self._stack.close()

    def _remove(self, topics: BenchTopics) -> None:
        self._watch("removing topics", 0, 0)
        if left := topics.remove():
            self._watch(f"NOT removed: {', '.join(left)}", 0, 0)  # also after an interruption
            self.errors.append(
                BrokerUnavailableError(
                    "Topics of this run are left on the cluster.",
                    where=", ".join(left),
                    cause="the brokers did not answer, or deleting topics is not allowed",
                    option="delete them: kafka-topics.sh --delete --topic 'sparkonce-bench-.*'",
                )
            )

    def _measure(self, run: Run) -> None:
        assert self._topics is not None, "it is open"
        options = self._options
        measurements = Measurements(
            self._kafka,
            self._topics,
            self._folder,
            shape=run.shape,
            emit=self._emit,
            watch=self._watch,
            conf={**temporary_files_in(self._folder), **options.spark_conf},
            slowest=options.slowest,
            pauses=None
            if options.bootstrap
            else functools.partial(broker_pauses.read, self._folder),
        )
        pace = Pace(rate=run.rate, warmup_s=options.warmup_s, seconds=options.seconds)
        if options.what == LATENCY:
            measurements.latency(run.system, pace)
        elif options.what == COMMIT:
            measurements.commit(run.system, pace, subtasks=run.subtasks)
        else:
            measurements.throughput(
                run.system, records=options.records, batch_records=options.batch_records
            )
        self.errors += measurements.errors

    def _emit(self, line: Line) -> None:
        line["broker"] = "embedded" if self._options.bootstrap is None else "given"
        self._lines.append(line)
        self._emit_line(line)


def temporary_files_in(folder: Path) -> dict[str, str]:
    """Return Spark settings that keep its temporary files in a folder that is removed later.

    Spark's sockets to Python are in this folder. The path of a socket has at most 107 bytes on
    Linux and 103 on a Mac. With a longer path, the settings choose TCP instead.
    """
    conf = {"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}"}
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        conf["spark.python.unix.domain.socket.enabled"] = "false"
    return conf


def series(lines: list[Line]) -> Line:
    """Return the commit cost by number of subtasks; no line may have an error."""
    medians = [(one["subtasks"], one["commit_ms"]["p50_ms"]) for one in lines]
    return {
        "what": "commit series",
        "system": lines[0]["system"],
        "subtasks": [subtasks for subtasks, _ in medians],
        "commit_p50_ms": [ms for _, ms in medians],
        "ms_per_subtask": figures.slope(medians),
    }
