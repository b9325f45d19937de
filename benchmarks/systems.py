"""What is measured here: our own modes, and what a peer is made of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from connectors.bench.system import System, Task, our_system
from connectors.options.guarantee import AT_LEAST_ONCE, NO_GUARANTEE
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from transactions.errors import SparkOnceError


class PeerError(SparkOnceError):
    """A peer could not be installed."""


def python_job(script: Path, python: Path = Path(sys.executable)) -> Callable[[Task], list[str]]:
    """Return what runs a script whose one argument is the task as JSON."""
    return lambda task: [str(python), str(script), json.dumps(task)]


OURS = our_system(MICRO_BATCH)
_QUERY = Path(__file__).parent / "peers" / "spark_kafka_job.py"


def _one_word(task: Task) -> list[str]:
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    words = {"format": "kafka-exactly-once", "conf": {**task["conf"], **conf}}
    return python_job(_QUERY)({**task, **words})


#: Our own modes, by the word that chooses them.
MODES = {
    "micro-batch": OURS,
    # The same work in an Arrow function: in the stage that writes, and in a stage of its own.
    "micro-batch-arrow": our_system(MICRO_BATCH, name="sparkonce micro-batch, Arrow", stages=1),
    "micro-batch-arrow-3": our_system(
        MICRO_BATCH, name="sparkonce micro-batch, Arrow in three stages", stages=3
    ),
    # The script of Spark's own job with one other word on each side, in a plain session.
    "one-word": System(name="sparkonce one word", command=_one_word, versions=OURS.versions),
    "continuous": our_system(CONTINUOUS),
    # A backfill: it reads what is there, commits it and ends. Only for throughput.
    "continuous-available-now": our_system(
        CONTINUOUS, name="sparkonce continuous, available-now", available_now=True
    ),
    **{
        f"{mode}-{guarantee}": our_system(
            mode, name=f"sparkonce {mode}, {guarantee}", guarantee=guarantee
        )
        for mode in (MICRO_BATCH, CONTINUOUS)
        for guarantee in (AT_LEAST_ONCE, NO_GUARANTEE)
    },
    **{
        f"continuous-{ms}": our_system(
            CONTINUOUS, name=f"sparkonce continuous, {ms} ms", barrier_interval_s=ms / 1000
        )
        for ms in (10, 100, 1000)
    },
    # With one interval the guarantee is all that differs.
    **{
        f"continuous-{ms}-{guarantee}": our_system(
            CONTINUOUS,
            name=f"sparkonce continuous, {ms} ms, {guarantee}",
            barrier_interval_s=ms / 1000,
            guarantee=guarantee,
        )
        for ms in (100, 1000)
        for guarantee in (AT_LEAST_ONCE, NO_GUARANTEE)
    },
}
#: Those that are measured when nobody chooses.
USUAL_MODES = ("micro-batch", "continuous")
