"""Checkpoints of Spark's own queries, with the lines that Spark 4.3.0 and its Kafka connector 4.2.0
wrote on a real broker; the configuration in the second line is shortened.
"""

from __future__ import annotations

from pathlib import Path

FACTS = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795594268538,'
    '"conf":{"spark.sql.shuffle.partitions":"2"}}'
)
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def batch(*sources: str, version: str = "v1", facts: str = FACTS) -> str:
    """Return a file of ``offsets``."""
    return "\n".join([version, facts, *sources])


def make(place: Path, offsets: dict[int, str], commits: range | list[int]) -> Path:
    """Write a checkpoint, with what Spark leaves beside it: checksums, and files half written."""
    for name in ("offsets", "commits", "sources/0"):
        (place / name).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"56389adc-ec6a-491d-9300-04a5c57b6d41"}')
    (place / "sources/0/0").write_bytes(b'\x00v1\n{"a":{"0":0,"1":0}}')
    for number, text in offsets.items():
        (place / f"offsets/{number}").write_text(text)
        (place / f"offsets/.{number}.crc").write_bytes(b"crc")
    for number in commits:
        (place / f"commits/{number}").write_text(COMMIT)
        (place / f"commits/.{number}.crc").write_bytes(b"crc")
    newest = max(offsets, default=0)
    (place / f"offsets/.{newest + 1}.0d1e9a.tmp").write_text("v1")
    return place


def of_one_topic(place: Path, *, planned: str | None = None) -> Path:
    """Write a checkpoint whose batch 1 is done; batch 2 is planned if its end is given."""
    offsets = {0: batch('{"a":{"0":5,"1":5}}'), 1: batch('{"a":{"0":8,"1":7}}')}
    if planned is not None:
        offsets[2] = batch(planned)
    return make(place, offsets, range(2))
