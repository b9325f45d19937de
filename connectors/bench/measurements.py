"""The three measurements. Each has its own topics and folder, and becomes one line.

A failure is a line with `error`. Every measurement looks for each id of its input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from connectors.bench import broker_pauses, figures
from connectors.bench.bench_topics import BenchTopics
from connectors.bench.broker_pauses import Pause
from connectors.bench.committed_reader import librdkafka_version
from connectors.bench.cpu_watch import CpuWatch
from connectors.bench.end_watcher import EndWatcher
from connectors.bench.figures import Line
from connectors.bench.job_process import JobProcess
from connectors.bench.measuring_producer import MeasuringProducer
from connectors.bench.prober import DRAINING, MEASURING, Prober, Watch
from connectors.bench.shape import Shape
from connectors.bench.system import System
from connectors.bench.topic_audit import audit_topic
from transactions.errors import SparkOnceError

_LOAD_LINGER_MS: Final = 20
#: A system fails if it moves fewer records per second; it has two minutes to start.
_LEAST_PER_S: Final = 5000
_START_S: Final = 120.0
_MEASURED_STEPS: Final = frozenset({MEASURING, DRAINING})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """How a measurement of latency feeds its job.

    Attributes:
        rate: records per second.
        warmup_s: seconds whose records are checked, but not measured.
        seconds: measured seconds.
    """

    rate: int
    warmup_s: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class _Probed:
    """What a job did at a pace.

    Attributes:
        prober: fed it, and read its output.
        job: the process, ended.
        latencies_ms: of every measured record.
        cpu: what the job's processes and the broker used while it was measured.
    """

    prober: Prober
    job: JobProcess
    latencies_ms: npt.NDArray[np.float64]
    cpu: CpuWatch

    def line(self, pace: Pace) -> Line:
        """Return the fields that every measurement at a pace has."""
        values, measured_s = self.latencies_ms, self.prober.measured_s
        produced_per_s = pace.rate * pace.seconds / max(measured_s, 1e-9)
        growth = figures.growth_ms(values)
        return {
            "measured": len(values),
            **figures.percentiles(values),
            **figures.curve(values),
            **vars(self.prober.audit),
            "producer_late_max_ms": round(self.prober.late_max_ms, 1),
            "produced_per_s": round(min(produced_per_s, pace.rate), 1),
            "latency_growth_ms": growth,
            "rate_held": figures.rate_held(pace.rate, produced_per_s, growth, pace.seconds),
        }

    def check_complete(self) -> None:
        """Raise if a record did not arrive."""
        lost = self.prober.audit.lost
        if lost:
            raise SparkOnceError(
                "Records are missing in the output one minute after the last produce.",
                where=f"{lost:,} records are missing; {len(self.latencies_ms):,} measured records "
                "arrived",
                cause="the records are lost, or the job is more than a minute behind the rate",
                option="--rate",
            )


class Measurements:
    """Measures systems on one cluster, one after the other.

    Args:
        kafka: client settings in Java naming, with the brokers.
        topics: makes the topics.
        folder: parent of the jobs' folders.
        shape: shape of the records.
        emit: receives each line.
        watch: receives the progress, for people.
        conf: Spark settings of every job.
        slowest: how many of the slowest checkpoints a measurement of latency tells.
        pauses: returns the pauses of the broker so far; None: nobody knows them.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        topics: BenchTopics,
        folder: Path,
        *,
        shape: Shape,
        emit: Callable[[Line], None],
        watch: Watch,
        conf: Mapping[str, str] | None = None,
        slowest: int = 0,
        pauses: Callable[[], Sequence[Pause]] | None = None,
    ) -> None:
        self._kafka = kafka
        self._topics = topics
        self._folder = folder
        self._shape = shape
        self._emit = emit
        self._watch = watch
        self._conf = conf
        self._slowest = slowest
        self._pauses = pauses
        self._backlog: tuple[str, int] | None = None
        #: Errors that ended a measurement; each is also the `error` of a line.
        self.errors: list[SparkOnceError] = []

    def throughput(self, system: System, *, records: int, batch_records: int | None) -> None:
        """Measure how fast the records of a backlog become visible."""
        line = self._head("throughput", system)
        line |= {"records": records, "batch_records": batch_records}
        phases: list[Line] = []
        with self._reported(line):
            source = self._loaded(records)
            output = self._topics.create("out", self._shape.partitions)
            watcher = EndWatcher(self._kafka, output, self._shape.partitions)
            with self._job(system, (source, output), batch_records) as job:
                cpu = CpuWatch(job.pid)

                def see(visible: int) -> None:
                    cpu.sample(visible)
                    self._watch("measuring", min(visible, records), records)

                watcher.wait_for(
                    records,
                    timeout_s=_START_S + records / _LEAST_PER_S,
                    check=job.check,
                    watch=see,
                )
            phases = figures.checkpoints_of(job.report)
            audit, offsets = audit_topic(
                self._kafka,
                output,
                watcher.ends[-1],
                records,
                lambda read: self._watch("checking every id", read, records),
            )
            line |= vars(audit)
            batches = figures.batches_of(job.report)
            line |= {
                "commits": job.report["commits"] or len(batches),
                **rates(records - audit.lost, watcher.times, watcher.visible(offsets), job.report),
                "records_per_s_between": figures.records_between(phases),
                "cpu_us_per_record": cpu.per_record(),
                "spark_phases": figures.spark_phases(batches[1:] or batches),
            }
        self._phases("throughput phases", system, phases)

    def latency(self, system: System, pace: Pace) -> None:
        """Measure the time from produce until a read_committed reader has the record."""
        line = self._head("latency", system) | _of(pace)
        phases: list[Line] = []
        with self._reported(line):
            probed = self._probed(system, pace)
            report, from_ns = probed.job.report, probed.prober.measured_from_ns
            phases = figures.checkpoints_of(report, from_ns)
            batches = figures.batches_of(report, from_ns)
            per_s, per_record = figures.per_second(phases), probed.cpu.per_record()
            line |= {
                **probed.line(pace),
                "commits": report["commits"] or len(batches),
                "checkpoints_per_s": per_s,
                "cpu_us_per_record": per_record,
                "cpu_ms_per_checkpoint": figures.per_checkpoint(per_record, pace.rate, per_s),
                "spark_phases": figures.spark_phases(batches),
            }
            probed.check_complete()
        self._phases("latency phases", system, phases, rate=pace.rate, **self._slow(phases))

    def commit(self, system: System, pace: Pace, *, subtasks: int) -> Line:
        """Measure the cost of many small checkpoints, phase by phase; return the line.

        A checkpoint counts only if every subtask had a transaction in it; the warm-up does not
        count.
        """
        line = self._head("commit", system) | {"subtasks": subtasks} | _of(pace)
        with self._reported(line):
            probed = self._probed(system, pace)
            every = figures.checkpoints_of(probed.job.report, probed.prober.measured_from_ns)
            whole = [one for one in every if one["transactions"] == subtasks]
            commits = [figures.commit_ms(one) for one in whole]
            line |= {
                **probed.line(pace),
                "checkpoints": len(whole),
                "checkpoints_with_fewer_transactions": len(every) - len(whole),
                "checkpoints_per_s": figures.per_second(every),
                "records_per_checkpoint": _median([one["records"] for one in whole]),
                "commit_ms": {**figures.percentiles(commits), **figures.curve(commits)},
                "phase_ms": figures.commit_phases(whole),
            }
            probed.check_complete()
            if not whole:
                raise SparkOnceError(
                    "No checkpoint had a transaction of every subtask.",
                    where=f"{len(every)} checkpoints, {subtasks} subtasks",
                    cause="the interval is too short for every subtask to receive records",
                    option="--barrier-interval, --seconds",
                )
        return line

    def _probed(self, system: System, pace: Pace) -> _Probed:
        topics = (
            self._topics.create("in", self._shape.partitions),
            self._topics.create("out", self._shape.partitions),
        )
        with self._job(system, topics, None) as job:
            cpu = CpuWatch(job.pid)
            seen: set[str] = set()

            def watch(step: str, done: int, total: int) -> None:
                # A look at the processes takes milliseconds, so there are two: at the begin and
                # behind the end of what is measured.
                if step in _MEASURED_STEPS - seen:
                    seen.add(step)
                    cpu.sample(total if step == DRAINING else done)
                self._watch(step, done, total)

            prober = Prober(
                kafka=self._kafka,
                topics=topics,
                shape=self._shape,
                watch=watch,
                **dataclasses.asdict(pace),
            )
            values = prober.run(job.check)
        return _Probed(prober, job, values / 1e6, cpu)

    def _loaded(self, records: int) -> str:
        """Load the backlog once; every system reads the same topic."""
        if self._backlog is None or self._backlog[1] != records:
            topic = self._topics.create("backlog", self._shape.partitions)
            with MeasuringProducer(
                self._kafka, topic, self._shape, linger_ms=_LOAD_LINGER_MS
            ) as producer:
                producer.load(records, lambda done: self._watch("loading", done, records))
            self._backlog = (topic, records)
        return self._backlog[0]

    def _job(
        self, system: System, topics: tuple[str, str], batch_records: int | None
    ) -> JobProcess:
        return JobProcess(
            system,
            self._folder / topics[1],
            kafka=self._kafka,
            topics=topics,
            batch_records=batch_records,
            conf=self._conf,
        )

    def _phases(self, what: str, system: System, rows: list[Line], **more: Any) -> None:
        if rows:
            self._emit({**head(what, system), "phase_ms": figures.commit_phases(rows), **more})

    def _slow(self, rows: list[Line]) -> Line:
        """Return the slowest checkpoints, and what the broker's pauses have to do with them."""
        if not self._slowest or not rows:
            return {}
        pauses = None if self._pauses is None else self._pauses()
        told: Line = {"slowest": broker_pauses.slowest(rows, self._slowest, pauses)}
        if pauses is not None:
            told["broker_paused_share"] = broker_pauses.share(rows, pauses)
        return told

    def _head(self, what: str, system: System) -> Line:
        return head(what, system) | {
            "partitions": self._shape.partitions,
            "value_bytes": self._shape.value_bytes,
            "trigger": "0 seconds",
            "master": system.settings.get("master", "local[2]"),
        }

    @contextlib.contextmanager
    def _reported(self, line: Line) -> Iterator[None]:
        """Emit the line in every case; a failure is a line with `error`."""
        self._watch(f"{line['what']}: {line['system']}", 0, 0)
        try:
            yield
        except SparkOnceError as error:
            line["error"] = str(error)
            self.errors.append(error)
        self._emit(line)


def head(what: str, system: System) -> Line:
    """Return the fields that every line of a system begins with."""
    return {
        "what": what,
        "system": system.name,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": {
            **system.versions,
            "python": platform.python_version(),
            "librdkafka": librdkafka_version(),
        },
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def rates(
    came: int, times: list[int], visible: npt.NDArray[np.int64], report: Mapping[str, Any]
) -> Line:
    """Return records per second, from the samples of a watcher and the job's own start time.

    Args:
        came: number of records in the output.
        times: times of the watcher's samples, ns.
        visible: number of visible records in each sample.
        report: the job's report.

    Raises:
        SparkOnceError: the output is empty, or the job did not report its start: the job was
            killed because it did not stop, or it failed.
    """
    began_ns = figures.begun_ns(report)
    if began_ns is None or came == 0:
        raise SparkOnceError(
            "The job ended without a result.",
            where=f"{came:,} records in the output",
            cause="the job was killed before it could report its batches, or it read no record",
        )
    all_ns = times[int((visible >= came).argmax())]
    look = int((visible > 0).argmax())
    first, first_ns = int(visible[look]), times[look]
    return {
        "first_visible_records": first,
        "first_visible_s": round((first_ns - began_ns) / 1e9, 3),
        "records_per_s_total": round(came / ((all_ns - began_ns) / 1e9)),
        # None: one sample of the reader found the first record and the last.
        "records_per_s_steady": round((came - first) / ((all_ns - first_ns) / 1e9))
        if all_ns > first_ns
        else None,
    }


def _of(pace: Pace) -> Line:
    return {"rate": pace.rate, "warmup_s": pace.warmup_s, "seconds": pace.seconds}


def _median(values: list[int]) -> float | None:
    return round(float(np.median(values)), 1) if values else None
