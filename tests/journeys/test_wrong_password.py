"""A wrong password is said at once, in words, without the password; nothing is tried for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.local_cluster import LocalCluster
from tests.journeys.conftest import Stranger, stranger_on

PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}"'
)
LOGIN = """\
"kafka.security.protocol" = "SASL_PLAINTEXT"
"kafka.sasl.mechanism" = "PLAIN"
"kafka.sasl.jaas.config" = '''{jaas};'''
"""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Stranger]:
    """A stranger whose broker asks for a password."""
    one, other = choose_addresses(2, None)
    inside, outside = f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"
    listeners = f"PLAINTEXT://{inside},LOGIN://{outside}"
    users = PLAIN.format(user="b", password="b") + ' user_stranger="right";'
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{one.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{one.controller_port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": users,
    }
    with LocalCluster(port=one.port, properties=properties) as cluster:
        yield stranger_on(outside, cluster.create_topic, tmp_path)


def test_it_is_said_once_and_the_command_ends(locked: Stranger):
    wrong = LOGIN.format(jaas=PLAIN.format(user="stranger", password="not-the-right-one"))
    with locked.runs(locked.job(source=wrong, sink=wrong)) as pipeline:
        assert pipeline.ends() in (1, 2), pipeline.text
    said = pipeline.text
    assert said.count("AuthenticationError: ") == 1, said
    for part in ("where:", "cause:", "look at:", "sasl"):
        assert part in said.lower(), said
    assert "not-the-right-one" not in said
    assert "Traceback" not in said
    assert len(pipeline.lines) <= 15, said
