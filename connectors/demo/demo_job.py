"""The demo's job: clean flights and arrivals per airport, two topics under one decision.
Continuous mode has no state, so there the job only writes the clean flights.

It is a separate process: the supervisor starts it with ``python -m connectors.demo.demo_job``,
kills it and restarts it. `examples/flights.py` is the same job without the demo.
"""

from __future__ import annotations

import signal
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from connectors.demo.child import tell
from connectors.demo.dataset import carrier_names
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.machine.parent_watch import live_as_long_as_parent
from connectors.options.kafka_source import KafkaSource
from connectors.options.modes import MODES
from connectors.options.table import CONTINUOUS
from connectors.spark.pipeline import ArrowPipeline, arrow_pipeline
from connectors.spark.session import build_session
from connectors.spark.streaming_driver import StreamingDriver
from transactions.coordinator import CheckpointReport

_FLIGHT = """flight_id LONG, time_hour STRING, carrier STRING, flight INT, tailnum STRING,
    origin STRING, dest STRING, dep_delay INT, arr_delay INT, air_time INT, distance INT"""


def parse(records: DataFrame) -> DataFrame:
    """Return the flights in the values of Kafka records."""
    flight = f.from_json(f.col("value").cast("string"), _FLIGHT)
    return records.select(flight.alias("flight")).select("flight.*")


def clean(flights: DataFrame) -> DataFrame:
    """Add the carrier's name and the delay class of the departure; stateless."""
    names = carrier_names()
    carrier = f.create_map(*(f.lit(text) for pair in names.items() for text in pair))
    delay = (
        f.when(f.col("dep_delay").isNull(), "cancelled")
        .when(f.col("dep_delay") < 15, "on time")
        .when(f.col("dep_delay") < 60, "late")
        .otherwise("very late")
    )
    enriched = flights.withColumns({"carrier_name": carrier[f.col("carrier")], "departure": delay})
    return enriched.select(
        f.col("flight_id").cast("string").alias("key"), f.to_json(f.struct("*")).alias("value")
    )


def arrivals_per_airport(flights: DataFrame) -> DataFrame:
    """Count the flights to each airport, with state in RocksDB; each changed count is a record."""
    counts = flights.groupBy("dest").count()
    return counts.select(
        f.col("dest").alias("key"), f.to_json(f.struct("dest", "count")).alias("value")
    )


def _report(report: CheckpointReport) -> None:
    tell(
        "checkpoint",
        id=report.checkpoint_id,
        records=report.records,
        transactions=report.transactions,
        replayed=report.replayed,
        recommitted=report.recommitted,
        commit_ms=report.commit_ms,
        phase_ms=report.phase_ms,
    )


def make_pipeline(
    spark: SparkSession, mode: str, source: KafkaSource, topics: tuple[str, ...], **options: Any
) -> ArrowPipeline:
    """Make the job of a mode; `topics`: the clean flights and, in micro-batch mode, the counts."""
    sinks = [KafkaSink(bootstrap_servers=source.bootstrap_servers, topic=each) for each in topics]
    if mode == CONTINUOUS:
        function = "connectors.demo.flight_cleaning:clean"
        return arrow_pipeline(
            spark, mode=mode, source=source, transform=function, sink=sinks[0], **options
        )
    driver = StreamingDriver(spark, **options)
    flights = parse(driver.read(source))
    driver.write(clean(flights), sinks[0])
    driver.write(arrivals_per_airport(flights), sinks[1])
    return driver


@click.command()
@click.option("--mode", type=click.Choice(MODES), required=True)
@click.option("--bootstrap", required=True)
@click.option("--topic", "topics", multiple=True, required=True, help="Input, then outputs.")
@click.option("--app-id", required=True)
@click.option("--checkpoint", required=True)
@click.option("--master", required=True)
@click.option("--conf", "pairs", multiple=True)
@click.option("--max-offsets", type=int, required=True, help="Per micro-batch.")
def main(
    *,
    mode: str,
    bootstrap: str,
    topics: tuple[str, ...],
    app_id: str,
    checkpoint: str,
    master: str,
    pairs: tuple[str, ...],
    max_offsets: int,
) -> None:
    """Run until SIGTERM; send one message per checkpoint."""
    live_as_long_as_parent()
    spark = build_session(app_id, master=master, conf=dict(pair.split("=", 1) for pair in pairs))
    spark.sparkContext.setLogLevel("WARN")
    source = KafkaSource(
        bootstrap_servers=bootstrap,
        subscribe=topics[0],
        starting_offsets="earliest",
        max_offsets_per_trigger=None if mode == CONTINUOUS else max_offsets,
    )
    pipeline = make_pipeline(
        spark,
        mode,
        source,
        topics[1:],
        app_id=app_id,
        checkpoint=checkpoint,
        on_checkpoint=_report,
    )
    tell("ready")
    signal.signal(signal.SIGTERM, lambda *_: pipeline.request_stop())
    pipeline.start()
    tell("recovered", recommitted=pipeline.recommitted)
    pipeline.wait()
    spark.stop()


if __name__ == "__main__":
    main()
