"""A user's driver function, for the test of the harness."""

from __future__ import annotations

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver


def copy(driver: StreamingDriver, bootstrap_servers: str, source: str, output: str, most: int):
    """Copy one topic into another, `most` records per checkpoint."""
    rows = driver.read(
        KafkaSource(
            bootstrap_servers=bootstrap_servers,
            subscribe=source,
            starting_offsets="earliest",
            max_offsets_per_trigger=most,
        )
    )
    driver.write(
        rows.select("key", "value"), KafkaSink(bootstrap_servers=bootstrap_servers, topic=output)
    )
