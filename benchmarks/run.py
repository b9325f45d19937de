"""Measure throughput until visible, end-to-end latency, and the commit's own phases.

JSON lines on stdout, progress and a table on stderr. `make bench`, `make bench PEERS=spark`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import platform
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import confluent_kafka

from benchmarks import figures
from benchmarks.figures import Line
from benchmarks.peers import PEERS, chosen
from benchmarks.plot import draw
from benchmarks.systems import MODES, USUAL_MODES, Job, PeerError, System
from benchmarks.workload import (
    PARTITIONS,
    VALUE_BYTES,
    EndWatcher,
    Prober,
    WorkloadError,
    audit_topic,
    load,
)
from connectors.kafka.cluster.local_cluster import LocalCluster
from transactions.errors import SparkOnceError

RESULTS = Path(__file__).parent / "results"
#: As a broker of one's own would run, not as the quickly started one of the tests.
BROKER_JVM = ("-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")


class Bench:
    """The measurements on one broker; every run gets topics and a folder of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, emit: Callable[[Line], None]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._emit = emit
        self._loaded: str | None = None

    def throughput(self, system: System, *, records: int, batch_records: int) -> None:
        """Measure a backlog: how fast do its records become visible."""
        bootstrap = self._cluster.bootstrap_servers
        if self._loaded is None:
            self._loaded = self._topic("backlog")
            rate = load(bootstrap, self._loaded, records)
            say(f"loaded {records:,} records at {rate:,.0f}/s")
        output = self._topic("out")
        line = head("throughput", system)
        line |= {"records": records, "batch_records": batch_records, **_COMMON}
        job = Job(
            system,
            self._folder / output,
            bootstrap=bootstrap,
            topics=(self._loaded, output),
            batch_records=batch_records,
        )
        with self._reported(line):
            watcher = EndWatcher(bootstrap, output)
            with job:
                watcher.wait_for(records, timeout_s=120 + records / 5000, check=job.check)
            audit, offsets = audit_topic(bootstrap, output, watcher.ends[-1], records)
            line |= vars(audit)
            visible = watcher.visible(offsets)
            batches = figures.batches_of(job.report)
            begun_ns = job.report["first_record_ns"] or figures.batch_start_ns(batches[0])
            all_ns = watcher.times[int((visible >= records - audit.lost).argmax())]
            look = int((visible > 0).argmax())
            first, first_ns = int(visible[look]), watcher.times[look]
            line |= {
                "commits": job.report["commits"] or len(batches),
                "first_visible_records": first,
                "first_visible_s": round((first_ns - begun_ns) / 1e9, 3),
                "records_per_s_total": round(records / ((all_ns - begun_ns) / 1e9)),
                # None: one look of the reader found the first record and the last.
                "records_per_s_steady": round((records - first) / ((all_ns - first_ns) / 1e9))
                if all_ns > first_ns
                else None,
                "spark_phases": figures.spark_phases(batches[1:] or batches),
            }
        self._phases("throughput phases", system, figures.commit_phases(job.report))

    def latency(self, system: System, *, rate: int, warmup_s: float, seconds: float) -> None:
        """Measure the time from a record's production to a read_committed reader's sight."""
        topics = (self._topic("in"), self._topic("out"))
        line = head("latency", system)
        line |= {"rate": rate, "warmup_s": warmup_s, "seconds": seconds, **_COMMON}
        prober = Prober(
            bootstrap=self._cluster.bootstrap_servers,
            topics=topics,
            rate=rate,
            warmup_s=warmup_s,
            seconds=seconds,
        )
        job = Job(
            system,
            self._folder / topics[1],
            bootstrap=self._cluster.bootstrap_servers,
            topics=topics,
            batch_records=None,
        )
        with self._reported(line):
            with job:
                values = prober.run(job.check)
            batches = figures.batches_of(job.report, prober.measured_from_ns)
            line |= {
                "measured": len(values),
                **figures.percentiles(values / 1e6),
                **figures.curve(values / 1e6),
                **vars(prober.audit),
                "producer_late_max_ms": round(prober.late_max_ms, 1),
                "commits": job.report["commits"] or len(batches),
                "spark_phases": figures.spark_phases(batches),
            }
        phases = figures.commit_phases(job.report, prober.measured_from_ns)
        self._phases("latency phases", system, phases)

    def _phases(self, what: str, system: System, phases: dict[str, dict[str, float]]) -> None:
        if phases:
            self._emit({**head(what, system), "phase_ms": phases})

    @contextlib.contextmanager
    def _reported(self, line: Line) -> Iterator[None]:
        """Emit the line, whatever happens; a failure is a line with `error`."""
        say(f"{line['what']}: {line['system']}")
        try:
            yield
        except (PeerError, WorkloadError, SparkOnceError) as error:
            line["error"] = str(error)
        self._emit(line)

    def _topic(self, name: str) -> str:
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        self._cluster.create_topic(unique, PARTITIONS)
        return unique


_COMMON: Line = {
    "partitions": PARTITIONS,
    "value_bytes": VALUE_BYTES,
    "trigger": "0 seconds",
    "master": "local[2]",
}


def head(what: str, system: System) -> Line:
    """Return the fields that every line of a system begins with."""
    return {
        "what": what,
        "system": system.name,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": {
            **system.versions,
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
        },
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def keep_lines(lines: Sequence[Line], name: str) -> Path:
    """Write the lines of a run where results are kept."""
    RESULTS.mkdir(exist_ok=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    target = RESULTS / f"{today}-{name}.jsonl"
    target.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    say(f"written to {target}")
    return target


def say(text: str) -> None:
    """Tell people what goes on."""
    click.echo(f"bench: {text}", err=True)


_MODES_HELP = f"Ours, separated by commas, or none: {', '.join(MODES)}."
_PEERS_HELP = (
    f"Beside us, separated by commas: {', '.join(PEERS)}, a first part of these, all (which are "
    "installed first), installed, or none."
)


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Backlog of throughput.")
@click.option("--batch-records", default=250_000, show_default=True, help="maxOffsetsPerTrigger.")
@click.option("--rate", default=2000, show_default=True, help="Records per second of latency.")
@click.option("--seconds", default=30.0, show_default=True, help="Measured seconds of latency.")
@click.option("--warmup", default=15.0, show_default=True, help="Seconds before, not measured.")
@click.option("--rounds", default=1, show_default=True, help="How often; A B A B with peers.")
@click.option("--modes", default=",".join(USUAL_MODES), show_default=True, help=_MODES_HELP)
@click.option("--peers", default="installed", show_default=True, help=_PEERS_HELP)
@click.option("--only", type=click.Choice(["throughput", "latency"]), help="One measurement.")
@click.option(
    "--keep", metavar="NAME", help="Also write benchmarks/results/<date>-NAME.jsonl, .png."
)
def main(  # noqa: PLR0917 - click passes them by name
    records: int,
    batch_records: int,
    rate: int,
    seconds: float,
    warmup: float,
    rounds: int,
    modes: str,
    peers: str,
    only: str | None,
    keep: str | None,
) -> None:
    """Measure sparkonce, and peers beside it, on a broker of its own."""
    wanted = [mode for mode in modes.split(",") if mode and mode != "none"]
    if unknown := set(wanted) - set(MODES):
        raise click.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="--modes")
    try:
        theirs = chosen("" if peers == "none" else peers)
    except KeyError as error:
        raise click.BadParameter(f"unknown: {error}", param_hint="--peers") from error
    ours = [MODES[mode] for mode in wanted]
    systems = [*ours, *theirs]
    lines: list[Line] = []

    def emit(line: Line) -> None:
        lines.append(line)
        click.echo(json.dumps(line))

    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder,
        LocalCluster(jvm_options=BROKER_JVM) as cluster,
    ):
        bench = Bench(cluster, Path(folder), emit)
        for _ in range(rounds):
            if only != "latency":
                for system in systems:
                    bench.throughput(system, records=records, batch_records=batch_records)
            if only != "throughput":
                for system in systems:
                    bench.latency(system, rate=rate, warmup_s=warmup, seconds=seconds)
    compared = figures.ratios(lines, [system.name for system in ours])
    for line in compared:
        emit(line)
    figures.show(lines, compared)
    if keep:
        draw(lines, keep_lines(lines, keep).with_suffix(".png"))
    wrong = [one for one in lines if one.get("lost") or one.get("error")]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
