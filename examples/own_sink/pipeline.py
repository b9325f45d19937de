"""Kafka into a folder, exactly once, through the sink beside this file; in either mode.

    sparkonce kafka up --topic said:2                # or any Kafka: set KAFKA=host:port
    cd examples/own_sink
    python pipeline.py                               # a file per task and second, in said/data
    python pipeline.py micro-batch                   # into said-micro-batch/data

Kill it at any moment and start it again: the files have every record once.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa
from folder_sink import FolderSink

from connectors import KafkaSource
from connectors.spark import arrow_pipeline, build_session

KAFKA = os.environ.get("KAFKA", "localhost:9092")
TOPIC = os.environ.get("TOPIC", "said")
MODE = sys.argv[1] if len(sys.argv) > 1 else "continuous"
FOLDER = Path("said" if MODE == "continuous" else f"said-{MODE}").absolute()


def values(records: pa.RecordBatch) -> pa.RecordBatch:
    """Keep what the folder takes."""
    return records.select(["value"])


arrow_pipeline(
    build_session("said"),
    mode=MODE,
    app_id=f"said-{MODE}",
    checkpoint=f"checkpoints/{FOLDER.name}",
    source=KafkaSource(bootstrap_servers=KAFKA, subscribe=TOPIC, starting_offsets="earliest"),
    transform=values,
    columns=["value"],
    sink=FolderSink(FOLDER),
    **({"barrier_interval_s": 1.0} if MODE == "continuous" else {"trigger": "1 second"}),
).run()
