"""A query on Spark's own Kafka connector, as somebody has it who does not know sparkonce yet.

It imports nothing of ours. Its argument is JSON:

    jars, bootstrap, topic, checkpoint
    output    a topic, written with Spark's own sink; or
    folder    one file for each batch, named by the number of the batch, there as a whole or not
    trigger   of the query
    hold      "2 before": batch 2 stops for good before it writes its file; "2 after": after that

It says on stderr when a batch is written, and when one is held. SIGTERM stops the query.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def main(task: dict[str, Any]) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(task["jars"]))
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("subscribe", task["topic"])
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = records.select("key", "value").writeStream
    if "output" in task:
        writer = writer.format("kafka").option("kafka.bootstrap.servers", task["bootstrap"])
        writer = writer.option("topic", task["output"])
    else:
        folder = Path(task["folder"])
        folder.mkdir(exist_ok=True)
        writer = writer.foreachBatch(lambda batch, n: write(batch, n, folder, task.get("hold")))
    writer = writer.option("checkpointLocation", task["checkpoint"]).trigger(**task["trigger"])
    query = writer.start()
    while not stopping.is_set() and not query.awaitTermination(0.1):
        pass
    query.stop()
    spark.stop()


def write(batch: DataFrame, number: int, folder: Path, hold: str | None) -> None:
    values = [row["value"].decode() for row in batch.select("value").collect()]
    hold_if(hold == f"{number} before", number)
    part = folder / f".{number}"
    part.write_text("\n".join(values), "utf-8")
    part.rename(folder / str(number))
    tell(f"batch {number} is written")
    hold_if(hold == f"{number} after", number)


def hold_if(it_is: bool, number: int) -> None:
    if it_is:
        tell(f"batch {number} is held")
        threading.Event().wait()


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
