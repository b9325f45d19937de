"""The same job as a query of Spark alone, on the Kafka source and sink that `format` names.

`kafka` is Spark's own, at least once; it runs in an environment of its own (another PySpark).
`kafka-exactly-once` is ours. This script imports nothing of this project. Its argument and its
report are those of connectors/bench/bench_job.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    """Run until SIGTERM."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    mark(folder, "imported")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    builder = SparkSession.builder.appName("bench").master(task["master"])
    for key, value in task["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    mark(folder, "session")
    reader = (
        spark.readStream.format(task["format"])
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("subscribe", task["input"])
        .option("startingOffsets", "earliest")
    )
    if task["batch_records"] is not None:
        reader = reader.option("maxOffsetsPerTrigger", task["batch_records"])
    query = (
        reader.load()
        .selectExpr("key", task["value_sql"] + " AS value")
        .writeStream.format(task["format"])
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("topic", task["output"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=task["trigger"])
        .start()
    )
    while not stopping.is_set() and not query.awaitTermination(0.2):
        pass
    report = {"progress": [json.loads(one.json) for one in query.recentProgress]}
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    query.stop()
    spark.stop()


def mark(folder: Path, name: str) -> None:
    """Write down when this process came to a step."""
    line = {"mark": name, "ns": time.time_ns(), "pid": os.getpid()}
    with (folder / "marks.jsonl").open("a", encoding="utf-8") as marks:
        marks.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
