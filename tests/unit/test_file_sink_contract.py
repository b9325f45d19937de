"""The contract suite of `transactions.testing` on the file sink, on disk and in an object store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.files import FileSink
from tests.tiers import long
from tests.unit.file_targets import BRIEF, committed_objects, options_on, rows_of, served
from tests.unit.s3_server import Fault, S3Server
from transactions.testing import TwoPhaseCommitSinkContract


class FileSinkContract(TwoPhaseCommitSinkContract):
    __test__ = False

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch({"number": pa.array(numbers, pa.int64())})


class TestFolder(FileSinkContract):
    def new_sink(self):
        return FileSink(path=str(self.folder / "out"))

    def visible(self):
        files = sorted((self.folder / "out").glob("[!_]*"))
        return [number for one in files for number in pq.read_table(one)["number"].to_pylist()]

    def leftovers(self):
        return [one.name for one in (self.folder / "out").glob("_transactions/*")]


@long  # `test_object_file_sink.py` and `test_object_file_kill.py` have what differs
class TestObjects(FileSinkContract):
    server: S3Server
    #: A request to a store that hangs is given up after its own time, not the deadline's.
    grace_s: ClassVar[float] = 8.0

    @pytest.fixture(autouse=True)
    def _served(self) -> Iterator[None]:
        with served() as self.server:
            self.server.page = 1000
            yield

    def new_sink(self):
        return options_on(self.server, **BRIEF)

    def visible(self):
        files = committed_objects(self.server).values()
        return [row["number"] for data in files for row in rows_of(data, "parquet")]

    def leftovers(self):
        """Everything that is neither committed nor says what is."""
        claimed = committed_objects(self.server)
        return [
            key
            for key in self.server.objects
            if "/_committed/" not in key
            and "/_manifests/" not in key
            and key.rpartition("/")[2] not in claimed
        ]

    @contextmanager
    def stall(self) -> Iterator[None]:
        """It hangs, and what hung is carried out when it goes on."""
        gate = threading.Event()
        for one in ("PUT", "HEAD", "GET", "LIST", "DELETE"):
            self.server.fail(Fault(method=one, before=gate, status=None, times=999))
        try:
            yield
        finally:
            self.server.heal()
            gate.set()
