"""The measured job in continuous mode: copy (key, value), with the value's last byte replaced by T.

Its one argument is a JSON object; on SIGTERM it stops and writes what it knows of its checkpoints.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from connectors import KafkaSink, KafkaSource
from connectors.spark import ContinuousDriver, build_session
from connectors.spark.stop_signals import stop_signals
from transactions.coordinator import CheckpointReport


class ReplaceLastByte:
    """Writes a T over the last byte of every value of a batch, in one step for all of them.

    Each task has its own; the first one to see a record writes down when.
    """

    def __init__(self, first_record: str) -> None:
        self._first_record: str | None = first_record

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changed batch."""
        if self._first_record is not None:
            with contextlib.suppress(FileExistsError), open(self._first_record, "x") as file:  # noqa: PTH123
                file.write(str(time.time_ns()))
            self._first_record = None
        value = batch.column("value")
        rows = slice(value.offset, value.offset + len(value) + 1)
        ends = np.frombuffer(value.buffers()[1], np.int32)[rows]
        data = np.frombuffer(value.buffers()[2], np.uint8).copy()
        data[ends[1:] - 1] = ord("T")
        buffers = [value.buffers()[0], value.buffers()[1], pa.py_buffer(data)]
        changed = pa.Array.from_buffers(pa.binary(), len(value), buffers, offset=value.offset)
        return pa.RecordBatch.from_arrays([batch.column("key"), changed], names=["key", "value"])


def main() -> None:
    """Run until SIGTERM."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    first_record = folder / "first-record"
    spark = build_session("bench", master=task["master"], conf=task["conf"])
    checkpoints = (folder / "checkpoints.jsonl").open("w", encoding="utf-8", buffering=1)
    progress: deque[dict[str, Any]] = deque(maxlen=task.get("most_progress"))
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
        transform=ReplaceLastByte(str(first_record)),
        sink=KafkaSink(
            bootstrap_servers=task["bootstrap"],
            topic=task["output"],
            guarantee=task.get("guarantee", "exactly-once"),
        ),
        barrier_interval_s=task.get("barrier_interval_s"),
        on_checkpoint=keep,
    )
    with stop_signals(driver.request_stop):
        driver.start()
        driver.wait()
    report = {
        "progress": list(progress),
        "first_record_ns": int(first_record.read_text("utf-8")) if first_record.exists() else 0,
    }
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    checkpoints.close()
    spark.stop()


if __name__ == "__main__":
    main()
