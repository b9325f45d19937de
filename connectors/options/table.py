"""The one table of options. Parsing, `--help`, hints and docs/options.md are made from it.

A new option is one row here, or in `sink_table` or `query_table`, and its use.
"""

from __future__ import annotations

from typing import Final

from connectors.options.option import (
    COUNT,
    DURATION,
    MILLISECONDS,
    NUMBER,
    PORT,
    SWITCH,
    TASKS,
    WORD,
    Kind,
    Option,
    Table,
)
from connectors.options.trigger import AVAILABLE_NOW, trigger_ms
from transactions.restart_strategy import parse_restart_strategy

MICRO_BATCH: Final = "micro-batch"
CONTINUOUS: Final = "continuous"
LOG_LEVELS: Final = ("OFF", "ERROR", "WARN", "INFO")
DEFAULT_LOG_LEVEL: Final = "ERROR"


def _trigger(text: str) -> str:
    trigger_ms(text)
    return text


_TRIGGER: Final = Kind(f"duration, or {AVAILABLE_NOW}", _trigger)
_STRATEGY: Final = Kind("strategy", parse_restart_strategy)
_NEXT_BATCH: Final = "a batch starts when the batch before it ends; see trigger"

#: Options of a driver: arguments of `StreamingDriver` and `ContinuousDriver`, keys of [app].
PIPELINE: Final = Table(
    [
        Option(
            name="checkpoint_timeout",
            field="checkpoint_timeout_s",
            kind=DURATION,
            default={MICRO_BATCH: "10min", CONTINUOUS: "1min"},
            says="How long one checkpoint may take. The Spark job of a batch that takes longer is "
            "cancelled and run again; a barrier that takes longer fails the run.",
        ),
        Option(
            name="restart_budget",
            field="restart_budget_s",
            kind=DURATION,
            default="1min",
            says="How long a restart may take. With `checkpoint_timeout` it must fit into the "
            "transaction timeout of the sink.",
        ),
        Option(
            name="restart_strategy",
            kind=_STRATEGY,
            default="exponential-delay(attempts=10)",
            says="What happens when a run fails after it has started: `none`, "
            "`fixed-delay(attempts=1, delay=1s)`, `failure-rate(max_failures=1, interval=1min, "
            "delay=1s)` or `exponential-delay(initial=1s, max=1min, multiplier=1.5, jitter=0.1, "
            "reset_threshold=1h, attempts=infinite)`; names and defaults are Flink's.",
        ),
        Option(
            name="metrics_port",
            kind=PORT,
            says="The port on which Prometheus reads the metrics of this pipeline; 0 takes a free "
            "port. Without this option there is no endpoint.",
        ),
        Option(
            name="metrics_host",
            default="127.0.0.1",
            says="The address on which the metrics are served. The default is this machine only; "
            "`0.0.0.0` is every address of this machine, as a pod needs it.",
        ),
        Option(
            name="trigger",
            kind=_TRIGGER,
            default={MICRO_BATCH: "0s", CONTINUOUS: ""},
            says="The time from batch to batch, or `available-now`: read the records that exist, "
            "then end. The continuous mode knows only `available-now`.",
        ),
        Option(
            name="target_checkpoint",
            field="target_checkpoint_s",
            kind=DURATION,
            mode=MICRO_BATCH,
            instead="the target latency sets the interval of the barriers; see target_latency",
            says="The target duration of a checkpoint: batches grow and shrink to meet it, up to "
            "`maxOffsetsPerTrigger`.",
        ),
        Option(
            name="tolerable_failed_checkpoints",
            kind=COUNT,
            default="0",
            mode=MICRO_BATCH,
            instead="a failed checkpoint ends its stage; see restart_strategy",
            says="How many consecutive failed batches run again at once before the restart "
            "strategy counts a failure.",
        ),
        Option(
            name="target_latency",
            field="target_latency_s",
            kind=DURATION,
            default="20ms",
            mode=CONTINUOUS,
            instead=_NEXT_BATCH,
            says="The target time from the read of a record until the record is visible. Barriers "
            "come less often while the tasks lag behind.",
        ),
        Option(
            name="most_interval",
            field="most_interval_s",
            kind=DURATION,
            default="1s",
            mode=CONTINUOUS,
            instead=_NEXT_BATCH,
            says="The longest time from one barrier to the next, even while the tasks lag behind.",
        ),
        Option(
            name="barrier_interval",
            field="barrier_interval_s",
            kind=DURATION,
            mode=CONTINUOUS,
            instead="there are no barriers; see trigger",
            says="A fixed time from the start of one barrier to the start of the next. It replaces "
            "`target_latency` and `most_interval`.",
        ),
        Option(
            name="parallelism",
            kind=TASKS,
            mode=CONTINUOUS,
            instead="Spark plans each batch; see minPartitions",
            says="The number of tasks; as many of them read as the stream needs. Without it there "
            "is one task for each slot of Spark, but at most one for each partition. The number "
            "may change at a restart.",
        ),
        Option(
            name="fixed_parallelism",
            kind=SWITCH,
            default="false",
            mode=CONTINUOUS,
            instead="Spark plans each batch; see minPartitions",
            says="All tasks read all the time, also where fewer would be enough.",
        ),
        Option(
            name="native",
            kind=SWITCH,
            default="true",
            mode=CONTINUOUS,
            instead="Spark's source takes records as objects",
            says="Records move as pointers into Arrow buffers where that is possible; `false` "
            "moves them as Python objects, at three times the CPU.",
        ),
    ]
)

CLASS_ARCHIVE: Final = Option(
    name="class_archive",
    kind=SWITCH,
    default="true",
    says="Where this machine has no class archive for Spark yet, a job that has run for a minute "
    "makes it beside its work, at the lowest priority: the next start takes half the time.",
)

#: Options of a job file: what [app] has in addition to the options of its driver.
APP: Final = Table(
    [
        Option(
            name="id",
            field="app_id",
            says="The stable name of the pipeline, unique on its Kafka clusters; letters, digits, "
            "_ and -.",
        ),
        Option(
            name="checkpoint",
            says="A folder of the pipeline's own, relative to the job file: Spark's checkpoint and "
            "the decision log. Or an address in an object store or in HDFS: `s3://bucket/prefix`.",
        ),
        Option(
            name="mode",
            default=MICRO_BATCH,
            says="`micro-batch`: Structured Streaming, with SQL and state; `continuous`: records "
            "move all the time, for latencies below 100 ms.",
        ),
        Option(
            name="guarantee",
            default="exactly-once",
            says="The guarantee of every Kafka sink without its own `guarantee`: `exactly-once`, "
            "`at-least-once` or `none`.",
        ),
        Option(
            name="master",
            says="Spark's master URL. Without it: that of `spark-submit`, else `local[*]`.",
        ),
        Option(
            name="log_level",
            says=f"Of Spark: {', '.join(LOG_LEVELS)}. Without it: that of `spark-submit`, else "
            f"`{DEFAULT_LOG_LEVEL}`.",
        ),
        CLASS_ARCHIVE,
    ],
    prefix="store.",
)

#: Options of a job file: [transform]. Without one the job is a copy.
TRANSFORM: Final = Table(
    [
        Option(name="sql", says="A query over the view `source`."),
        Option(
            name="function",
            says="The `module:name` of a Python function. It takes a DataFrame, and returns a "
            "DataFrame or a dict from sink name to DataFrame.",
        ),
        Option(
            name="arrow",
            says="The `module:name` of a function. It takes a record batch and returns a record "
            "batch; it runs in both modes.",
        ),
        Option(
            name="columns",
            says="The columns that an Arrow function, or the plain copy, gives to a sink that is "
            "not a Kafka sink.",
        ),
    ]
)

#: Options of [source], and of ``spark.readStream.format("kafka-exactly-once")``, with Spark's
#: names.
SOURCE: Final = Table(
    [
        Option(name="subscribe", says="The topics to read, separated by commas."),
        Option(
            name="assign", says='Partitions instead of whole topics, as JSON: `{"topic": [0, 2]}`.'
        ),
        Option(
            name="subscribePattern",
            field="subscribe_pattern",
            says="All topics whose whole name matches a regular expression, as Python's `re` reads "
            "it. A topic that appears later is read from its beginning.",
        ),
        Option(
            name="startingOffsets",
            field="starting_offsets",
            default="latest",
            says="Where a new pipeline begins: `earliest`, `latest`, or Spark's JSON of offsets, "
            'such as `{"a": {"0": 23, "1": -2}, "b": "earliest"}`; -2 is earliest, -1 latest. A '
            "batch read begins at `earliest` by default. A restarted pipeline continues from its "
            "checkpoint.",
        ),
        Option(
            name="endingOffsets",
            field="ending_offsets",
            says="Where a batch read ends: `latest`, or Spark's JSON of offsets.",
        ),
        Option(
            name="startingOffsetsByTimestamp",
            field="starting_offsets_by_timestamp",
            says="Where a new pipeline begins: at the first record of a time or later, by "
            'partition: `{"topic": {"0": milliseconds}}`. It wins over `startingOffsets`.',
        ),
        Option(
            name="startingTimestamp",
            field="starting_timestamp",
            kind=NUMBER,
            says="The same time for all partitions, in milliseconds since 1970 (UTC). It wins over "
            "`startingOffsetsByTimestamp`.",
        ),
        Option(
            name="startingOffsetsByTimestampStrategy",
            field="unmatched_timestamp",
            kind=WORD,
            default="error",
            says="What happens when a partition has no record of that time or later: `error`, or "
            "`latest` to begin at its end.",
        ),
        Option(
            name="startingGroupId",
            field="starting_group",
            says="Where a new pipeline begins: at the offsets that this consumer group has "
            "committed. It wins over all others; they count for partitions of which the group has "
            "no offset. If none of them is given, such a partition is an error.",
        ),
        Option(
            name="endingOffsetsByTimestamp",
            field="ending_offsets_by_timestamp",
            says="Where a batch read ends: before the first record of a time or later, by "
            "partition; at the end of a partition that has none. It wins over `endingOffsets`.",
        ),
        Option(
            name="endingTimestamp",
            field="ending_timestamp",
            kind=NUMBER,
            says="The same time for all partitions, in milliseconds since 1970 (UTC). It wins over "
            "`endingOffsetsByTimestamp`.",
        ),
        Option(
            name="maxOffsetsPerTrigger",
            field="max_offsets_per_trigger",
            kind=NUMBER,
            mode=MICRO_BATCH,
            instead="it is for micro-batches; in continuous mode each task reads as fast as it can",
            says="The most offsets of one micro-batch, split over the partitions.",
        ),
        Option(
            name="minOffsetsPerTrigger",
            field="min_offsets_per_trigger",
            kind=NUMBER,
            mode=MICRO_BATCH,
            instead="it is for micro-batches; in continuous mode each task reads as fast as it can",
            says="A micro-batch waits for so many offsets. The first batch of a run does not wait, "
            "nor does a batch of the trigger `available-now`.",
        ),
        Option(
            name="maxTriggerDelay",
            field="max_trigger_delay_ms",
            kind=MILLISECONDS,
            default="15min",
            mode=MICRO_BATCH,
            instead="there are no batches that could wait; see target_latency",
            says="With `minOffsetsPerTrigger`: a micro-batch waits no longer than this time after "
            "the start of the batch before.",
        ),
        Option(
            name="maxRecordsPerPartition",
            field="max_records_per_partition",
            kind=NUMBER,
            mode=MICRO_BATCH,
            instead="it is for micro-batches; in continuous mode each task reads as fast as it can",
            says="Ranges are split until no Spark task has more offsets.",
        ),
        Option(
            name="minPartitions",
            field="min_partitions",
            kind=NUMBER,
            mode=MICRO_BATCH,
            instead="it is for micro-batches; in continuous mode each task reads as fast as it can",
            says="Ranges are split until there are about this many Spark tasks.",
        ),
        Option(
            name="failOnDataLoss",
            field="fail_on_data_loss",
            kind=SWITCH,
            default="true",
            says="Stop when offsets that the pipeline still needs are gone.",
        ),
        Option(
            name="includeHeaders",
            field="include_headers",
            kind=SWITCH,
            default="false",
            says="Add the column `headers`.",
        ),
        Option(
            name="isolationLevel",
            field="isolation_level",
            kind=WORD,
            default="read_committed",
            says="`read_committed` hides open and aborted transactions; or `read_uncommitted`.",
        ),
        Option(
            name="kafkaConsumer.pollTimeoutMs",
            field="poll_timeout_ms",
            kind=MILLISECONDS,
            default="120000",
            says="How long the brokers may be silent before a read fails.",
        ),
        Option(
            name="clientRackEnv",
            field="client_rack_env",
            says="The environment variable that holds the rack of a machine. Each task takes its "
            "value as `client.rack`, so that a broker of the same rack answers its reads.",
        ),
    ],
    prefix="kafka.",
)
