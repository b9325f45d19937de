"""The pipeline that crash tests run as a process of its own: one source, two branches.

The stateless branch copies each record into the partition that it came from, so that order can be
checked; the stateful one counts records per key. Both commit under one decision.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import orjson
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver, build_session
from transactions.coordinator import CheckpointReport
from transactions.errors import SparkOnceError

#: A process that lives half a minute: the JVM's second compiler costs more than it gives.
QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


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


STATEFUL = {
    "aggregation": aggregation,
    "window": window,
    "transform-with-state": transform_with_state,
}


def main() -> int:
    """Run until the input is used up, or for ever; return the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "copies", "counts", "app", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-offsets", type=int, default=40)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--trigger", default="available-now")
    parser.add_argument("--stateful", choices=STATEFUL, default="aggregation")
    given = parser.parse_args()
    spark = build_session("pipeline", master=given.master, conf=QUICK_START)
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
    driver.write(
        STATEFUL[given.stateful](rows),
        KafkaSink(bootstrap_servers=given.bootstrap, topic=given.counts),
    )
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
