"""Flights from one Kafka topic into two, exactly once: clean flights, and arrivals per airport.

    sparkonce kafka up --topic flights:2 --topic flights-clean --topic flights-per-airport
    python examples/flights.py                      # ctrl-C stops it between two checkpoints

Any other Kafka: set KAFKA=host:port. Topics: flights (in), flights-clean and flights-per-airport
(out). Kill it at any moment and start it again: a read_committed consumer sees every flight once.
"""

import os

from pyspark.sql import functions as f

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver, build_session

KAFKA = os.environ.get("KAFKA", "localhost:9092")
FLIGHT = "flight_id LONG, carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT"

driver = StreamingDriver(
    build_session("flights"), app_id="flights", checkpoint="checkpoints/flights"
)

source = KafkaSource(bootstrap_servers=KAFKA, subscribe="flights", starting_offsets="earliest")
value = f.from_json(f.col("value").cast("string"), FLIGHT)
flights = driver.read(source).select(value.alias("flight")).select("flight.*")

clean = flights.withColumn("late", f.col("dep_delay") >= 15)
clean = clean.selectExpr("CAST(flight_id AS STRING) AS key", "to_json(struct(*)) AS value")
driver.write(clean, KafkaSink(bootstrap_servers=KAFKA, topic="flights-clean"))

per_airport = flights.groupBy("dest").count()
per_airport = per_airport.selectExpr("dest AS key", "CAST(count AS STRING) AS value")
driver.write(per_airport, KafkaSink(bootstrap_servers=KAFKA, topic="flights-per-airport"))

driver.run()
