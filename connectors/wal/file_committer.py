"""Marks in files: the committer for any target, on a file system with an honest fsync."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from connectors.wal.checkpoint_committer import CheckpointCommitter
from connectors.wal.folder import absolute_folder, made_folder
from transactions.errors import LogCorruptedError
from transactions.log_backend import sync_folder

_MOST_BYTES: Final = 32


class FileCheckpointCommitter(CheckpointCommitter):
    """One file ``<folder>/<operator>/<job>/<subtask>`` per mark; its text is the checkpoint id.

    A mark is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so no
    reader sees half of one, even after a power cut. Two drivers may write the same mark, but they
    write the same id: when the next run takes over, only the run's own last checkpoint can be open.

    Args:
        folder: on a file system that outlives the driver and that the next driver sees too; not in
            the checkpoint folder, and mounted before the driver starts.

    Raises:
        ConfigurationError: the folder is not on a file system.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = absolute_folder(folder, option="folder")

    def create_resource(self) -> None:
        """See `CheckpointCommitter.create_resource`."""
        made_folder(self._folder / self.operator_id)

    def open(self) -> None:
        """See `CheckpointCommitter.open`: each call opens the file that it needs."""

    def close(self) -> None:
        """See `CheckpointCommitter.close`: it holds nothing open."""

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        """See `CheckpointCommitter.commit_checkpoint`; it takes two fsyncs, for the mark and its
        folder, and one more for the first mark of a run.
        """
        if self.is_checkpoint_committed(subtask, checkpoint_id):
            return
        path = self._path(subtask)
        folder = path.parent if path.exists() else made_folder(path.parent)
        temporary = folder / f".{subtask}.{secrets.token_hex(8)}.tmp"
        try:
            with temporary.open("xb") as file:
                file.write(b"%d\n" % checkpoint_id)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        """See `CheckpointCommitter.is_checkpoint_committed`.

        It syncs a mark that it finds again: an earlier driver may have died between its rename and
        its fsync, and the caller is about to discard the records.

        Raises:
            LogCorruptedError: the file holds no checkpoint id.
            OSError: the file system does not answer, or the folder of the operator is missing.
        """
        path = self._path(subtask)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            (self._folder / self.operator_id).stat()  # an unmounted folder is not "not committed"
            try:
                text = path.read_bytes()  # it may have been mounted only now
            except FileNotFoundError:
                return False
        if not text.endswith(b"\n") or not text[:-1].isdigit() or len(text) > _MOST_BYTES:
            raise LogCorruptedError(
                "The mark of a sent checkpoint cannot be read; nothing was sent.",
                where=f"{path}: {text[:_MOST_BYTES]!r}, asked for checkpoint {checkpoint_id}",
                cause="the file was altered, or its file system lost synced data",
                option="restore the file from a backup, or write the last checkpoint id of the "
                "target into it",
            )
        if int(text) < checkpoint_id:
            return False
        sync_folder(path.parent)
        return True

    def describe(self) -> str:
        """See `CheckpointCommitter.describe`."""
        return f"file:{self._folder}"

    def _path(self, subtask: int) -> Path:
        assert self.operator_id, "set_operator_id() first"
        assert self.job_id, "set_job_id() first"
        return self._folder / self.operator_id / self.job_id / str(subtask)
