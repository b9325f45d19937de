"""Hadoop copies the files of a savepoint inside the driver's JVM; here between folders.

Between addresses: `journeys/test_savepoint_at_address.py`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.hadoop_copier import HadoopCopier, copier_between
from transactions.checkpoint_location import CheckpointLocation
from transactions.savepoint import File
from transactions.savepoint_place import FolderCopier


@pytest.mark.parametrize("size", [0, 7, (3 << 20) + 1])
def test_a_copy_is_whole_and_named_by_its_digest(spark: SparkSession, tmp_path: Path, size: int):
    content = os.urandom(size)
    (tmp_path / "a %20 file").write_bytes(content)
    target = tmp_path / "new/below/copy"
    for _ in range(2):  # an earlier try may have left it, or a part
        made = HadoopCopier(spark).copy(str(tmp_path / "a %20 file"), str(target))
        assert made == File(size=size, sha256=hashlib.sha256(content).hexdigest())
        assert target.read_bytes() == content
        target.write_bytes(b"torn")
    assert [one.name for one in target.parent.iterdir()] == ["copy"], "no checksum beside it"
    assert FolderCopier().copy(str(tmp_path / "a %20 file"), str(target)) == made


def test_a_file_that_is_gone_is_told_as_one(spark: SparkSession, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="gone"):
        HadoopCopier(spark).copy(str(tmp_path / "gone"), str(tmp_path / "copy"))
    (tmp_path / "there").touch()
    with pytest.raises(OSError, match='No FileSystem for scheme "nowhere"'):
        HadoopCopier(spark).copy(str(tmp_path / "there"), "nowhere://bucket/copy")


def test_all_below_a_folder_is_removed(spark: SparkSession, tmp_path: Path):
    (tmp_path / "files/below").mkdir(parents=True)
    (tmp_path / "files/below/one").touch()
    for _ in range(2):
        HadoopCopier(spark).remove(str(tmp_path / "files"))
        assert not list(tmp_path.iterdir())


def test_files_of_this_machine_need_no_hadoop(spark: SparkSession, tmp_path: Path):
    here, there = CheckpointLocation(tmp_path), CheckpointLocation("hdfs://name:8020/there")
    assert isinstance(copier_between(spark, here, here), FolderCopier)
    assert isinstance(copier_between(spark, here, there), HadoopCopier)
