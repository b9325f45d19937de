"""What one record costs on its way through a task: consume, transform, produce, us of each.

The plain and the native path in one run, in the order A B A B, on one thread and on the same
records. JSON lines on stdout: every round, then the best of each and what native saves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import click
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workload import PARTITIONS, VALUE_BYTES, load
from connectors.bench.workbench import BROKER_JVM
from connectors.clients.client_settings import librdkafka_settings
from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.sink.transactional_producer import TransactionalProducer
from connectors.kafka.source.partition_reader import PartitionReader
from connectors.native import librdkafka
from connectors.native.native_producer import NativeTransactionalProducer
from connectors.native.native_reader import NativePartitionReader
from connectors.options.kafka_source import KafkaSource
from transactions.clock import Deadline

#: Rows queued between two flushes: what a producer holds without waiting for the broker.
_QUEUED = 100_000
_PATIENCE_S = 120.0

Figures = dict[str, float]
Batches = list[pa.RecordBatch]


@click.command()
@click.option("--records", default=500_000, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="The best of them counts.")
def main(records: int, rounds: int) -> None:
    """Measure, and print one line for each step, way and round."""
    reason = librdkafka.available()
    if reason:
        raise click.ClickException(f"the native path is not available: {reason}")
    best: dict[tuple[str, str], Figures] = {}
    with LocalCluster(jvm_options=BROKER_JVM) as cluster:
        cluster.create_topic("in", PARTITIONS)
        cluster.create_topic("out", PARTITIONS)
        load(cluster.bootstrap_servers, "in", records)
        batches = _read(PartitionReader, cluster.bootstrap_servers, records)[1]
        # Without the times of the source: a record with one is queued by a call of its own.
        made = [transform(batch) for batch in batches]
        steps: dict[tuple[str, str], Callable[[], Figures]] = {
            ("consume", "plain"): lambda: _consume(PartitionReader, cluster, records),
            ("consume", "native"): lambda: _consume(NativePartitionReader, cluster, records),
            ("transform", "arrow"): lambda: _transform(batches, records),
            ("produce", "plain"): lambda: _produce(TransactionalProducer, cluster, made),
            ("produce", "native"): lambda: _produce(NativeTransactionalProducer, cluster, made),
        }
        for number in range(rounds):
            for (step, way), measure in steps.items():
                figures = measure()
                line = {"what": "hot path", "step": step, "way": way, "round": number}
                _say(line | {"records": records, "value_bytes": VALUE_BYTES} | figures)
                so_far = best.setdefault((step, way), figures)
                best[step, way] = {name: min(so_far[name], figures[name]) for name in figures}
    for step in ("consume", "produce"):
        plain, native = best[step, "plain"], best[step, "native"]
        ratios = {name: round(plain[name] / native[name], 2) for name in plain}
        _say({"what": "hot path, best", "step": step, "plain": plain, "native": native})
        _say({"what": "hot path, plain / native", "step": step} | ratios)


def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Do what the jobs of `run.py` do: the last byte of each value becomes T."""
    value = pc.binary_replace_slice(batch.column("value"), VALUE_BYTES - 1, VALUE_BYTES, b"T")
    return pa.record_batch({"key": batch.column("key"), "value": value})


def _consume(kind: type[PartitionReader], cluster: LocalCluster, records: int) -> Figures:
    return _read(kind, cluster.bootstrap_servers, records)[0]


def _read(kind: type[PartitionReader], bootstrap: str, records: int) -> tuple[Figures, Batches]:
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe="in")
    reader = kind(source, {f"in-{number}": 0 for number in range(PARTITIONS)})
    batches: Batches = []
    deadline = Deadline(_PATIENCE_S)
    while not batches:  # the connection is not part of what a record costs
        if (batch := reader.read(1.0).batch) is not None:
            batches.append(batch)
    got = first = sum(batch.num_rows for batch in batches)
    watch = _Watch()
    while got < records:
        assert not deadline.expired(), f"{got} of {records} records came"
        if (batch := reader.read(1.0).batch) is not None:
            batches.append(batch)
            got += batch.num_rows
    figures = watch.per_record(records - first)
    reader.close()
    return figures, batches


def _transform(batches: Batches, records: int) -> Figures:
    watch = _Watch()
    for batch in batches:
        transform(batch)
    return watch.per_record(records)


def _produce(kind: type[TransactionalProducer], cluster: LocalCluster, batches: Batches) -> Figures:
    """Queue and flush in turns: `queue` is the time in produce(), the rest waits for the broker."""
    settings = librdkafka_settings({"bootstrap.servers": cluster.bootstrap_servers})
    producer = kind(settings, f"hot-path-{time.monotonic_ns()}", timeout_ms=60_000)
    deadline = Deadline(_PATIENCE_S)
    producer.init(deadline)
    producer.begin()
    producer.produce(batches[0], "out", deadline)
    producer.flush(deadline)
    queue_s, rows, queued = 0.0, 0, 0
    watch = _Watch()
    for batch in batches:
        start = time.perf_counter()
        producer.produce(batch, "out", deadline)
        queue_s += time.perf_counter() - start
        rows += batch.num_rows
        queued += batch.num_rows
        if queued > _QUEUED:
            producer.flush(deadline)
            queued = 0
    producer.flush(deadline)
    figures = watch.per_record(rows)
    producer.resync(deadline)
    return {"queue_us": round(queue_s / rows * 1e6, 3)} | figures


class _Watch:
    """Time since it was made: on the wall, of this thread, of librdkafka's threads as well."""

    def __init__(self) -> None:
        self._start = self._now()

    def per_record(self, records: int) -> Figures:
        """Return microseconds per record."""
        names = ("wall_us", "thread_cpu_us", "process_cpu_us")
        passed = zip(names, self._start, self._now(), strict=True)
        return {name: round((now - then) / records * 1e6, 3) for name, then, now in passed}

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), time.process_time()


def _say(line: dict[str, object]) -> None:
    click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
