"""Measure throughput until visible, end-to-end latency, and the commit's own phases.

JSON lines on stdout, progress and a table on stderr. `make bench`, `make bench PEERS=spark`.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from benchmarks import comparison
from benchmarks.peers import PEERS, chosen
from benchmarks.plot import draw
from benchmarks.systems import MODES, USUAL_MODES
from benchmarks.workload import PARTITIONS, VALUE_BYTES
from connectors.bench import broker_pauses
from connectors.bench.bench_topics import BenchTopics
from connectors.bench.figures import Line
from connectors.bench.measurements import Measurements, Pace
from connectors.bench.shape import Shape
from connectors.bench.system import System
from connectors.bench.workbench import BROKER_JVM
from connectors.cluster.local_cluster import LocalCluster

#: Little, usual and much for one task; Kafka Streams and Flink keep up with all of it.
_RATES = "1000,2000,10000,20000,50000,100000"
RESULTS = Path(__file__).parent / "results"


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


class _Steps:
    """Tells what is being done, once."""

    def __init__(self) -> None:
        self._step = ""

    def watch(self, step: str, _done: int, _total: int) -> None:
        """See `connectors.bench.prober.Watch`."""
        if step != self._step:
            self._step = step
            say(step)


_MODES_HELP = f"Ours, separated by commas, or none: {', '.join(MODES)}."
_PEERS_HELP = (
    f"Beside us, separated by commas: {', '.join(PEERS)}, a first part of these, all (which are "
    "installed first), installed, or none."
)


def measure(
    systems: Sequence[System],
    emit: Callable[[Line], None],
    *,
    backlog: tuple[int, int] | None,
    paces: Sequence[Pace],
    shape: Shape,
    rounds: int,
    slowest: int,
) -> None:
    """Measure all systems on one broker, which warms up first.

    Args:
        systems: in each round, in this order: A B A B.
        emit: receives each line.
        backlog: the records of throughput, and how many a batch has; None for no throughput.
        paces: of latency.
        shape: of the topics and their records.
        rounds: how often.
        slowest: see `Measurements`.
    """
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as name:
        folder = Path(name)
        pauses = (broker_pauses.log_option(folder),) if slowest else ()
        with LocalCluster(jvm_options=(*BROKER_JVM, *pauses)) as cluster:
            kafka = {"bootstrap.servers": cluster.bootstrap_servers}
            make = functools.partial(
                Measurements,
                *(kafka, BenchTopics(kafka), folder),
                shape=shape,
                watch=_Steps().watch,
                slowest=slowest,
                pauses=functools.partial(broker_pauses.read, folder) if slowest else None,
            )
            if paces and systems:
                say("the broker warms up: this run does not count")
                make(emit=lambda _line: None).latency(systems[0], paces[0])
            bench = make(emit=emit)
            for _ in range(rounds):
                for system in systems if backlog is not None else ():
                    bench.throughput(system, records=backlog[0], batch_records=backlog[1])
                for pace in paces:
                    for system in systems:
                        bench.latency(system, pace)


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Backlog of throughput.")
@click.option("--batch-records", default=250_000, show_default=True, help="maxOffsetsPerTrigger.")
@click.option("--rate", default=_RATES, show_default=True, help="Of latency; several are a curve.")
@click.option("--seconds", default=60.0, show_default=True, help="Measured seconds of latency.")
@click.option("--warmup", default=15.0, show_default=True, help="Seconds before, not measured.")
@click.option("--partitions", default=PARTITIONS, show_default=True, help="Of each topic.")
@click.option("--rounds", default=1, show_default=True, help="How often; A B A B with peers.")
@click.option("--slowest", default=20, show_default=True, help="Checkpoints to tell, per latency.")
@click.option("--modes", default=",".join(USUAL_MODES), show_default=True, help=_MODES_HELP)
@click.option("--peers", default="installed", show_default=True, help=_PEERS_HELP)
@click.option("--only", type=click.Choice(["throughput", "latency"]), help="One measurement.")
@click.option(
    "--keep", metavar="NAME", help="Also write benchmarks/results/<date>-NAME.jsonl, .png."
)
def main(  # noqa: PLR0917 - click passes them by name
    records: int,
    batch_records: int,
    rate: str,
    seconds: float,
    warmup: float,
    partitions: int,
    rounds: int,
    slowest: int,
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
    if not all(word.isdigit() and int(word) for word in rate.split(",")):
        raise click.BadParameter(f"not records a second: {rate}", param_hint="--rate")
    paces = [Pace(rate=int(word), warmup_s=warmup, seconds=seconds) for word in rate.split(",")]
    ours = [MODES[mode] for mode in wanted]
    systems = [*ours, *theirs]
    lines: list[Line] = []

    def emit(line: Line) -> None:
        lines.append(line)
        click.echo(json.dumps(line))

    backlog = None if only == "latency" else (records, batch_records)
    measure(
        systems,
        emit,
        backlog=backlog,
        paces=[] if only == "throughput" else paces,
        shape=Shape(partitions, VALUE_BYTES),
        rounds=rounds,
        slowest=slowest,
    )
    compared = comparison.ratios(lines, [system.name for system in ours])
    for line in compared:
        emit(line)
    comparison.show(lines, compared)
    if keep:
        draw(lines, keep_lines(lines, keep).with_suffix(".png"))
    wrong = [one for one in lines if one.get("lost") or one.get("error")]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
