"""The pipeline that crash tests run as a process of its own: one source, two branches.

The stateless branch copies each record into the partition that it came from, so that order can be
checked; the stateful one counts records per key. Both commit under one decision.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

import orjson
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver, build_session
from connectors.testing.child import FAILED, say, say_checkpoint
from connectors.testing.jobs import QUICK_START
from tests.power_cut import RECORD_TO, record_syncs
from transactions.errors import SparkOnceError


class CountRows(StatefulProcessor):  # type: ignore[misc]
    """Counts the rows of a key in a value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: tuple[bytes], rows: Iterator[Row], _timers: object
    ) -> Iterator[Row]:
        before = self._count.get()[0] if self._count.exists() else 0
        count = before + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], value=str(count))

    def close(self) -> None:
        """Nothing is held."""


def aggregation(rows: DataFrame) -> DataFrame:
    """Count per key."""
    return rows.groupBy("key").count().select("key", f.col("count").cast("string").alias("value"))


def window(rows: DataFrame) -> DataFrame:
    """Count per key and hour; the test's records are all of one hour, that of their offset 0."""
    hour = f.window(f.timestamp_seconds(f.lit(0)), "1 hour")
    counted = rows.groupBy("key", hour).count()
    return counted.select("key", f.col("count").cast("string").alias("value"))


def transform_with_state(rows: DataFrame) -> DataFrame:
    """Count per key in Spark's newest state API."""
    return (
        rows.select("key")
        .groupBy("key")
        .transformWithState(
            statefulProcessor=CountRows(),
            outputStructType="key binary, value string",
            outputMode="update",
            timeMode="none",
        )
    )


def random(rows: DataFrame) -> DataFrame:
    """Count some of the records per key: others in each run."""
    return aggregation(rows.where(f.rand() < 0.5))


STATEFUL = {
    "aggregation": aggregation,
    "window": window,
    "transform-with-state": transform_with_state,
    "random": random,
}


def main() -> int:
    """Run until the input is used up, or for ever; return the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "copies", "counts", "app", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-offsets", type=int, default=40)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", type=orjson.loads, default={}, help="Spark settings, JSON")
    parser.add_argument("--trigger", default="available-now")
    parser.add_argument("--value", default="value", help="SQL of the copies' value")
    parser.add_argument(
        "--restart-strategy", default="none", help="a killed worker is an exit code"
    )
    parser.add_argument("--checkpoint-timeout", type=float, default=600.0)
    parser.add_argument("--poll-timeout-ms", type=int, default=120_000)
    parser.add_argument("--producer", type=orjson.loads, default={}, help="settings, JSON")
    parser.add_argument("--stateful", choices=STATEFUL, default="aggregation")
    given = parser.parse_args()
    if RECORD_TO in os.environ:
        record_syncs(os.environ[RECORD_TO])
    spark = build_session("pipeline", master=given.master, conf=QUICK_START | given.conf)
    driver = StreamingDriver(
        spark,
        app_id=given.app,
        checkpoint=given.checkpoint,
        trigger=given.trigger,
        checkpoint_timeout_s=given.checkpoint_timeout,
        restart_strategy=given.restart_strategy,
        on_checkpoint=say_checkpoint,
    )
    source = KafkaSource(
        bootstrap_servers=given.bootstrap,
        subscribe=given.input,
        starting_offsets="earliest",
        max_offsets_per_trigger=given.max_offsets,
        poll_timeout_ms=given.poll_timeout_ms,
    )
    rows = driver.read(source)
    copies = rows.selectExpr("key", f"{given.value} AS value", "partition")
    driver.write(
        copies,
        KafkaSink(bootstrap_servers=given.bootstrap, topic=given.copies, kafka=given.producer),
    )
    driver.write(
        STATEFUL[given.stateful](rows),
        KafkaSink(bootstrap_servers=given.bootstrap, topic=given.counts),
    )
    try:
        driver.run()
    except SparkOnceError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return FAILED
    finally:
        say(recommitted=driver.recommitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
