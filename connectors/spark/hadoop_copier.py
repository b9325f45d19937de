"""Copies files between folders and addresses through Hadoop, inside the driver's JVM: no byte of
them comes into Python, so that much state takes as long as the store takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from connectors.spark.hadoop_jvm import (
    ABSENT,
    JVM_ERRORS,
    file_manager,
    first_line_of,
    java_class_of,
    with_authority,
)
from transactions.checkpoint_location import CheckpointLocation, local_path
from transactions.log_backend import sync_file
from transactions.savepoint import File
from transactions.savepoint_place import FileCopier, FolderCopier

_CHUNK: Final = 1 << 20
#: Streams with it acknowledge what is durable only when they are asked (HDFS).
_HSYNC: Final = "hsync"
#: Hadoop's file systems that keep checksums beside their files, which no savepoint names.
_WITH_CHECKSUMS: Final = "org.apache.hadoop.fs.ChecksumFileSystem"


def copier_between(spark: SparkSession, *places: CheckpointLocation) -> FileCopier:
    """Return what copies files between these places. On the driver; it asks nothing yet."""
    if all(place.folder is not None for place in places):
        return FolderCopier()
    return HadoopCopier(spark)


class HadoopCopier:
    """See `FileCopier`. On the driver, from any thread.

    Args:
        spark: its session; its Hadoop settings hold for all addresses.
    """

    #: A store answers each of many small files after a round trip.
    at_once: Final = 8

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no public way to the JVM
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
        java: Any = spark._jsparkSession  # noqa: SLF001 - as above
        self._settings = java.sessionState().newHadoopConf()

    def copy(self, source: str, target: str) -> File:
        """See `FileCopier.copy`. At an address the file appears as a whole, by what Spark writes
        its own files with.
        """
        with _told(f"from {source}", absent=True):
            opened = self._system(source).open(self._path(source))
        digest = self._jvm.java.security.MessageDigest.getInstance("SHA-256")
        reading = self._jvm.java.security.DigestInputStream(opened, digest)
        folder = local_path(target)
        try:
            with _told(f"from {source} to {target}"):
                size = self._written(reading, target, folder)
        finally:
            reading.close()
        if folder is not None:
            sync_file(folder)
        return File(size=size, sha256=bytes(digest.digest()).hex())

    def remove(self, folder: str) -> None:
        """See `FileCopier.remove`."""
        with _told(folder):
            self._system(folder).delete(self._path(folder), True)

    def _written(self, reading: Any, target: str, folder: Path | None) -> int:
        path, hadoop = self._path(target), self._jvm.org.apache.hadoop
        if folder is not None:
            writing = self._system(target).create(path, True)
        else:
            manager = file_manager(self._jvm, path.getParent(), self._settings)
            manager.mkdirs(path.getParent())
            writing = manager.createAtomic(path, True)
        try:
            hadoop.io.IOUtils.copyBytes(reading, writing, _CHUNK, False)
            if writing.hasCapability(_HSYNC):
                writing.hsync()
            size = int(writing.getPos())
        except BaseException:
            with contextlib.suppress(*JVM_ERRORS):  # the first error counts
                writing.close() if folder is not None else writing.cancel()
            raise
        writing.close()
        return size

    def _path(self, address: str) -> Any:
        folder = local_path(address)
        text = f"file://{folder}"  # Hadoop decodes no %20
        if folder is None:
            text = with_authority(address, self._settings, self._gateway)
        return self._jvm.org.apache.hadoop.fs.Path(text)

    def _system(self, address: str) -> Any:
        system = self._path(address).getFileSystem(self._settings)
        plain = local_path(address) is None
        if plain or not is_instance_of(self._gateway, system, _WITH_CHECKSUMS):
            return system
        return system.getRawFileSystem()


@contextlib.contextmanager
def _told(where: str, *, absent: bool = False) -> Iterator[None]:
    """Turn an error of Hadoop into one of Python."""
    try:
        yield
    except JVM_ERRORS as error:
        kind = java_class_of(error)
        text = f"{where}: {kind}: {first_line_of(error)}"
        raise (FileNotFoundError if absent and kind == ABSENT else OSError)(text) from error
