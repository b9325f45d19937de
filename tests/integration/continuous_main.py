"""The continuous pipeline that crash tests run as a process of its own: a copy of each record into
the partition that it came from, so that order can be checked.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

import orjson
import pyarrow as pa

from connectors import KafkaSink, KafkaSource
from connectors.options.guarantee import EXACTLY_ONCE, GUARANTEES
from connectors.spark import ContinuousDriver, build_session
from connectors.testing.child import FAILED, say, say_checkpoint
from connectors.testing.jobs import QUICK_START
from transactions.errors import SparkOnceError


def copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep key, value and partition."""
    return batch.select(["key", "value", "partition"])


def at_a_pace(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy; each record takes as many milliseconds of work as a file of the test says."""
    milliseconds = float(Path(os.environ["PACE_OF_TEST"]).read_text())
    end = time.perf_counter() + batch.num_rows * milliseconds / 1000
    while time.perf_counter() < end:
        pass
    return copy(batch)


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "output", "app", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--parallelism", type=int)
    parser.add_argument("--function", default="copy")
    parser.add_argument("--interval", type=float)
    parser.add_argument("--trigger")
    parser.add_argument("--path", choices=("native", "plain"), default="native")
    parser.add_argument("--restart-strategy", default="none")
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--conf", type=orjson.loads, default={}, help="Spark settings, JSON")
    parser.add_argument("--guarantee", choices=GUARANTEES, default=EXACTLY_ONCE)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("sparkonce").setLevel(logging.INFO)
    spark = build_session("continuous", master=given.master, conf=QUICK_START | given.conf)
    driver = ContinuousDriver(
        spark,
        app_id=given.app,
        checkpoint=given.checkpoint,
        source=KafkaSource(
            bootstrap_servers=given.bootstrap, subscribe=given.input, starting_offsets="earliest"
        ),
        transform=f"tests.integration.continuous_main:{given.function}",
        sink=KafkaSink(
            bootstrap_servers=given.bootstrap, topic=given.output, guarantee=given.guarantee
        ),
        parallelism=given.parallelism,
        barrier_interval_s=given.interval,
        trigger=given.trigger,
        native=given.path == "native",
        restart_strategy=given.restart_strategy,
        on_checkpoint=say_checkpoint,
        metrics_port=given.metrics_port,
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
