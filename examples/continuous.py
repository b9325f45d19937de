"""Late flights from one Kafka topic into another, exactly once, in either mode.

    sparkonce kafka up --topic flights:2 --topic flights-late-continuous:2
    python examples/continuous.py                   # visible some 20 ms after it was written
    python examples/continuous.py micro-batch       # the same function in micro-batches

Any other Kafka: set KAFKA=host:port. Topics: flights (in), flights-late-continuous and, of the
other mode, flights-late-micro-batch (out). ctrl-C stops after one more checkpoint; kill it at any
moment and start it again: a read_committed consumer sees every late flight once.
"""

import os
import sys

import orjson
import pyarrow as pa

from connectors import KafkaSink, KafkaSource
from connectors.spark import arrow_pipeline, build_session

KAFKA = os.environ.get("KAFKA", "localhost:9092")
MODE = sys.argv[1] if len(sys.argv) > 1 else "continuous"


def late(records: pa.RecordBatch) -> pa.RecordBatch:
    """Keep the flights that left late; columns in and out are those of Spark's Kafka source."""
    flights = [orjson.loads(value) for value in records["value"].to_pylist()]
    kept = [flight for flight in flights if (flight["dep_delay"] or 0) >= 15]
    return pa.RecordBatch.from_pydict(
        {
            "key": [str(flight["flight_id"]) for flight in kept],
            "value": [orjson.dumps(flight) for flight in kept],
        }
    )


arrow_pipeline(
    build_session("flights-late"),
    mode=MODE,
    app_id=f"flights-late-{MODE}",
    checkpoint=f"checkpoints/flights-late-{MODE}",
    source=KafkaSource(bootstrap_servers=KAFKA, subscribe="flights", starting_offsets="earliest"),
    transform=late,
    sink=KafkaSink(bootstrap_servers=KAFKA, topic=f"flights-late-{MODE}"),
).run()
