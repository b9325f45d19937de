"""What the driver's question before each decision costs: on the asking thread, and on another.

Both ways in one run, alternately. The question is DescribeTransactions for the ids of a checkpoint.
A JSON line on stdout: p50 and p95 in microseconds, and the CPU time of this process for one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import click
from confluent_kafka import Producer

from benchmarks.workload import PARTITIONS
from connectors.bench.workbench import BROKER_JVM
from connectors.cluster.local_cluster import LocalCluster
from connectors.wire.coordinator_wire import CoordinatorWire
from transactions.clock import Deadline

_PATIENCE_S = 30.0


@click.command()
@click.option("--ids", default=2, show_default=True, help="Transactions of a checkpoint.")
@click.option("--questions", default=1000, show_default=True, help="Of each way, in each round.")
@click.option("--rounds", default=5, show_default=True, help="The median of them counts.")
def main(ids: int, questions: int, rounds: int) -> None:
    """Measure, and print one line."""
    names = [f"bench.{number}" for number in range(ids)]
    with LocalCluster(jvm_options=BROKER_JVM) as cluster:
        cluster.create_topic("out", PARTITIONS)
        writers = [_begun(cluster.bootstrap_servers, name) for name in names]
        with CoordinatorWire({"bootstrap.servers": cluster.bootstrap_servers}) as wire:

            def ask() -> None:
                found = wire.describe(names, Deadline(_PATIENCE_S))
                assert {one.state for one in found.values()} == {"Ongoing"}

            figures: dict[str, list[dict[str, float]]] = {"asking_thread": [], "io_thread": []}
            with ThreadPoolExecutor(1) as beside:
                for _ in range(rounds + 1):
                    # On the main thread nobody asks directly.
                    figures["io_thread"].append(_cost(ask, questions))
                    figures["asking_thread"].append(beside.submit(_cost, ask, questions).result())
        del writers
    line = {"what": "direct_questions", "ids": ids, "questions": questions, "rounds": rounds}
    for way, costs in figures.items():
        warm = costs[1:]
        line[way] = {
            name: round(sorted(one[name] for one in warm)[rounds // 2]) for name in warm[0]
        }
    click.echo(json.dumps(line))


def _begun(bootstrap: str, name: str) -> Producer:
    """Return a producer with an open transaction that has a record."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 3}
    producer = Producer(settings)
    producer.init_transactions(_PATIENCE_S)
    producer.begin_transaction()
    producer.produce("out", b"x")
    assert producer.flush(_PATIENCE_S) == 0
    return producer


def _cost(ask: Callable[[], None], questions: int) -> dict[str, float]:
    took: list[float] = []
    cpu_s = time.process_time()
    for _ in range(questions):
        began = time.perf_counter()
        ask()
        took.append((time.perf_counter() - began) * 1e6)
    cpu_us = (time.process_time() - cpu_s) * 1e6 / questions
    took.sort()
    return {
        "p50_us": took[questions // 2],
        "p95_us": took[int(questions * 0.95)],
        "cpu_us": cpu_us,
    }


if __name__ == "__main__":
    main()
