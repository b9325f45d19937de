"""Batches that adapt to a target, where one partition is ten times as hot as the others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.auditor.reader import read_committed
from tests.integration.in_process import Copying, send, values

HOT = 40_000
OTHERS = 4_000
PARTITIONS = 4
SECONDS_A_RECORD = 250e-6
TARGET_S = 1.5


def slowly(rows: DataFrame) -> DataFrame:
    """Work on each record for a time that no machine changes much."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(batch.num_rows * SECONDS_A_RECORD)
            yield batch

    chosen = rows.select("key", "value", "partition")
    return chosen.mapInArrow(work, chosen.schema)


@pytest.mark.long
def test_a_checkpoint_stays_near_its_target_when_one_partition_is_hot(
    spark: SparkSession,
    bootstrap: str,
    application_id: str,
    topic: Callable[..., str],
    tmp_path: Path,
):
    """The hot partition alone is ten seconds of work, in one task."""
    source, output = topic(PARTITIONS, "in"), topic(PARTITIONS, "out")
    send(bootstrap, source, range(HOT), partition=0)
    for partition in range(1, PARTITIONS):
        begin = HOT + (partition - 1) * OTHERS
        send(bootstrap, source, range(begin, begin + OTHERS), partition=partition)
    pipeline = Copying(
        spark, bootstrap, application_id, tmp_path / "checkpoint", source, {output: slowly}
    )

    driver = pipeline.run(target_checkpoint_s=TARGET_S)

    everything = HOT + (PARTITIONS - 1) * OTHERS
    assert sorted(values(read_committed(bootstrap, output))) == list(range(everything))
    took = [sum(one.phase_ms.values()) / 1000 for one in driver.reports]
    # The first ones find the size, and the last one takes what is left.
    assert len(took) >= 5, took
    assert TARGET_S / 2 < statistics.median(took[2:-1]) < TARGET_S * 2, took

    # The next run goes on with that size, and not with a size that would take all at once.
    send(bootstrap, source, range(everything, everything + HOT), partition=0)
    again = pipeline.run(target_checkpoint_s=TARGET_S)
    assert sum(again.reports[0].phase_ms.values()) / 1000 < TARGET_S * 3
    assert len(read_committed(bootstrap, output)) == everything + HOT
