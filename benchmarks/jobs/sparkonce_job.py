"""The measured job on sparkonce: copy (key, value), with the value's last byte replaced by T.

Its one argument is a JSON object; on SIGTERM it stops and writes what it knows of its own batches.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver, build_session
from transactions import events
from transactions.coordinator import CheckpointReport

RECOVERY = ("recovering", "recovered")


def main() -> None:
    """Run until SIGTERM."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    mark(folder, "imported")
    spark = build_session("bench", master=task["master"], conf=task["conf"])
    mark(folder, "session")
    events.subscribe(lambda e: mark(folder, e.kind) if e.kind in RECOVERY else None)
    checkpoints = (folder / "checkpoints.jsonl").open("w", encoding="utf-8", buffering=1)

    def keep(report: CheckpointReport) -> None:
        line: dict[str, float] = {
            "id": report.checkpoint_id,
            "end_ns": time.time_ns(),
            "records": report.records,
        }
        every = task["heap_every"]
        if every and report.checkpoint_id % every == 0:
            line["heap_mb"] = _heap_mb(spark)
        checkpoints.write(json.dumps(line | report.phase_ms) + "\n")

    driver = StreamingDriver(
        spark,
        app_id="bench",
        checkpoint=folder / "checkpoint",
        trigger=task["trigger"],
        on_checkpoint=keep,
    )
    source = driver.read(
        KafkaSource(
            bootstrap_servers=task["bootstrap"],
            subscribe=task["input"],
            starting_offsets="earliest",
            max_offsets_per_trigger=task["batch_records"],
        )
    )
    out = source.selectExpr("key", task["value_sql"] + " AS value")
    sink = KafkaSink(
        bootstrap_servers=task["bootstrap"],
        topic=task["output"],
        guarantee=task.get("guarantee", "exactly-once"),
    )
    driver.write(out, sink)
    driver.run()
    assert driver.query is not None
    report = {"progress": [json.loads(one.json) for one in driver.query.recentProgress]}
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    checkpoints.close()
    spark.stop()


def _heap_mb(spark: Any) -> float:
    """Return what the JVM still holds after a collection."""
    machine: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to it
    machine.System.gc()
    runtime = machine.Runtime.getRuntime()
    used: int = runtime.totalMemory() - runtime.freeMemory()
    return round(used / 1e6, 1)


def mark(folder: Path, name: str) -> None:
    """Write down when this process came to a step."""
    line = {"mark": name, "ns": time.time_ns(), "pid": os.getpid()}
    with (folder / "marks.jsonl").open("a", encoding="utf-8") as marks:
        marks.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
