"""The pytest plugin: a broker, topics, and a pipeline that is killed and audited.

pytest imports this file in every run of every project that has sparkonce installed. So it imports
nothing but pytest, and does nothing until a fixture is used. See docs/testing.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from connectors.testing.brokers import Broker
    from connectors.testing.jobs import Job
    from connectors.testing.pipeline import Pipeline
    from connectors.testing.topics import TopicFactory

_BROKER_HELP = "embedded (default), testcontainers, or host:port of one that runs already"
_BROKERS_HELP = "how many nodes a broker that is started has: 1 (default) or 3"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; the command line wins over the ini file."""
    group = parser.getgroup("sparkonce", "sparkonce: exactly-once tests of pipelines")
    group.addoption("--sparkonce-broker", metavar="KIND", help=_BROKER_HELP)
    group.addoption("--sparkonce-brokers", metavar="N", help=_BROKERS_HELP)
    parser.addini("sparkonce_broker", _BROKER_HELP, default="embedded")
    parser.addini("sparkonce_brokers", _BROKERS_HELP, default="1")
    parser.addini(
        "sparkonce_delete_topics",
        "delete a test's topics after it, for a broker that outlives the tests",
        type="bool",
        default=False,
    )


@pytest.fixture(scope="session")
def sparkonce_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A real Kafka for the session: `.bootstrap_servers`, `.create_topic(name, partitions)`."""
    from connectors.testing.brokers import running_broker

    kind = pytestconfig.getoption("sparkonce_broker") or pytestconfig.getini("sparkonce_broker")
    count = pytestconfig.getoption("sparkonce_brokers") or pytestconfig.getini("sparkonce_brokers")
    if count not in {"1", "3"}:
        raise pytest.UsageError(f"sparkonce_brokers={count}: 1 or 3")
    with running_broker(kind, brokers=int(count)) as broker:
        yield broker


@pytest.fixture
def sparkonce_topic(
    sparkonce_broker: Broker, pytestconfig: pytest.Config
) -> Iterator[TopicFactory]:
    """Makes topics for this test only: ``sparkonce_topic("flights", partitions=2)``."""
    from connectors.testing.topics import TopicFactory

    topics = TopicFactory(sparkonce_broker)
    yield topics
    if pytestconfig.getini("sparkonce_delete_topics"):
        topics.delete_all()


@pytest.fixture
def sparkonce_pipeline(
    sparkonce_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Pipeline]:
    """Makes pipelines: ``sparkonce_pipeline(job, name=value)``; see `connectors.testing.pipeline`.

    `job` is ``module:function``, a function, a path that ends in .toml, or the words of a command.
    Names and values are a function's arguments, or environment variables for the other kinds.
    """

    def make(
        job: Job,
        *,
        trigger: str = "available-now",
        master: str = "",
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Pipeline:
        from connectors.testing.jobs import describe
        from connectors.testing.pipeline import Pipeline

        folder: Path = tmp_path_factory.mktemp("sparkonce")
        return Pipeline(
            describe(job),
            bootstrap_servers=sparkonce_broker.bootstrap_servers,
            folder=folder,
            app_id=f"test-{uuid.uuid4().hex[:10]}",
            arguments=arguments,
            trigger=trigger,
            master=master,
            environment=environment,
        )

    return make
