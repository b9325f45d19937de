"""The table of options, of sinks: see `connectors.options.table`."""

from __future__ import annotations

from typing import Final

from connectors.options.option import MILLISECONDS, SWITCH, Option, Table

#: Options of [[sink]] with kind = "kafka", the default.
KAFKA_SINK: Final = Table(
    [
        Option(
            name="topic",
            says="The target topic; it has priority over a column `topic`. Without it each row "
            "names its own topic.",
        ),
        Option(
            name="name",
            says="Unique in the driver, and the same at every restart; the topic by default.",
        ),
        Option(
            name="guarantee",
            default="exactly-once",
            says="`exactly-once`: in transactions; `at-least-once`: visible at once, repeated "
            "after a failure, never lost; `none`: the sink does not wait for the broker, so a "
            "record can also be lost.",
        ),
        Option(
            name="transactionTimeoutMs",
            field="transaction_timeout_ms",
            kind=MILLISECONDS,
            says="How long a prepared transaction may stay open without its writer; without it as "
            "long as the broker allows (`transaction.max.timeout.ms`). Only for exactly-once.",
        ),
        Option(
            name="writeTimestamp",
            field="write_timestamp",
            kind=SWITCH,
            default="false",
            says="A column `timestamp` of a DataFrame becomes the time of the record. By default "
            "Kafka gives a record the time of its writing, as with Spark's own sink. An Arrow "
            "function that returns the column needs no option.",
        ),
    ],
    prefix="kafka.",
)

#: Options of [[sink]] with kind = "files".
FILE_SINK: Final = Table(
    [
        Option(
            name="path",
            says="The folder, created if it does not exist: a path, a `file://` URL, or an address "
            "in an object store such as `s3://bucket/prefix`.",
        ),
        Option(name="format", default="parquet", says="`parquet`, or `json`: one object a line."),
        Option(
            name="name",
            says="Unique in the driver, and the same at every restart; the folder's name by "
            "default.",
        ),
        Option(
            name="compression",
            default="snappy",
            says="Of Parquet: `snappy`, `zstd`, `gzip` or `none`.",
        ),
    ],
    prefix="store.",
)

#: Options of [[sink]] with kind = "postgres".
POSTGRES_SINK: Final = Table(
    [
        Option(
            name="conninfo",
            says="libpq's connection string, as a URI or as keywords. libpq takes missing values "
            "from its environment variables and files, which must then exist on every worker.",
        ),
        Option(name="table", says="The target, as SQL writes it: `orders`, `public.orders`."),
        Option(
            name="name",
            says="Unique in the driver, and the same at every restart; the table by default.",
        ),
    ]
)
