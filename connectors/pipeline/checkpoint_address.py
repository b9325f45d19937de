"""What a pipeline must do without if its checkpoint is at an address: the disk of one machine.

Such a checkpoint is there so that the next driver can start on any machine. So all that this driver
needs to finish a decision must be at the address, on a Kafka cluster, or in a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connectors.options.sink import folder_on_disk
from connectors.options.table import CONTINUOUS
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.log_backend import refuse_file
from transactions.log_location import SCHEME
from transactions.sink import Sink

#: Kinds of address that our log's client and a client of Hadoop both know.
_HADOOP: Final = frozenset({"hdfs", "s3", "s3a", "gs", "abfs", "abfss"})


def location_in(
    mode: str, checkpoint: str | Path | CheckpointLocation, sinks: Sequence[Sink]
) -> CheckpointLocation:
    """Return where the checkpoint of a pipeline in this mode lies; see `checked_location`.

    Raises:
        ConfigurationError: the mode cannot keep its checkpoint there. In micro-batches Spark's own
            client must know the address, too.
    """
    location = checked_location(checkpoint, sinks)
    scheme = SCHEME.match(str(location.address))
    if mode == CONTINUOUS or location.folder is not None or scheme is None:
        return location
    if scheme[1].lower() not in _HADOOP:
        raise ConfigurationError(
            "Spark cannot keep its part of a checkpoint at this address.",
            where=str(location),
            cause=f"Hadoop has clients for {', '.join(sorted(_HADOOP))}",
            option="checkpoint=abfss://container@account.dfs.core.windows.net/prefix for Azure; or "
            "a folder",
        )
    return location


def checked_location(
    checkpoint: str | Path | CheckpointLocation, sinks: Sequence[Sink]
) -> CheckpointLocation:
    """Return where the checkpoint of a pipeline lies. On the driver; it makes and sends nothing.

    Args:
        checkpoint: as the user names it.
        sinks: of the pipeline.

    Raises:
        ConfigurationError: a file lies where the folder must be; the address or an option of its
            store is wrong; or a sink keeps decided records in a folder and the checkpoint is at an
            address.
    """
    location = CheckpointLocation.of(checkpoint)
    if location.folder is not None:
        refuse_file(location.folder, option="checkpoint")
        return location
    location.files()
    for sink in sinks:
        folder = folder_on_disk(sink)
        if folder is not None:
            raise ConfigurationError(
                f"The sink {sink.name!r} keeps decided records in a folder, and the checkpoint is "
                "at an address.",
                where=f"{folder}; checkpoint {location}",
                cause="a driver that starts on another machine may not have that folder, and "
                "cannot finish what was decided",
                option=f"checkpoint={location}: a folder on the file system of {folder}; or let a "
                "sink of files write into an object store too",
            )
    return location
