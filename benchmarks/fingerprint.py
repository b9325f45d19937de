"""What share of the throughput the fingerprint of the records takes.

Measured in one run: nanoseconds per record of the fingerprint, beside those of a plain consume and
a plain produce of the same records with the same client, in one thread each. JSON line on stdout.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import click
import pyarrow as pa
from confluent_kafka import Consumer, Producer

from benchmarks.workload import PARTITIONS, VALUE_BYTES, load, read_committed
from connectors.bench.workbench import BROKER_JVM
from connectors.cluster.local_cluster import LocalCluster
from connectors.records.fingerprint import Fingerprint

BATCH = 20_000  # rows of an Arrow batch, as the session sets it


@click.command()
@click.option("--records", default=500_000, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="The best of them counts.")
def main(records: int, repeats: int) -> None:
    """Measure, and print one line."""
    with LocalCluster(jvm_options=BROKER_JVM) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, PARTITIONS)
        load(cluster.bootstrap_servers, "in", records)
        consume = min(_consume(cluster.bootstrap_servers, records) for _ in range(repeats))
        produce = min(_produce(cluster.bootstrap_servers, records) for _ in range(repeats))
    keys = [number.to_bytes(8, "big") for number in range(BATCH)]
    batch = pa.record_batch(
        {"key": pa.array(keys, pa.binary()), "value": pa.array([b"x" * VALUE_BYTES] * BATCH)}
    )
    fingerprint = min(_fingerprint(batch, records) for _ in range(repeats))
    figures = {"fingerprint": fingerprint, "consume": consume, "produce": produce}
    line = {
        "what": "fingerprint",
        "records": records,
        "value_bytes": VALUE_BYTES,
        "ns_per_record": {name: round(value) for name, value in figures.items()},
        "share_of_consume_and_produce": round(fingerprint / (consume + produce), 4),
    }
    click.echo(json.dumps(line))


def _fingerprint(batch: pa.RecordBatch, records: int) -> float:
    total = Fingerprint()

    def run() -> None:
        while total.count < records:
            total.add(batch, "out")

    return _ns_per(run, records)


def _consume(bootstrap: str, records: int) -> float:
    consumer: Consumer = read_committed(bootstrap, "in")

    def run() -> None:
        got = 0
        while got < records:
            for message in consumer.consume(10_000, timeout=1.0):
                message.key(), message.value()
                got += 1

    try:
        return _ns_per(run, records)
    finally:
        consumer.close()


def _produce(bootstrap: str, records: int) -> float:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    value = b"x" * VALUE_BYTES

    def run() -> None:
        for number in range(records):
            producer.produce("out", value, number.to_bytes(8, "big"))
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60.0) == 0

    return _ns_per(run, records)


def _ns_per(run: Callable[[], None], records: int) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / records


if __name__ == "__main__":
    main()
