"""The folder of one sink's buffers: a file per transaction, named after it.

The name is ``<application>.<log id>.<run epoch>.<random>.<subtask>``. So the folder itself shows
the owner of a buffer, whatever its writer left behind. The random part begins with that of the
start (`START_LENGTH` digits): a checkpoint folder restored from a copy counts its runs again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from connectors.wal.record_buffer import PreparedBuffer
from transactions.committable import Committable
from transactions.log_backend import sync_folder
from transactions.sink import Attempt, Owner

_SUFFIX = ".arrow"
START_LENGTH: Final = 8


class BufferFolder:
    """The folder to which a sink's tasks write and from which the driver reads.

    Args:
        folder: the first task that writes creates it, the driver never does: its existence proves
            that its file system is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, transactional_id: str) -> Path:
        """Return the file of a transaction."""
        return self._folder / f"{transactional_id}{_SUFFIX}"

    def verified(self, one: Committable) -> PreparedBuffer:
        """Read a prepared buffer and check that it is unchanged since its task sealed it.

        Raises:
            FileNotFoundError, BufferCorruptedError, OSError: see `PreparedBuffer.verified`.
        """
        return PreparedBuffer.verified(
            self.path(one.transactional_id),
            token=one.token,
            checkpoint_id=one.checkpoint_id,
            subtask=one.subtask,
            records=one.record_count,
        )

    def check_mounted(self) -> None:
        """Check that a missing file is really gone, because the folder is there.

        Raises:
            OSError: the folder itself does not exist.
        """
        self._folder.stat()

    def ids_of(self, owner: Owner) -> list[str]:
        """Return the transactions of the owner's log, of its run or an older one, sorted."""
        ids = (one.name.removesuffix(_SUFFIX) for one in self._folder.glob(f"*{_SUFFIX}"))
        return sorted(one for one in ids if _is_of(one, owner))

    def remove(self, transactional_ids: Iterable[str]) -> None:
        """Remove buffers, durably; some may be absent."""
        for one in transactional_ids:
            self.path(one).unlink(missing_ok=True)
        if self._folder.is_dir():
            sync_folder(self._folder)


def transactional_id_of(attempt: Attempt, unique: str) -> str:
    """Return the id of an attempt's transaction.

    Args:
        attempt: the attempt.
        unique: random text without a dot; it begins with that of the start.
    """
    owner = attempt.owner
    run = f"{owner.application_id}.{owner.log_id}.{owner.run_epoch}"
    return f"{run}.{unique}.{attempt.subtask}"


def run_of(transactional_id: str) -> str:
    """Return ``<application>.<log id>.<run epoch>.<random of the start>``, the writer."""
    *run, unique, _ = transactional_id.split(".")
    return ".".join([*run, unique[:START_LENGTH]])


def _is_of(transactional_id: str, owner: Owner) -> bool:
    parts = transactional_id.split(".")
    return (
        len(parts) == 5
        and parts[:2] == [owner.application_id, owner.log_id]
        and parts[2].isdigit()
        and int(parts[2]) <= owner.run_epoch
    )
