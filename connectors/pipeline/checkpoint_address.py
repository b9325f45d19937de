"""What a pipeline must do without if its checkpoint is in an object store: the disk of one machine.

Such a checkpoint is there so that the next driver can start on any machine. So all that this driver
needs to finish a decision must be at the address, on a Kafka cluster, or in a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from connectors.machine.user_folders import checkpoint_folder
from connectors.options.sink import folder_on_disk
from connectors.options.table import CONTINUOUS
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.sink import Sink


def location_in(
    mode: str, checkpoint: str | Path | CheckpointLocation, sinks: Sequence[Sink]
) -> CheckpointLocation:
    """Return where the checkpoint of a pipeline in this mode lies; see `checked_location`.

    Raises:
        ConfigurationError: the mode cannot keep its checkpoint there.
    """
    if mode == CONTINUOUS:
        return checked_location(checkpoint, sinks)
    return CheckpointLocation(checkpoint_folder(checkpoint))


def checked_location(
    checkpoint: str | Path | CheckpointLocation, sinks: Sequence[Sink]
) -> CheckpointLocation:
    """Return where the checkpoint of a continuous pipeline lies. On the driver; it sends nothing.

    Args:
        checkpoint: as the user names it.
        sinks: of the pipeline.

    Raises:
        ConfigurationError: the address or an option of its store is wrong, or a sink keeps decided
            records in a folder and the checkpoint is in an object store.
    """
    location = CheckpointLocation.of(checkpoint)
    if location.folder is not None:
        return location
    location.files()
    for sink in sinks:
        folder = folder_on_disk(sink)
        if folder is not None:
            raise ConfigurationError(
                f"The sink {sink.name!r} keeps decided records in a folder, and the checkpoint is "
                "in an object store.",
                where=f"{folder}; checkpoint {location}",
                cause="a driver that starts on another machine may not have that folder, and "
                "cannot finish what was decided",
                option=f"checkpoint={location}: a folder on the file system of {folder}; or let a "
                "sink of files write into an object store too",
            )
    return location
