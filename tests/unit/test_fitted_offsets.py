"""Spark's offsets of a finished batch, for a plan that reads the only source in another number of
places: another set of sinks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.checkpoint_files import fit_offsets
from connectors.spark.query_files import FolderFiles
from transactions.errors import ConfigurationError

FACTS = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
HERE = '{"in":{"0":7}}'


def batch(checkpoint: Path, number: int, *lines: str) -> Path:
    path = checkpoint / "spark" / "offsets" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", FACTS, *lines]))
    path.with_name(f".{number}.crc").write_bytes(b"of the old content")
    return path


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 3)])
def test_each_place_goes_on_where_the_source_was(tmp_path, before, now):
    older = batch(tmp_path, 5, *['{"in":{"0":1}}'] * before)
    paths = [batch(tmp_path, 6, *['{"in":{"0":5}}'] * before), batch(tmp_path, 7, *[HERE] * before)]
    untouched = older.read_text()
    for _ in range(2):  # a crash may come behind it, so the next start does it again
        fit_offsets(FolderFiles(tmp_path), 7, now)
        assert [one.read_text().splitlines()[2:] for one in paths] == [
            ['{"in":{"0":5}}'] * now,
            [HERE] * now,
        ]
    assert paths[1].read_text().splitlines()[:2] == ["v1", FACTS]
    assert older.read_text() == untouched
    left = {one.name for one in paths[0].parent.iterdir()}
    assert left == {"5", ".5.crc", "6", "7"}, "a checksum of the old content would be an error"


def test_what_fits_is_not_touched(tmp_path):
    path = batch(tmp_path, 7, HERE)
    before = path.stat().st_ino
    fit_offsets(FolderFiles(tmp_path), 7, 1)
    assert path.stat().st_ino == before
    assert path.with_name(".7.crc").exists()


def test_a_first_start_has_nothing_to_fit(tmp_path):
    fit_offsets(FolderFiles(tmp_path), -1, 2)
    fit_offsets(FolderFiles(tmp_path), 0, 2)
    assert not list(tmp_path.iterdir())


def test_several_sources_are_refused(tmp_path):
    path = batch(tmp_path, 7, HERE, '{"other":{"0":1}}')
    before = path.read_text()
    with pytest.raises(ConfigurationError) as raised:
        fit_offsets(FolderFiles(tmp_path), 7, 3)
    assert str(path) in raised.value.where
    assert "by its place" in raised.value.cause
    assert path.read_text() == before


def test_spark_itself_looks_at_another_format(tmp_path):
    path = batch(tmp_path, 7, HERE)
    path.write_text(f"v2\n{FACTS}\n0:{HERE}")
    before = path.read_text()
    fit_offsets(FolderFiles(tmp_path), 7, 2)
    assert path.read_text() == before
