"""A two-phase sink of your own: a transaction is a file, and its commit is a rename."""

import contextlib
import dataclasses
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from transactions import Attempt, Committable, OpenSink, Outcome
from transactions.errors import ConfigurationError, PhaseOneError


@dataclasses.dataclass
class OpenFile:
    """A transaction in the task that writes it: live, never pickled."""

    attempt: Attempt
    path: Path
    file: BinaryIO
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Folder:
    """A place that every task and the driver have.

    Attributes:
        folder: its path; readers look into its folder `data`.
        name: of the sink in its driver.
    """

    folder: Path
    name: str = "folder"

    def at(self, name):
        """Return one of its folders."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def sync(self, name):
        """Bring the names in a folder to disk."""
        for path in (self.at(name), self.folder):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)


class FolderWriter(Folder):
    """Phase 1, in a task: writes the column `value`, a line each."""

    def begin_transaction(self, attempt):
        """Open a file whose name says whose it is, with something random behind it."""
        owner = (attempt.owner.application_id, attempt.owner.log_id, attempt.owner.run_epoch)
        path = self.at("staged") / ".".join(map(str, (*owner, secrets.token_hex(8))))
        return OpenFile(attempt, path, path.open("xb"))

    def invoke(self, transaction, batch):
        """Write; nothing has to be on disk yet."""
        transaction.file.writelines(b"%b\n" % one for one in batch.column("value").to_pylist())
        transaction.count += batch.num_rows

    def pre_commit(self, transaction):
        """Bring the file and its name to disk: from here on anybody can commit it."""
        if not transaction.count and not transaction.attempt.source_offsets:
            return self.abort(transaction)  # an empty transaction is none
        with transaction.file as file:
            file.flush()
            os.fsync(file.fileno())
        self.sync("staged")
        return Committable(
            sink=self.name,
            transactional_id=transaction.path.name,
            token=transaction.path.name,
            checkpoint_id=transaction.attempt.checkpoint_id,
            subtask=transaction.attempt.subtask,
            attempt=transaction.attempt.attempt_id,
            source_offsets=transaction.attempt.source_offsets,
            record_count=transaction.count,
            fingerprint="",
            producer_id=-1,
            producer_epoch=-1,
            timeout_ms=0,
        )

    def abort(self, transaction):
        """Remove the file, prepared or not."""
        transaction.file.close()
        transaction.path.unlink(missing_ok=True)


class FolderCommitter(Folder):
    """Phase 2, on the driver."""

    def check_prepared(self, committables, deadline):
        """Nobody has removed one before its decision."""
        for one in committables:
            if not (self.at("staged") / one.transactional_id).exists():
                raise PhaseOneError("A prepared file is gone.", where=one.transactional_id)
        return list(committables)

    def commit(self, committables, deadline):
        """Rename, after a look whether that has been done; then bring the new names to disk."""
        outcomes = {one.token: Outcome.UNKNOWN for one in committables}
        for one in committables:
            staged, data = self.at("staged") / one.token, self._data(one)
            if data.exists():
                outcomes[one.token] = Outcome.ALREADY_COMMITTED
            elif not deadline.expired():
                with contextlib.suppress(FileNotFoundError):  # another driver, or the disk: UNKNOWN
                    staged.rename(data)
                    outcomes[one.token] = Outcome.COMMITTED
        self.sync("data")  # also what another process has renamed: it may have died before this
        return outcomes

    recover_and_commit = commit  # it asks first in any case

    def lingering(self, owner, deadline):
        """Take the names apart: a prefix would also be that of another application, or run."""
        found = [path.name.split(".") for path in self.at("staged").iterdir()]
        ours = [owner.application_id, owner.log_id]
        return [".".join(n) for n in found if n[:2] == ours and int(n[2]) <= owner.run_epoch]

    def recover_and_abort(self, transaction_ids, deadline):
        """Remove the files; a task that still writes into one fails in check_prepared."""
        for one in transaction_ids:
            (self.at("staged") / one).unlink(missing_ok=True)

    def hidden(self, committed, deadline):
        """Return nothing: a renamed file is seen at once."""
        return []

    def retired(self):
        """Return nothing: no id is used twice."""
        return frozenset()

    def close(self):
        """Nothing is held."""

    def _data(self, one):
        return self.at("data") / f"{one.checkpoint_id:010}.{one.subtask:05}.{one.token}"


class FolderSink(Folder):
    """What the user gives to a driver."""

    def identity(self):
        """What a checkpoint is bound to: another folder is another sink."""
        return {"kind": "folder", "folder": str(self.folder)}

    def check_columns(self, schema):
        """Refuse, before any data moves, what `invoke` could not write."""
        if "value" not in schema.names or not pa.types.is_binary(schema.field("value").type):
            raise ConfigurationError(
                "A folder takes the column value, as binary.",
                where=f"sink {self.name!r}, {self.folder}",
                cause=f"the columns are: {', '.join(f'{f.name} {f.type}' for f in schema)}",
                option="the transform: cast or rename a column",
            )

    def open(self, context):
        """Return the two halves of a run."""
        return OpenSink(
            FolderWriter(self.folder, self.name), FolderCommitter(self.folder, self.name)
        )
