"""A batch whose Spark job does not end in time: the job is cancelled, and the attempt fails."""

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
    """Run a batch; its Spark jobs are cancelled, from another thread, when it takes too long.

    Spark gives all jobs of a query's run one group, named by its run id, and interrupts their
    tasks; a Python worker that does not listen is killed two seconds later. The transactions it
    had open are ended by the sweep at the next start. What the driver itself does in a batch has
    the same deadline in each of its steps and needs no cancelling.

    Raises:
        CheckpointTimeoutError: a job was cancelled.
    """
    ended = threading.Event()
    cancelled = threading.Event()

    def watch() -> None:
        # Again and again: a batch that heals or replays may start one more job.
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
            except Exception as error:  # noqa: BLE001 - the session may be gone meanwhile
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
            cause="a function of yours waits for something, or the batch is too large",
            option=f"checkpoint_timeout={timeout_s:g} s, or a smaller maxOffsetsPerTrigger",
        ) from error
    finally:
        # After this no cancel is on its way that could hit the next batch's job.
        ended.set()
        watcher.join()
