"""Fixtures of every tier with a real broker: one broker for all test processes, one Spark session
in each that needs one, and names that belong to one test only. tests/conftest.py registers them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.testing.topics import TopicFactory
from tests.conftest import BROKERS_THAT_RAN
from tests.integration.brokers import IMAGE, Broker, selected_kinds, shared_broker
from transactions.clock import Deadline

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient
    from pyspark.sql import SparkSession

#: What CI runs on the broker in a container too: what could differ there. These are the wire, the
#: sink and the reader, and one story of each mode. All that can run there has `shared_broker`.
IN_CONTAINER = {
    "test_coordinator_wire",
    "test_fake_conformance",
    "test_range_reader",
    "test_transactional_sink",
    "test_a_sigkill_at_each_step",
    "test_a_sigkill_at_each_step_of_continuous_mode",
}
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka_cluster" in metafunc.fixturenames:
        metafunc.parametrize("kafka_cluster", selected_kinds(), indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kafka_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared_broker)
            names = {item.path.stem, item.name.partition("[")[0]}
            if names & IN_CONTAINER and item.get_closest_marker("long") is None:
                item.add_marker(pytest.mark.in_container)


@pytest.fixture(scope="session")
def kafka_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Broker:
    """The shared broker: SPARKONCE_TEST_BROKER = embedded (default) | testcontainers | both."""
    kind: str = request.param
    broker = shared_broker(kind, tmp_path_factory, request.config)
    what = f"image {IMAGE}" if kind == "testcontainers" else "Apache Kafka, pinned jars"
    request.config.stash[BROKERS_THAT_RAN][kind] = f"{what}, {broker.bootstrap_servers}"
    return broker


@pytest.fixture(scope="session")
def sparkonce_broker(kafka_cluster: Broker) -> Broker:
    """The plugin's own fixtures run on the shared broker too, of each kind."""
    return kafka_cluster


@pytest.fixture
def bootstrap(kafka_cluster: Broker) -> str:
    """host:port of the shared broker."""
    return kafka_cluster.bootstrap_servers


@pytest.fixture
def topic(kafka_cluster: Broker) -> Callable[..., str]:
    """Make a topic with a name that no other test has: ``topic(partitions=1, name="t")``."""
    topics = TopicFactory(kafka_cluster)
    return lambda partitions=1, name="t", **config: str(topics(name, partitions, **config))


@pytest.fixture
def application_id(bootstrap: str) -> Iterator[str]:
    """An application id of this test; afterwards no transaction of it may be open (S11)."""
    unique = f"app-{uuid.uuid4().hex[:10]}"
    yield unique
    assert_no_open_transaction(bootstrap, unique)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A checkpoint folder of this test."""
    return str(tmp_path / "checkpoint")


def assert_no_open_transaction(bootstrap_servers: str, application: str) -> None:
    """Ask every coordinator: markers of a commit may still be on their way, so ask until done."""
    from kafka.admin import KafkaAdminClient

    deadline = Deadline(30.0)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        while still_open := _open_transactions(admin, application):
            assert not deadline.expired(), f"left open: {still_open}"
            deadline.pause(0.1)
    finally:
        admin.close()


def _open_transactions(admin: KafkaAdminClient, application: str) -> list[str]:
    answers = admin.list_transactions(state_filters=list(OPEN_STATES))
    return [
        f"{found.transactional_id} {found.state}"
        for listing in answers.values()
        for found in listing
        if found.transactional_id.startswith(f"{application}.")
    ]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session in this process, for tests that kill nothing."""
    from connectors.spark import build_session

    session = build_session("tests", master="local[2]")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
