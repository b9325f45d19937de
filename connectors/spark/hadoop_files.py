"""Spark's part of a driver's checkpoint at an address that Spark reads and writes through Hadoop.

An object store makes a file durable when it acknowledges it, and shows it whole or not at all. In
HDFS Spark renames its files into place, and a closed file is on every data node of its pipeline. So
nothing is synced here, and nothing torn can be left. (HDFS: a loss of power in all of those data
nodes at once needs ``dfs.datanode.synconclose`` there.) Hadoop's client of an object store
(``hadoop-aws`` for ``s3a://``) and its settings are the user's: PySpark ships that of HDFS only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from connectors.spark.checkpoint_files import MUST_BE_EMPTY, SPARK, bring_back, is_of_batch
from connectors.spark.hadoop_jvm import (
    ABSENT,
    JVM_ERRORS,
    file_manager,
    first_line_of,
    java_class_of,
    with_authority,
)
from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.log_state import LogState

#: Below Spark's part, which does not know it: the text of a file that is being replaced.
_ASIDE: Final = "replacing"
#: A name node that is too old to have observers says it of msync.
_NO_OBSERVERS: Final = "RpcNoSuchMethod"
#: What Hadoop says when it has no client for an address; no later start is better.
_NO_CLIENT: Final = ("ClassNotFoundException", "UnsupportedFileSystemException")


class HadoopFiles:
    """See `connectors.spark.query_files.QueryFiles`; also the files of each run.

    Args:
        spark: the driver's session; its JVM asks the store.
        location: of the checkpoint, at an address.
    """

    def __init__(self, spark: SparkSession, location: CheckpointLocation) -> None:
        self._spark = spark
        self._given = f"{location.hadoop_address}/{SPARK}"
        # The source's process runs on the driver's machine. Each start writes its notes anew.
        self._notes = tempfile.TemporaryDirectory(prefix="sparkonce-")
        self.notes = Path(self._notes.name)

    @cached_property
    def address(self) -> str:
        """See `QueryFiles.address`."""
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001 - no public way to the JVM
        return with_authority(self._given, self._settings, gateway)

    def finished(self) -> int:
        """See `QueryFiles.finished`.

        Raises:
            SparkOnceError: the store does not answer, or Hadoop has no client for it.
        """
        return max(self._batches("commits"), default=-1)

    def planned_end(self) -> dict[str, int]:
        """See `QueryFiles.planned_end`: a checkpoint here was always begun by a decided start."""
        return {}

    def has_finished(self, batch_id: int) -> bool:
        """See `QueryFiles.has_finished`.

        Raises:
            SparkOnceError: see `finished`.
        """
        return batch_id in self._batches("commits")

    def has_any(self) -> bool:
        """See `QueryFiles.has_any`.

        Raises:
            SparkOnceError: see `finished`.
        """
        return bool(self._batches("offsets") or self._batches("commits"))

    def read(self, name: str) -> str | None:
        """See `BatchTexts.read`.

        Raises:
            SparkOnceError: see `finished`.
        """
        text = self._text(name)
        if text is None:
            text = self._text(f"{_ASIDE}/{name}")
            if text is not None:  # a `replace` was killed when the old file was gone
                self._finish_replacing(name, text)
        return text

    def replace(self, name: str, text: str) -> None:
        """See `BatchTexts.replace`. Hadoop's clients of object stores replace a file in two steps:
        they delete the old one, then they copy the new one to its name. So the text is put aside
        first. If this is killed between the two, `read` finds the text there and finishes.

        Raises:
            SparkOnceError: see `finished`; or the file has another text afterwards.
        """
        self._put(f"{_ASIDE}/{name}", text)
        self._finish_replacing(name, text)

    def begin_run(self, log: LogState) -> HadoopFiles:
        """See `QueryFiles.begin_run`. Spark plans a batch that was not decided again, as in a
        folder.

        Raises:
            SparkOnceError: see `finished`.
        """
        decision = log.decision
        last = -1 if decision is None else decision.checkpoint_id
        if last < 0:
            for folder in MUST_BE_EMPTY:
                self._ask("delete", folder, True)
            return self
        for number in self._batches("offsets"):
            if number > last:
                self._ask("delete", f"offsets/{number}", False)
        if log.decided_here is not None:
            bring_back(self, log.decided_here)
        return self

    def to_copy(self, batch_id: int) -> dict[str, str]:
        """See `QueryFiles.to_copy`.

        Raises:
            FileNotFoundError: Spark has removed a folder meanwhile, or the batch is not there.
            SparkOnceError: see `finished`.
        """
        root = f"{self._path('')}/"  # as Hadoop writes it
        found = self._answer("", self._all_paths) or []
        by_name = {f"{SPARK}/{path.removeprefix(root)}": path for path in found}
        made = {name: path for name, path in by_name.items() if is_of_batch(name, batch_id)}
        for name in (f"{SPARK}/{log}/{batch_id}" for log in ("offsets", "commits")):
            if name not in made:
                raise FileNotFoundError(f"{root}: no {name} among {len(found)} files")
        return made

    # --- in a run ---------------------------------------------------------------------------

    def begin(self) -> Callable[[], None]:
        """See `RunFiles.begin`: what the store has acknowledged is durable."""
        return lambda: None

    def make_state_durable(self) -> None:
        """See `RunFiles.make_state_durable`: it is."""

    def has_state(self) -> bool:
        """See `RunFiles.has_state`.

        Raises:
            SparkOnceError: see `finished`.
        """
        return bool(self._ask("exists", "state"))

    # --- Hadoop -----------------------------------------------------------------------------

    @property
    def _system(self) -> Any:
        """Return Hadoop's `FileSystem` of the address, with the settings of the session. Hadoop
        keeps one for all users of a JVM, and makes another one if a user has closed it.
        """
        return self._path("").getFileSystem(self._settings)

    @cached_property
    def _settings(self) -> Any:
        java: Any = self._spark._jsparkSession  # noqa: SLF001 - no public way to Hadoop's settings
        return java.sessionState().newHadoopConf()

    def _path(self, name: str) -> Any:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - as above
        return jvm.org.apache.hadoop.fs.Path(f"{self.address}/{name}".rstrip("/"))

    @cached_property
    def _manager(self) -> Any:
        """Return what Spark writes these files with."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - as above
        return file_manager(jvm, self._path(""), self._settings)

    def _finish_replacing(self, name: str, text: str) -> None:
        self._put(name, text)
        self._ask("delete", f"{_ASIDE}/{name}", False)

    def _put(self, name: str, text: str) -> None:
        self._answer(name, partial(self._write, name, text))
        if self._text(name) != text:
            raise self._unread(name, "the file was replaced, and has another text")

    def _text(self, name: str) -> str | None:
        text: str | None = self._answer(name, partial(self._read, name))
        return text

    def _read(self, name: str) -> str:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - as above
        stream = self._system.open(self._path(name))
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, name: str, text: str) -> None:
        self._manager.mkdirs(self._path(name).getParent())
        stream = self._manager.createAtomic(self._path(name), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _all_paths(self) -> list[str]:
        """Return the addresses of all files."""
        remaining, found = self._system.listFiles(self._path(""), True), []
        while remaining.hasNext():
            found.append(str(remaining.next().getPath()))
        return found

    def _batches(self, log: str) -> list[int]:
        """Return the batches of one of Spark's logs; a file that is being written has another
        name.
        """
        if self.address.startswith("hdfs:"):
            self._see_all_writes(log)
        found = self._ask("listStatus", log) or ()
        names = [str(status.getPath().getName()) for status in found]
        return [int(name) for name in names if name.isdecimal()]

    def _see_all_writes(self, log: str) -> None:
        """Spark writes with a client of its own; an observer name node may not know that yet."""
        try:
            self._answer(log, lambda: self._system.msync())  # noqa: PLW0108 - `_system` asks, too
        except SparkOnceError as error:
            if _NO_OBSERVERS not in error.cause:
                raise

    def _ask(self, method: str, name: str, *more: object) -> Any:
        """Call a method of Hadoop's `FileSystem` for a file; return None if the file is absent."""
        return self._answer(name, lambda: getattr(self._system, method)(self._path(name), *more))

    def _answer(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except JVM_ERRORS as error:
            kind = java_class_of(error)
            if kind == ABSENT:
                return None
            raise self._unread(name, f"{kind}: {first_line_of(error)}") from error

    def _unread(self, name: str, cause: str) -> SparkOnceError:
        kind = ConfigurationError if any(text in cause for text in _NO_CLIENT) else SparkOnceError
        return kind(
            "Spark's part of the checkpoint cannot be read.",
            where=f"{self.address}/{name}",
            cause=cause,
            option="[spark]: Hadoop's client of the store (jars.packages) and its settings "
            "(hadoop.fs.*); checkpoint: the address",
        )
