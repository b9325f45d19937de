"""The measured job: copy (key, value), with a T as the value's last byte; in both modes.

It is a separate process: `connectors.bench.job_process` starts it with
``python -m connectors.bench.bench_job TASK.json``. On SIGTERM it stops and writes a report of its
batches.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from connectors.bench.job_process import ERROR_FILE
from connectors.bench.replace_last_byte import ReplaceLastByte
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.machine.parent_watch import live_as_long_as_parent
from connectors.options.guarantee import EXACTLY_ONCE
from connectors.options.kafka_source import KafkaSource
from connectors.options.table import CONTINUOUS
from connectors.options.trigger import AVAILABLE_NOW
from connectors.spark.session import pipeline_session
from connectors.spark.stop_signals import stop_signals
from transactions import events
from transactions.coordinator import CheckpointReport
from transactions.errors import ConfigurationError, SparkOnceError

Task = dict[str, Any]
Keep = Callable[[CheckpointReport], None]

_RECOVERY: Final = ("recovering", "recovered")
#: Options of `ContinuousDriver` that a task may name.
_PACE: Final = ("parallelism", "fixed_parallelism", "barrier_interval_s", "target_latency_s")


def main() -> None:
    """Run until SIGTERM, or until the parent process has ended."""
    live_as_long_as_parent()
    task: Task = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    folder = Path(task["folder"])
    _mark(folder, "imported")
    try:
        _run(task, folder)
    except SparkOnceError as error:
        parts = {"what": error.what, "where": error.where, "cause": error.cause}
        told = {
            "configuration": isinstance(error, ConfigurationError),
            **parts,
            "option": error.option,
        }
        (folder / ERROR_FILE).write_text(json.dumps(told), "utf-8")
        raise


def _run(task: Task, folder: Path) -> None:
    spark = pipeline_session("bench", task["mode"], master=task["master"], conf=task["conf"])
    _mark(folder, "session")
    events.subscribe(lambda e: _mark(folder, e.kind) if e.kind in _RECOVERY else None)
    with (folder / "checkpoints.jsonl").open("w", encoding="utf-8", buffering=1) as checkpoints:

        def keep(report: CheckpointReport) -> None:
            line: dict[str, float] = {
                "id": report.checkpoint_id,
                "end_ns": time.time_ns(),
                "records": report.records,
                "transactions": report.transactions,
            }
            every = task["heap_every"]
            if every and report.checkpoint_id % every == 0:
                line["heap_mb"] = _heap_mb(spark)
            checkpoints.write(json.dumps(line | report.phase_ms) + "\n")

        run = _continuously if task["mode"] == CONTINUOUS else _in_batches
        report = run(spark, task, folder, keep)
        (folder / "report.json").write_text(json.dumps(report), "utf-8")
    spark.stop()


def _in_batches(spark: SparkSession, task: Task, folder: Path, keep: Keep) -> dict[str, Any]:
    from connectors.spark.pipeline import transformed  # noqa: PLC0415 - see `_DRIVERS`
    from connectors.spark.streaming_driver import StreamingDriver  # noqa: PLC0415

    driver = StreamingDriver(
        spark,
        app_id=task["id"],
        checkpoint=folder / "checkpoint",
        trigger=task["trigger"],
        on_checkpoint=keep,
    )
    source, sink, stages = _source(task, task["batch_records"]), _sink(task), task.get("stages")
    function = ReplaceLastByte(str(folder / "first-record"))
    if stages == 1:
        driver.pipe(source, sink, transform=function)
    elif stages == 3:
        driver.write(transformed(driver.read(source), function), sink)
    else:
        changed = task["value_sql"] + " AS value"
        driver.write(driver.read(source).selectExpr("key", changed), sink)
    driver.run()
    assert driver.query is not None
    progress = [json.loads(one.json) for one in driver.query.recentProgress]
    records = {report.checkpoint_id: report.records for report in driver.reports}
    for one in progress:  # in one stage Spark counts ranges
        one["numInputRows"] = records.get(one["batchId"], 0)
    return {"progress": progress}


def _continuously(spark: SparkSession, task: Task, folder: Path, keep: Keep) -> dict[str, Any]:
    from connectors.spark.continuous_driver import ContinuousDriver  # noqa: PLC0415 - see `_DRIVERS`

    first_record = folder / "first-record"
    progress: deque[dict[str, Any]] = deque(maxlen=task.get("most_progress"))
    began = dt.datetime.now(dt.UTC)

    def keep_and_show(report: CheckpointReport) -> None:
        nonlocal began
        keep(report)
        # This is the form of Spark's progress, so that one harness reads both modes.
        row = {"timestamp": began.isoformat(), "numInputRows": report.records, "durationMs": {}}
        progress.append(row)
        began = dt.datetime.now(dt.UTC)

    driver = ContinuousDriver(
        spark,
        app_id=task["id"],
        checkpoint=folder / "checkpoint",
        source=_source(task, None),
        transform=ReplaceLastByte(str(first_record)),
        sink=_sink(task),
        on_checkpoint=keep_and_show,
        trigger=AVAILABLE_NOW if task.get("available_now") else None,
        **{name: task[name] for name in _PACE if task.get(name) is not None},
    )
    with stop_signals(driver.request_stop):
        driver.start()
        ready_ns = time.time_ns()
        _mark(folder, "ready")
        driver.wait()
    first_ns = int(first_record.read_text("utf-8")) if first_record.exists() else 0
    return {"progress": list(progress), "first_record_ns": first_ns or ready_ns}


def _source(task: Task, most: int | None) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=task["bootstrap"],
        subscribe=task["input"],
        starting_offsets="earliest",
        max_offsets_per_trigger=most,
        kafka=task["kafka"],
    )


def _sink(task: Task) -> KafkaSink:
    return KafkaSink(
        bootstrap_servers=task["bootstrap"],
        topic=task["output"],
        guarantee=task.get("guarantee", EXACTLY_ONCE),
        kafka=task["kafka"],
    )


def _heap_mb(spark: SparkSession) -> float:
    """Return the JVM's used heap after a garbage collection, in MB."""
    machine: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to it
    machine.System.gc()
    runtime = machine.Runtime.getRuntime()
    used: int = runtime.totalMemory() - runtime.freeMemory()
    return round(used / 1e6, 1)


def _mark(folder: Path, name: str) -> None:
    """Write the time at which this process reached a step."""
    line = {"mark": name, "ns": time.time_ns(), "pid": os.getpid()}
    with (folder / "marks.jsonl").open("a", encoding="utf-8") as marks:
        marks.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
