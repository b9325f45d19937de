"""A query of your own writes exactly once: text files in, a topic out.

    sparkonce kafka up --topic lines
    python examples/own_query.py

Kill it at any time and start it again: the topic has every line once. The function may do more with
a batch, as here, but that is at-least-once.
"""

from pyspark.sql import SparkSession

from connectors import KafkaSink
from connectors.spark import BatchWriter

spark = SparkSession.builder.master("local[2]").getOrCreate()
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load("examples/*.py")
writer = BatchWriter(KafkaSink(bootstrap_servers="localhost:9092", topic="lines"), app_id="lines")


def each(batch, batch_id):
    batch.persist()
    batch.show(3)
    writer(batch, batch_id)
    batch.unpersist()


query = lines.writeStream.foreachBatch(each).option("checkpointLocation", "checkpoints/lines")
query.trigger(availableNow=True).start().awaitTermination()
