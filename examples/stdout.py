"""Flights on stdout, each when its checkpoint is complete: a target that has no transactions.

    sparkonce kafka up --topic flights:2            # or any Kafka: set KAFKA=host:port
    python examples/stdout.py > flights.jsonl       # ctrl-C stops it between two checkpoints

Kill it at any moment and start it again with >>: every flight
is in the file, none before its checkpoint was decided. Twice only in one of the two windows of
docs/write_ahead_sink.md: killed while it prints, or between the print and the mark.
"""

import os

from connectors import KafkaSource
from connectors.spark import StreamingDriver, build_session
from connectors.wal import FileCheckpointCommitter, StdOutWriteAheadSink

KAFKA = os.environ.get("KAFKA", "localhost:9092")

driver = StreamingDriver(
    build_session("flights-stdout"), app_id="flights-stdout", checkpoint="checkpoints/stdout"
)

source = KafkaSource(bootstrap_servers=KAFKA, subscribe="flights", starting_offsets="earliest")
flights = driver.read(source).selectExpr("CAST(value AS STRING) AS flight")

# Both folders outlive the driver. What is marked is not printed again, whoever asks.
stdout = StdOutWriteAheadSink(
    name="stdout", buffer="buffers", committer=FileCheckpointCommitter("marks")
)
driver.write(flights, stdout)

driver.run()
