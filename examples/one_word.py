"""Spark's own streaming write, with one word changed: text files in, a topic out, exactly once.

    sparkonce kafka up --topic lines
    python examples/one_word.py

Kill it at any time and start it again: the topic has every line once.
"""

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load("examples/*.py")
query = (
    lines.writeStream.format("kafka-exactly-once")  # the word: it was "kafka"
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("topic", "lines")
    .option("checkpointLocation", "checkpoints/lines")
)
query.trigger(availableNow=True).start().awaitTermination()
