"""Which sources of a user's own query can read a record twice. If one cannot, a batch that failed
could not be written again, so the query is refused.

A socket is the only source of Spark that cannot: what it has delivered is gone. A writer that Spark
calls in the driver sees the class of each source. The process that commits sees only the
checkpoint. There a socket's offset is a bare count, and Spark keeps no folder for it. Other sources
that count (rate) keep theirs in `sources/N`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from connectors.pipeline.spark_checkpoint import offsets_by_source
from connectors.spark.batch_offsets import source_names
from transactions.errors import ConfigurationError

_SOCKET: Final = "TextSocket"
_COUNT: Final = re.compile(r"-?\d+")


def refuse_sources_of_query(execution: Any) -> None:
    """Check the sources of the query that is running. Called in foreachBatch, on the driver.

    Raises:
        ConfigurationError: one cannot read a record twice.
    """
    found = (name for name in source_names(execution) if name.startswith(_SOCKET))
    _refuse(f"query {execution.id()}, source", found)


def refuse_sources_of_batch(checkpoint: Path, number: int) -> None:
    """Check the sources by what Spark has written before it plans a batch.

    Args:
        checkpoint: of the query.
        number: of the batch.

    Raises:
        ConfigurationError: one cannot read a record twice, or the file is not complete.
    """
    found = (
        f"{name} with the offset {offset}"
        for name, offset in offsets_by_source(checkpoint, number).items()
        if _COUNT.fullmatch(offset) and not (checkpoint / "sources" / name).exists()
    )
    _refuse(f"batch {number} in {checkpoint}, source", found)


def _refuse(where: str, found: Iterable[str]) -> None:
    for name in found:
        raise ConfigurationError(
            "A source of the query cannot read a record twice.",
            where=f"{where} {name}",
            cause="what a socket has delivered is gone; after a failure a batch could not be "
            "written again",
            option="readStream.format: kafka-exactly-once, kafka, files, a table",
        )
