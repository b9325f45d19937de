"""What integration tests clean up, and stores that they share; others: tests/shared_broker.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from connectors.kafka.sink import producer_pool
from tests.client_threads import librdkafka_clients
from tests.hdfs_cluster import HdfsCluster
from tests.s3_store import S3Store
from transactions.events import Event, subscribe


@pytest.fixture(autouse=True)
def _no_producer_outlives_its_test() -> Iterator[None]:
    """A worker of Spark drops its pools after an idle minute; a process of pytest is never idle.
    Producers that nobody serves queue their statistics, ten times a second: at the end of a run
    that was 9 GB, and most of the CPU. Those that an error's frames hold are only found by a whole
    collection, which is not worth its third of a second after a test that leaves nothing.
    """
    before = librdkafka_clients()
    yield
    producer_pool._pools.discard(lambda _key, _pool: True)
    if librdkafka_clients() > before:
        gc.collect()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def swept(application_id: str) -> Iterator[set[str]]:
    """The transactional ids of this test that sweeps have aborted so far."""
    ids: set[str] = set()

    def listen(event: Event) -> None:
        if (event.kind, event.fields.get("app")) == ("swept", application_id):
            ids.update(str(event.fields["ids"]).split())

    unsubscribe = subscribe(listen)
    yield ids
    unsubscribe()
