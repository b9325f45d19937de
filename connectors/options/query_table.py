"""Options of `kafka-exactly-once` in ``writeStream`` and ``write``, beside those of the sink."""

from __future__ import annotations

from typing import Final

from connectors.options.option import DURATION, SWITCH, Option, Table

#: Names are compared without regard to case, as Spark does.
QUERY: Final = Table(
    [
        Option(
            name="checkpointLocation",
            field="checkpoint",
            says="A folder of a local file system. A streaming query has its own; jobs of "
            "`df.write` may share one.",
        ),
        Option(
            name="app.id",
            field="app_id",
            says="Only for `writeStream`: the stable name of the query, unique on its Kafka "
            "clusters; letters, digits, _ and -. By default `query-` and Spark's id of the query, "
            "which is the same at every start on one checkpoint.",
        ),
        Option(
            name="job.id",
            field="job_id",
            says="Only for `df.write`, and required there: the name of the job. A job with the "
            "same name and folder is written once, however often it runs.",
        ),
        Option(
            name="checkpointTimeout",
            field="checkpoint_timeout_s",
            kind=DURATION,
            default="10min",
            says="How long one batch or job may take, from its plan to its commit. What takes "
            "longer is given up: it fails at its commit, and nothing of it is visible.",
        ),
        Option(
            name="restartBudget",
            field="restart_budget_s",
            kind=DURATION,
            default="1min",
            says="How long a restart may take. With `checkpointTimeout` it must fit into the "
            "transaction timeout of the sink.",
        ),
        Option(
            name="acceptDuplicates",
            field="accept_duplicates",
            kind=SWITCH,
            default="false",
            says="Start on an old folder: output unknown to this folder is written twice.",
        ),
    ]
)
