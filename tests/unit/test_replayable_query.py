"""A source that cannot read a record twice, told by the checkpoint alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.replayable_query import refuse_sources_of_batch
from transactions.errors import ConfigurationError

KAFKA = '{"t":{"0":10}}'
FILES = '{"logOffset":3}'


def checkpoint(folder: Path, *offsets: str, version: str = "v1", kept: str = "") -> Path:
    """Make what Spark has written when it plans batch 4; `kept`: the sources with a folder."""
    (folder / "offsets").mkdir()
    lines = [version, '{"batchTimestampMs":1}', *offsets]
    (folder / "offsets/4").write_text("\n".join(lines))
    for name in kept.split():
        (folder / "sources" / name).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("offset", ["-1", "0", "12"])
@pytest.mark.parametrize(
    ("before", "version", "name"),
    [((), "v1", "0"), ((KAFKA,), "v1", "1"), (("0:" + KAFKA,), "v2", "1"), ((), "v2", "lines")],
)
def test_a_socket_is_refused(tmp_path, offset, before, version, name):
    line = offset if version == "v1" else f"{name}:{offset}"
    place = checkpoint(tmp_path, *before, line, version=version, kept="" if name == "0" else "0")
    with pytest.raises(ConfigurationError, match="cannot read a record twice") as raised:
        refuse_sources_of_batch(place, 4)
    assert f"batch 4 in {place}, source {name} with the offset {offset}" in raised.value.where
    assert "readStream.format" in raised.value.option


@pytest.mark.parametrize(
    ("offsets", "version", "kept"),
    [
        ((KAFKA, FILES, "-"), "v1", "1"),
        ((KAFKA, "17"), "v1", "1"),  # rate
        (("clicks:17", "0:" + KAFKA), "v2", "clicks"),
    ],
)
def test_other_sources_are_not(tmp_path, offsets, version, kept):
    refuse_sources_of_batch(checkpoint(tmp_path, *offsets, version=version, kept=kept), 4)
