"""The target folder in an object store, where the commit is a put-if-absent.

::

    <url>/_data/part-...                  the files; another folder says which of them count
    <url>/_committed/part-...             the commit of one file: a small object of the same name
    <url>/_transactions/<id>              a transaction that has begun its upload; holds its name
    <url>/_manifests/...                  the files of a checkpoint

There is no rename: an object has one name from its first byte on. So prepared, abandoned and
committed files look alike; only a name in ``_committed`` distinguishes them. Readers (Spark, Hive,
Arrow data sets) ignore folders that begin with _. So a reader that does not use `committed_files`
sees nothing, instead of records that were never committed.

The object of a transaction exists before its file and is removed after the commit. So a listing of
a few such objects finds whatever a crash leaves. Only one attempt ever uses a name; decided files
were uploaded before the decision. So a late request, repeated by the network, meets a name that
nobody reads, or an object that exists already.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final, cast

import orjson

from connectors.files.prepared_file import unique_of
from transactions import crash_points
from transactions.committable import Outcome
from transactions.errors import SparkOnceError
from transactions.object_store import ObjectStore, ObjectStoreError, Purpose

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
_DATA: Final = "_data"
_COMMITTED: Final = "_committed"
_TRANSACTIONS: Final = "_transactions"
_MANIFESTS: Final = "_manifests"
_BUFFER: Final = 1 << 20
_PURPOSE: Final = Purpose(
    of="the file sink", option="path", harm="two drivers could both commit one file"
)


class ObjectFolder:
    """One target in an object store. See `TargetFolder`.

    A pickled folder is plain data; the process that calls a method makes the connections.

    Args:
        url: ``s3://bucket/prefix`` or similar, without a slash at its end.
        options: see `ObjectStore`.

    Raises:
        ConfigurationError: the address or an option is wrong. Nothing has been sent yet.
    """

    at_once: Final = 16
    trouble: Final = (
        "the store or the network is not available, the store refused the request, or the worker's "
        "folder for temporary files is full"
    )

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._options = dict(options)
        _ = self._store  # raises if they are wrong

    @functools.cached_property
    def _store(self) -> ObjectStore:
        return ObjectStore(self._url, _PURPOSE, self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_store"}

    def path_of(self, name: str) -> str:
        """See `TargetFolder.path_of`."""
        return f"{self._url}/{_DATA}/{name}"

    # --- in a task --------------------------------------------------------------------------

    def create(self, transaction_id: str) -> BinaryIO:  # noqa: ARG002
        """See `TargetFolder.create`: a file without a name on the worker; nothing is sent."""
        return cast("BinaryIO", tempfile.TemporaryFile(buffering=_BUFFER))

    def seal(self, file: BinaryIO, transaction_id: str, name: str) -> int:
        """See `TargetFolder.seal`: the sweep knows of the upload from its first byte on."""
        with file, _in_short():
            self._store.put(f"{_TRANSACTIONS}/{transaction_id}", name.encode())
            crash_points.reach("upload_started")
            size = file.seek(0, os.SEEK_END)
            self._store.put(f"{_DATA}/{name}", file)
            return size

    def discard(self, transaction_id: str) -> None:
        """See `TargetFolder.discard`.

        A transaction's object may also remain after its commit, if only its removal failed. Then
        the file is the only copy of decided records, and stays.
        """
        with _in_short():
            name = self._store.get(f"{_TRANSACTIONS}/{transaction_id}")
            if name is None:
                return
            if self._store.size_of(f"{_COMMITTED}/{name.decode()}") is None:
                self._store.delete(f"{_DATA}/{name.decode()}")
                crash_points.reach("file_discarded")
            self._store.delete(f"{_TRANSACTIONS}/{transaction_id}")

    # --- on the driver ----------------------------------------------------------------------

    def check(self) -> None:
        """See `TargetFolder.check`: the bucket exists, we may list and write, and a conditional put
        works as promised.
        """
        with _in_short(ObjectStoreError):
            self._store.has_any(_TRANSACTIONS)
            self._store.check_exclusive()

    def make_durable(self) -> None:
        """See `TargetFolder.make_durable`: what a store has acknowledged is durable."""

    def obstacle(self) -> str:
        """See `TargetFolder.obstacle`: `check` would have found it."""
        return ""

    def size_of(self, transaction_id: str, name: str) -> int | None:
        """See `TargetFolder.size_of`. If a sweep came while the task was uploading, only the file
        exists, and it does not count.
        """
        with _in_short():
            if self._store.size_of(f"{_TRANSACTIONS}/{transaction_id}") is None:
                return None
            return self._store.size_of(f"{_DATA}/{name}")

    def publish(self, transaction_id: str, name: str) -> Outcome:
        """See `TargetFolder.publish`.

        Raises:
            OSError: the result is not known. This includes a store without any manifest: the
                checkpoint's manifest was put before its decision. So this is another bucket (it was
                made anew, or the address changed), and it proves nothing about one file.
        """
        with _in_short():
            size = self._store.size_of(f"{_DATA}/{name}")
            if size is not None:
                mark = self._mark(transaction_id, size)
                is_first = self._store.put_if_absent(f"{_COMMITTED}/{name}", mark)
                outcome = Outcome.COMMITTED if is_first else Outcome.ALREADY_COMMITTED
            elif self._store.size_of(f"{_COMMITTED}/{name}") is not None:
                outcome = Outcome.ALREADY_COMMITTED
            elif self._store.has_any(_MANIFESTS):
                return Outcome.ABORTED
            else:
                raise OSError(f"{self._url} has no manifest: the folder was emptied or replaced")
            crash_points.reach("mark_stored")
        self._forget(transaction_id)
        return outcome

    def _mark(self, transaction_id: str, size: int) -> bytes:
        log_id = transaction_id.split(".")[1]
        mark = {"format": FORMAT_VERSION, "transaction_id": transaction_id, "log_id": log_id}
        return orjson.dumps({**mark, "size": size})

    def _forget(self, transaction_id: str) -> None:
        try:
            with _in_short():
                self._store.delete(f"{_TRANSACTIONS}/{transaction_id}")
        except OSError as error:
            logger.warning(
                "%s is committed; the sweep removes its entry: %s", transaction_id, error
            )

    def sync_published(self) -> None:
        """See `TargetFolder.sync_published`: what a store has acknowledged is durable."""

    def open_ids(self) -> list[str]:
        """See `TargetFolder.open_ids`."""
        with _in_short():
            return self._store.names(_TRANSACTIONS)

    def put_manifest(self, name: str, data: bytes, transaction_id: str) -> None:  # noqa: ARG002
        """See `TargetFolder.put_manifest`: an object is whole or absent."""
        with _in_short():
            self._store.put_if_absent(f"{_MANIFESTS}/{name}", data)

    # --- for readers ------------------------------------------------------------------------

    def manifests(self) -> dict[str, bytes]:
        """See `TargetFolder.manifests`: one request for each, several at a time."""
        with _in_short():
            names = self._store.names(_MANIFESTS)
            with ThreadPoolExecutor(self.at_once) as pool:
                found = pool.map(lambda name: self._store.get(f"{_MANIFESTS}/{name}"), names)
                return {n: data for n, data in zip(names, found, strict=True) if data is not None}

    def published(self) -> set[str]:
        """See `TargetFolder.published`."""
        with _in_short():
            return set(self._store.names(_COMMITTED))

    # --- for people -------------------------------------------------------------------------

    def abandoned(self) -> list[str]:
        """See `TargetFolder.abandoned`: an upload arrived after the sweep that discarded it.

        The files are listed first: a whole file has its transaction until it has its mark. So for
        every file that may still count, at least one of the two is seen.
        """
        with _in_short():
            files = self._store.names(_DATA)
            open_ids = self._store.names(_TRANSACTIONS)
            there = self.published()
        claimed = {part for one in open_ids for part in one.split(".")}
        return [one for one in files if one not in there and unique_of(one) not in claimed]


@contextlib.contextmanager
def _in_short(trouble: type[SparkOnceError] = SparkOnceError) -> Iterator[None]:
    """Raise trouble with the store as an OSError of one line: the sink adds the rest.

    This includes refusals. At the start a refusal means a wrong option. In the middle of a run it
    means a removed right or a missing bucket, and in phase 2 it must leave the outcome unknown.
    """
    try:
        yield
    except trouble as error:
        raise OSError(f"{error.what} {error.cause}") from error
