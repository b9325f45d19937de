"""The behaviours that the suites of Spark's own Kafka connector hold it to, numbered.

A test names the rows that it proves: ``@pytest.mark.parity(4, 5)``. `make parity` prints this table
with the results. The suites: MB is KafkaMicroBatchSourceSuite, REL KafkaRelationSuite, SINK
KafkaSinkSuite, DL KafkaDontFailOnDataLossSuite, RTM KafkaRealTimeModeSuite.
"""

from __future__ import annotations

from typing import Final

ROWS: Final[dict[int, str]] = {
    1: "a subscribed list is read from latest, earliest or given offsets (MB)",
    2: "the same for assign (MB)",
    3: "the same for subscribePattern (MB)",
    4: "from a timestamp for each partition, and from one for all (MB)",
    5: "a timestamp after the last record: error or latest (MB)",
    6: "a partition that is added while running is read from its beginning (MB)",
    7: "each of these with failOnDataLoss true and false (MB)",
    8: "a pattern: a topic is deleted while running; made anew between batches (MB)",
    9: "a topic is deleted while running, failOnDataLoss=false: the query goes on (MB)",
    10: "JSON of offsets names exactly the partitions (MB, REL)",
    11: "JSON can name a whole topic (MB)",
    12: "the first start is recorded; another startingOffsets later has no effect (MB)",
    13: "files of Spark's first offsets are read (MB)",
    14: "maxOffsetsPerTrigger is divided by what waits, one at least for each partition (MB)",
    15: "the largest limit does not overflow, SPARK-26718 (MB)",
    16: "minOffsetsPerTrigger waits; maxTriggerDelay ends the wait (MB)",
    17: "both limits together (MB)",
    18: "available-now reads what was there at the start, in several batches (MB)",
    19: "available-now ends with an error when ends are lower than planned, SPARK-53560 (MB)",
    20: "empty partitions make no tasks, SPARK-41375 (MB)",
    21: "batches without data are not made; the metric of input rows is exact (MB)",
    22: "asynchronous progress tracking (MB)",
    23: "a union of two sources, of one topic or of two, SPARK-22956 (MB)",
    24: "a self-join: both sides read the same offsets (MB)",
    25: "a watermark by the Kafka timestamp (MB)",
    26: "read_committed skips aborted records; batches of markers only move on, SPARK-25495 (MB)",
    27: "read_uncommitted shows aborted records (MB)",
    28: "null keys and null values, SPARK-27494 (MB)",
    29: "minPartitions divides ranges; 0 and less are refused, SPARK-30656 (MB, REL)",
    30: "maxRecordsPerPartition (MB)",
    31: "a malformed record timestamp is a clear error, SPARK-56243 (MB)",
    32: "headers are absent by default; includeHeaders, duplicates in order (MB, REL)",
    33: "metrics: least, most and mean offsets behind the latest (MB)",
    34: "groupIdPrefix and kafka.group.id (MB)",
    35: "bad options are refused: unknown policy, two of them, empty, negative (MB)",
    36: "kafka.* options that the source sets are refused (MB)",
    37: "option names without regard to case (MB)",
    38: "names and types of the columns are exact (MB, REL)",
    39: "streams refuse endingOffsets (MB)",
    40: "a query stops while a fetch hangs (MB)",
    41: "topics and partitions are added and deleted at random (MB)",
    42: "no duplicates and no hang after data loss with failOnDataLoss=false (DL)",
    43: "a batch reads from earliest to latest; latest is bound late (REL)",
    44: "a batch with given starts and ends, -2 and -1 among them (REL)",
    45: "a batch refuses latest as its start and earliest as its end (REL)",
    46: "a batch whose start is after its end is an error, also when both are bound late (REL)",
    47: "a batch between timestamps: all combinations, and which option wins (REL)",
    48: "one frame of a batch read, used again after more data arrived (REL)",
    49: "a batch whose start and end name other partitions is refused (REL)",
    50: "a batch in both isolation levels; large transactions with markers (REL)",
    51: "sink: the topic from an option or a column; the option wins (SINK)",
    52: "sink: a null topic without the option is an error at that row (SINK)",
    53: "sink: a column value is demanded, types are checked at the start (SINK)",
    54: "sink: other columns are ignored (SINK)",
    55: "sink: an unknown topic is an error (SINK)",
    56: "serializers and deserializers are refused (MB, SINK)",
    57: "sink: column partition; null leaves it to the partitioner; wrong numbers fail (SINK)",
    58: "sink: headers are written; includeHeaders is accepted (SINK)",
    59: "sink: the metric of output rows is exact (SINK)",
    60: "much data through a small buffer does not deadlock (SINK)",
    61: "a batch df.write, its save modes checked (SINK)",
    62: "two queries in one JVM do not share closed producers (SINK)",
    63: "real-time mode: a map, an empty batch, a partition added, a union (RTM)",
}
#: Rows that differ, and how; docs/coming_from_spark.md says it to users.
DIFFERS: Final[dict[int, str]] = {
    9: "a topic that is deleted while a task reads it ends the run; the next start goes on",
    13: "not here: the start is in the decision log",
    22: "not here: a batch is a decision, so its progress must be durable before its commit",
    33: "Spark's progress has latestOffset and endOffset by partition, not the three sums; the "
    "drivers have the metric input_lag_records",
    48: "a frame is planned at its first use: Spark keeps the plan of a data source in Python",
    54: "a column that the user's own Arrow function makes is an error",
    59: "numOutputRows is exact for the one word; foreachBatch and the drivers have none, and the "
    "drivers' own metric is exact",
    61: "append only, with a name of the job: a second run of a job writes nothing",
    63: "the continuous mode: it reads one source, so there is no union",
}
#: Rows that have no test: there is nothing to test.
WITHOUT_TEST: Final = frozenset({13})
#: Rows that have no meaning in the continuous mode, and why.
NOT_CONTINUOUS: Final[dict[int, str]] = {
    **dict.fromkeys((13, 22), "Spark's own files"),
    **dict.fromkeys((14, 15, 16, 17), "there are no batches to limit"),
    20: "a task reads its partitions until the end",
    **dict.fromkeys((23, 24, 25), "one source, and a function instead of a plan"),
    **dict.fromkeys((29, 30), "the option parallelism says how many tasks there are"),
    **dict.fromkeys(range(43, 51), "a batch read"),
    61: "a batch write",
}
