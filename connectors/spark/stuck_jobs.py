"""Cancels the Spark job of a batch that does not end in time; the attempt then fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from transactions.errors import CheckpointTimeoutError, SparkOnceError

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 2.0


@contextmanager
def cancelled_after(
    timeout_s: float, spark: SparkSession, run_id: str, batch_id: int
) -> Iterator[None]:
    """Run a batch; another thread cancels its Spark jobs when it takes too long.

    Spark puts all jobs of a query's run into one group, named by the run id. A cancel interrupts
    their tasks, and a Python worker that does not react is killed two seconds later. The sweep at
    the next start ends the worker's open transactions. The driver's own steps in a batch have the
    same deadline each, and need no cancelling.

    Raises:
        CheckpointTimeoutError: a job was cancelled.
    """
    ended = threading.Event()
    cancelled = threading.Event()

    def watch() -> None:
        # Repeated: a batch that heals or replays may start one more job.
        wait_s = timeout_s
        while not ended.wait(wait_s):
            if not cancelled.is_set():
                logger.warning(
                    "checkpoint %d takes longer than %g s: cancelling its job", batch_id, timeout_s
                )
            cancelled.set()
            wait_s = _AGAIN_SECONDS
            try:
                spark.sparkContext.cancelJobGroup(run_id)
            except Exception as error:  # noqa: BLE001 - the session may not exist any more
                logger.warning("checkpoint %d could not be cancelled: %s", batch_id, error)

    watcher = threading.Thread(target=watch, name="sparkonce-checkpoint-watch", daemon=True)
    watcher.start()
    try:
        yield
    except SparkOnceError:
        raise
    except Exception as error:
        if not cancelled.is_set():
            raise
        raise CheckpointTimeoutError(
            "The Spark job of a batch was stuck and has been cancelled.",
            where=f"checkpoint {batch_id}, run {run_id}",
            cause="a function of the pipeline is blocked, or the batch is too large",
            option=f"checkpoint_timeout={timeout_s:g} s, or a smaller maxOffsetsPerTrigger",
        ) from error
    finally:
        # After this, no late cancel can hit the next batch's job.
        ended.set()
        watcher.join()
