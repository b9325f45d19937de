"""The measured job in continuous mode: copy (key, value), with the value's last byte replaced by T.

Its one argument is a JSON object; on SIGTERM it stops and writes what it knows of its checkpoints.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from connectors import KafkaSink, KafkaSource
from connectors.spark import ContinuousDriver, build_session
from connectors.spark.stop_signals import stop_signals
from transactions.coordinator import CheckpointReport


def replace_last_byte(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Write a T over the last byte of every value, in one step for all of them."""
    value = batch.column("value")
    ends = np.frombuffer(value.buffers()[1], np.int32)[value.offset : value.offset + len(value) + 1]
    data = np.frombuffer(value.buffers()[2], np.uint8).copy()
    data[ends[1:] - 1] = ord("T")
    buffers = [value.buffers()[0], value.buffers()[1], pa.py_buffer(data)]
    changed = pa.Array.from_buffers(pa.binary(), len(value), buffers, offset=value.offset)
    return pa.RecordBatch.from_arrays([batch.column("key"), changed], names=["key", "value"])


def main() -> None:
    """Run until SIGTERM."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    spark = build_session("bench", master=task["master"], conf=task["conf"])
    checkpoints = (folder / "checkpoints.jsonl").open("w", encoding="utf-8", buffering=1)
    progress: list[dict[str, Any]] = []
    began = dt.datetime.now(dt.UTC)

    def keep(report: CheckpointReport) -> None:
        nonlocal began
        line = {
            "id": report.checkpoint_id,
            "end_ns": time.time_ns(),
            "records": report.records,
        }
        checkpoints.write(json.dumps(line | report.phase_ms) + "\n")
        # In the form of Spark's progress, so that one harness reads both modes.
        row = {"timestamp": began.isoformat(), "numInputRows": report.records, "durationMs": {}}
        progress.append(row)
        began = dt.datetime.now(dt.UTC)

    driver = ContinuousDriver(
        spark,
        app_id="bench",
        checkpoint=folder / "checkpoint",
        source=KafkaSource(
            bootstrap_servers=task["bootstrap"],
            subscribe=task["input"],
            starting_offsets="earliest",
        ),
        transform=replace_last_byte,
        sink=KafkaSink(bootstrap_servers=task["bootstrap"], topic=task["output"]),
        barrier_interval_s=task.get("barrier_interval_s"),
        on_checkpoint=keep,
    )
    with stop_signals(driver.request_stop):
        driver.start()
        driver.wait()
    (folder / "report.json").write_text(json.dumps({"progress": progress}), "utf-8")
    checkpoints.close()
    spark.stop()


if __name__ == "__main__":
    main()
