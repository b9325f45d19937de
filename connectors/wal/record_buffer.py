"""The record buffer: one subtask's records for one checkpoint, durable until they are sent.

A file: an Arrow IPC stream, which any Arrow reader can open, and behind its end the seal::

    Arrow IPC stream, with its end mark | seal (JSON) | length | CRC-32 of the seal | magic

The seal contains the owner of the records, their number, and the SHA-256 of the stream; it is
written last and synced with it. A file without a whole seal is *open*: its writer is at work or
dead. A reader cuts its torn tail off, and nothing of it is ever sent. A file with a seal is
*prepared*: if any byte has changed since, that is an error, and nothing of it is sent either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

import orjson
import pyarrow as pa

from connectors.wal.folder import made_folder
from transactions.errors import PhaseOneError, SparkOnceError
from transactions.log_backend import sync_folder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_MAGIC: Final = b"SPARKWA1"
_TAIL: Final = struct.Struct(">II8s")
_PIECE: Final = 1 << 20


class BufferCorruptedError(SparkOnceError):
    """A prepared buffer has changed since its seal. Nothing of it was sent; see its text."""

    permanent: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a prepared buffer says about itself.

    Attributes:
        token: of its committable.
        checkpoint_id: of its records.
        subtask: the subtask that wrote them.
        records: their number.
        sealed_at_ms: wall clock of the task, milliseconds since 1970 UTC.
        stream_bytes: length of the Arrow stream.
        sha256: of the Arrow stream, hexadecimal.
    """

    token: str
    checkpoint_id: int
    subtask: int
    records: int
    sealed_at_ms: int
    stream_bytes: int
    sha256: str


class _HashedFile(io.FileIO):
    """The file for Arrow's writer; it computes the hash of what is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self.sha256 = hashlib.sha256()

    def write(self, data: Buffer, /) -> int:
        """Write all of it; a plain write may take less, on a disk that is nearly full."""
        left = memoryview(data).cast("B")
        self.sha256.update(left)
        size = left.nbytes
        while left.nbytes:
            left = left[super().write(left) :]
        return size


class RecordBuffer:
    """A buffer during its writing, in its task; live, never pickled.

    Args:
        path: of the file, in a folder that every worker and the driver see.
        schema: of every batch.

    Raises:
        OSError: the file cannot be created, or exists already.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        made_folder(path.parent)
        self._path = path
        self._file = _HashedFile(path)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch; it becomes durable only with `seal`.

        Raises:
            OSError: the disk is full, or gone.
            pa.ArrowInvalid: the batch has another schema than the first one.
        """
        self._writer.write_batch(batch)

    def end_stream(self) -> None:
        """Write the end of the stream, before the seal; no batch follows it."""
        self._writer.close()
        self._file.flush()

    def seal(
        self, *, token: str, checkpoint_id: int, subtask: int, records: int, now_ms: int
    ) -> None:
        """Write the seal and wait until file and folder are durable; after `end_stream`.

        Raises:
            OSError: they are not.
            PhaseOneError: the file was removed while it was written: a sweep counted its writer as
                dead, so the writer must stop.
        """
        seal = Seal(
            token=token,
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            records=records,
            sealed_at_ms=now_ms,
            stream_bytes=self._file.tell(),
            sha256=self._file.sha256.hexdigest(),
        )
        text = orjson.dumps(dataclasses.asdict(seal))
        self._file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        sync_folder(self._path.parent)
        removed = not self._path.exists()
        self._file.close()
        if removed:
            raise PhaseOneError(
                "A buffer was removed while its task was writing.",
                where=f"{self._path}, checkpoint {checkpoint_id}, subtask {subtask}",
                cause="the checkpoint went on without this attempt, or a newer run has begun",
                option=f"buffer={self._path.parent.parent}",
            )

    def remove(self) -> None:
        """Give up the buffer: close and remove the file, from the task's own `except`."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class PreparedBuffer:
    """A buffer with its seal, as the driver reads it.

    Attributes:
        seal: the buffer's seal.
    """

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path = path
        self.seal = seal

    @classmethod
    def verified(
        cls, path: Path, *, token: str, checkpoint_id: int, subtask: int, records: int
    ) -> Self:
        """Read the whole file once and check that it is unchanged since its task sealed it.

        Raises:
            FileNotFoundError: it is gone.
            BufferCorruptedError: it has no whole seal, another transaction's seal, or other bytes.
            OSError: it cannot be read now.
        """
        seal = read_seal(path)
        problem = "its seal is torn or missing" if seal is None else ""
        if seal is not None:
            said = (seal.token, seal.checkpoint_id, seal.subtask, seal.records)
            if said != (token, checkpoint_id, subtask, records):
                problem = f"its seal is of another transaction: {said}"
            elif _sha256(path, seal.stream_bytes) != seal.sha256:
                problem = "its bytes differ from the sealed bytes"
        if seal is None or problem:
            raise BufferCorruptedError(
                f"The records of a prepared checkpoint cannot be trusted: {problem}.",
                where=f"{path}, checkpoint {checkpoint_id}, subtask {subtask}, token {token}",
                cause="the file was altered, or its file system lost synced data",
                option=f"buffer={path.parent.parent}: restore the file; or remove it, and the "
                "engine's replay writes its records again",
            )
        return cls(path, seal)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches in the order of their writing; one is in memory at a time."""
        with self._path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream


def read_seal(path: Path) -> Seal | None:
    """Return the seal of a file, None if it was never prepared, or is torn.

    Raises:
        OSError: it cannot be read; FileNotFoundError: it is gone.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _TAIL.size:
            return None
        file.seek(size - _TAIL.size)
        length, checksum, magic = _TAIL.unpack(file.read(_TAIL.size))
        begin = size - _TAIL.size - length
        if magic != _MAGIC or begin < 0:
            return None
        file.seek(begin)
        text = file.read(length)
    if zlib.crc32(text) != checksum:
        return None
    seal = Seal(**orjson.loads(text))
    return seal if seal.stream_bytes == begin else None


def whole_batches(path: Path) -> list[pa.RecordBatch]:
    """Return the content of an open buffer, without its torn tail; for people, never sent.

    Raises:
        OSError: it cannot be read.
    """
    found: list[pa.RecordBatch] = []
    with path.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                found.extend(stream)
        except (pa.ArrowInvalid, OSError):
            pass
    return found


def _sha256(path: Path, length: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length and (piece := file.read(min(length, _PIECE))):
            digest.update(piece)
            length -= len(piece)
    return digest.hexdigest()
