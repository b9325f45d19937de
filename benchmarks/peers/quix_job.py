"""The measured job on Quix Streams, processing_guarantee exactly-once.

It runs in an environment of its own and imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from quixstreams import Application


def main() -> None:
    """Run until SIGTERM, which Quix Streams handles."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])
    report: dict[str, Any] = {"first_record_ns": 0, "progress": []}
    application = Application(
        broker_address=task["bootstrap"],
        consumer_group=task["id"],
        processing_guarantee="exactly-once",
        commit_interval=task["interval_ms"] / 1000,
        auto_offset_reset="earliest",
        auto_create_topics=False,
        state_dir=str(folder / "state"),
        loglevel="WARNING",
    )
    source = application.topic(
        task["input"], key_deserializer="bytes", value_deserializer="bytes"
    )
    output = application.topic(task["output"], key_serializer="bytes", value_serializer="bytes")

    def change(value: bytes) -> bytes:
        if not report["first_record_ns"]:
            report["first_record_ns"] = time.time_ns()
        return value[:-1] + b"T"

    application.dataframe(source).apply(change).to_topic(output)
    application.run()
    (folder / "report.json").write_text(json.dumps(report), "utf-8")


if __name__ == "__main__":
    main()
