"""What the job does with a batch of flights: plain Spark, nothing of Kafka in it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

FLIGHT = "carrier STRING, dep_delay INT"


def with_delay_in_words(records: DataFrame) -> DataFrame:
    """Add `delayed`; the key, which is the flight's number, stays as it is."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    late = f.when(flight["dep_delay"] >= 15, "late").otherwise("on time")
    clean = f.to_json(f.struct(flight["carrier"].alias("carrier"), late.alias("delayed")))
    return records.select("key", clean.alias("value"))
