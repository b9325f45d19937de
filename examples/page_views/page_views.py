"""Page views counted per app: in Spark's keyed state, and, as a warning, in a database beside it.

Both are driver functions, as the pytest plugin runs them. A view is a record whose key is the app.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors import KafkaSink, KafkaSource
from connectors.spark import StreamingDriver

COUNT = "key binary, value string"


class ViewCount(StatefulProcessor):
    """One number per app, in RocksDB. Spark brings it back to the checkpoint that is replayed."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state: once per task."""
        self._views = handle.getValueState("views", "views long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: tuple[bytes], rows: Iterator[Row], _timers: object
    ) -> Iterator[Row]:
        """Add the views of one app in this checkpoint."""
        before = self._views.get()[0] if self._views.exists() else 0
        views = before + sum(1 for _ in rows)
        self._views.update((views,))
        yield Row(key=key[0], value=str(views))

    def close(self) -> None:
        """Nothing is held."""


def count_in_state(
    driver: StreamingDriver, bootstrap_servers: str, views: str, counts: str, most: int
) -> None:
    """Write each app's new count to `counts` at every checkpoint. State, output and offsets are
    decided together: after any crash they agree.
    """
    rows = driver.read(_source(bootstrap_servers, views, most))
    counted = rows.select("key").groupBy("key")
    driver.write(
        counted.transformWithState(
            statefulProcessor=ViewCount(),
            outputStructType=COUNT,
            outputMode="update",
            timeMode="none",
        ),
        KafkaSink(bootstrap_servers=bootstrap_servers, topic=counts),
    )


@dataclasses.dataclass(frozen=True)
class Increment:
    """Reads, increments and writes a row of a database, per view; then passes the view on."""

    database: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count what comes. The database knows nothing of checkpoints."""
        with sqlite3.connect(self.database, timeout=30) as connection:
            for batch in batches:
                apps = [(key.decode(),) for key in batch.column("key").to_pylist()]
                connection.executemany("UPDATE views SET count = count + 1 WHERE app = ?", apps)
                connection.commit()
                yield batch


def count_outside(
    driver: StreamingDriver,
    bootstrap_servers: str,
    *,
    views: str,
    seen: str,
    database: str,
    most: int,
) -> None:
    """Count in a database on the way to `seen`. **Wrong**: a checkpoint that runs again counts its
    views again, and nothing can take the first time back.
    """
    rows = driver.read(_source(bootstrap_servers, views, most)).select("key", "value")
    counted = rows.mapInArrow(Increment(database), "key binary, value binary")
    driver.write(counted, KafkaSink(bootstrap_servers=bootstrap_servers, topic=seen))


def _source(bootstrap_servers: str, views: str, most: int) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=bootstrap_servers,
        subscribe=views,
        starting_offsets="earliest",
        max_offsets_per_trigger=most,
    )
