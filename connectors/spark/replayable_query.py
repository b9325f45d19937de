"""Which queries of a user can run a batch again after a failure. Any other one is refused.

Its sources must read a record twice. A socket is the only source of Spark that cannot: what it has
delivered is gone. A writer that Spark calls in the driver sees the class of each source. The
process that commits sees only the checkpoint. There a socket's offset is a bare count, and Spark
keeps no folder for it. Other sources that count (rate) keep theirs in `sources/N`.

Its state must be made twice. The driver sees the settings that Spark has written into the
checkpoint at the first batch, the process that commits only the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from connectors.pipeline.spark_checkpoint import offsets_by_source
from connectors.spark.batch_offsets import source_names
from transactions.errors import ConfigurationError

_SOCKET: Final = "TextSocket"
_COUNT: Final = re.compile(r"-?\d+")
#: Files of a state store of version 1: their names say only the batch.
_STATE_V1: Final = re.compile(r"\d+\.(delta|snapshot|changelog|zip)")


def refuse_sources_of_query(execution: Any) -> None:
    """Check the sources of the query that is running. Called in foreachBatch, on the driver.

    Raises:
        ConfigurationError: one cannot read a record twice.
    """
    found = (name for name in source_names(execution) if name.startswith(_SOCKET))
    _refuse_sources(f"query {execution.id()}, source", found)


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
    _refuse_sources(f"batch {number} in {checkpoint}, source", found)


def refuse_state_of_query(checkpoint: Path, execution: Any, wanted: Mapping[str, str]) -> None:
    """Check the state of the query that is running. Its settings must be these wanted ones, as far
    as they are of a state store.

    Raises:
        ConfigurationError: Spark would write the state of a repeated batch over the older one.
    """
    if not (checkpoint / "state").exists():
        return
    conf = execution.sparkSessionForStream().conf()
    for key in (one for one in wanted if "stateStore" in one):
        if (value := str(conf.get(key))) != wanted[key]:
            option = f"{key}={wanted[key]}, before the query's first start; build_session sets it"
            raise _state_error(f"{checkpoint}, {key}={value}", option)


def refuse_state_of_batch(checkpoint: Path) -> None:
    """Check the state by the files that Spark has written until the decision of a batch.

    Raises:
        ConfigurationError: Spark would write the state of a repeated batch over the older one.
    """
    names = (checkpoint / "state").glob("*/*/**/*")
    found = next((path for path in names if _STATE_V1.fullmatch(path.name)), None)
    if found is not None:
        raise _state_error(
            str(found),
            "spark.sql.streaming.stateStore.checkpointFormatVersion=2 and the RocksDB state "
            "store, before the query's first start; build_session sets them",
        )


def _refuse_sources(where: str, found: Iterable[str]) -> None:
    for name in found:
        raise ConfigurationError(
            "A source of the query cannot read a record twice.",
            where=f"{where} {name}",
            cause="what a socket has delivered is gone; after a failure a batch could not be "
            "written again",
            option="readStream.format: kafka-exactly-once, kafka, files, a table",
        )


def _state_error(where: str, option: str) -> ConfigurationError:
    return ConfigurationError(
        "The state of the query is kept in a way that no batch can be run again with.",
        where=where,
        cause="a late task of an older run could replace the state of a decided batch",
        option=option,
    )
