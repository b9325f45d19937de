"""The pipeline that crash tests run as a process of its own: one source, two branches.

The stateless branch copies each record into the partition that it came from, so that order can be
checked; the stateful one counts records per key. Both commit under one decision.
"""

from __future__ import annotations

import argparse
import sys

import orjson
from pyspark.sql import functions as f

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver, build_session
from transactions.coordinator import CheckpointReport
from transactions.errors import SparkOnceError


def main() -> int:
    """Run until the input is used up, or for ever; return the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "copies", "counts", "app", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-offsets", type=int, default=40)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--trigger", default="available-now")
    given = parser.parse_args()
    spark = build_session("pipeline", master=given.master)
    driver = StreamingDriver(
        spark,
        app_id=given.app,
        checkpoint=given.checkpoint,
        trigger=given.trigger,
        on_checkpoint=_report,
    )
    source = KafkaSource(
        bootstrap_servers=given.bootstrap,
        subscribe=given.input,
        starting_offsets="earliest",
        max_offsets_per_trigger=given.max_offsets,
    )
    rows = driver.read(source)
    copies = rows.select("key", "value", "partition")
    driver.write(copies, KafkaSink(bootstrap_servers=given.bootstrap, topic=given.copies))
    counts = rows.groupBy("key").count().select("key", f.col("count").cast("string").alias("value"))
    driver.write(counts, KafkaSink(bootstrap_servers=given.bootstrap, topic=given.counts))
    try:
        driver.run()
    except SparkOnceError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 3
    finally:
        print(orjson.dumps({"recommitted": driver.recommitted}).decode(), flush=True)
    return 0


def _report(report: CheckpointReport) -> None:
    line = {"checkpoint": report.checkpoint_id, "records": report.records}
    print(orjson.dumps({**line, "replayed": report.replayed}).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
