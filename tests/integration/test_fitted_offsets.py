"""Spark's offsets at an address, fitted to another plan by Spark's own manager of its files. The
rules: `unit/test_fitted_offsets.py`; with a whole pipeline: `journeys/test_changed_job.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from connectors.spark.checkpoint_files import fit_offsets
from connectors.spark.hadoop_files import HadoopFiles
from tests.unit.test_fitted_offsets import HERE, batch


def test_sparks_manager_replaces_a_file(spark: SparkSession, tmp_path):
    location: Any = SimpleNamespace(hadoop_address=f"file:{tmp_path}")
    files = HadoopFiles(spark, location)
    fit_offsets(files, 7, 2)  # nothing is there
    path = batch(tmp_path, 7, HERE)
    path.with_name(".7.crc").unlink()
    for _ in range(2):
        fit_offsets(files, 7, 2)
        assert path.read_text().splitlines()[2:] == [HERE, HERE]
    assert {one.name for one in path.parent.iterdir()} <= {"7", ".7.crc"}
