"""A password is changed while a pipeline runs: the new one is in its file, the old one is refused.

The broker keeps SCRAM users, as clusters do: a password is changed without a restart of its broker.
What is logged in already stays, until its connection ends.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, stranger_on
from tests.locked_broker import locked_broker
from tests.tiers import long

pytestmark = [long, pytest.mark.timeout(600)]

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
LOGIN = f"""\
"kafka.security.protocol" = "SASL_PLAINTEXT"
"kafka.sasl.mechanism" = "SCRAM-SHA-512"
"kafka.sasl.jaas.config" = '''{SCRAM} username="stranger" password="${{file:password}}";'''
"""
EARLIEST = 'startingOffsets = "earliest"\n'
KEEPS_USERS = {
    "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.login.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
}


def set_password(bootstrap: str, password: str) -> None:
    """Do what ``kafka-configs.sh --alter --add-config SCRAM-SHA-512=...`` does."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("stranger", info, password.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)


@pytest.mark.parametrize("mode", [MICRO_BATCH, CONTINUOUS], ids=["micro-batch", "continuous"])
def test_the_pipeline_goes_on_with_the_new_one(tmp_path: Path, mode: str):
    old, new = (uuid.uuid4().hex for _ in range(2))
    made, (inside, outside) = locked_broker({"LOGIN": "SASL_PLAINTEXT"}, KEEPS_USERS)
    with made as cluster:
        set_password(inside, old)
        stranger = stranger_on(inside, cluster.create_topic, tmp_path)
        (stranger.folder / "password").write_text(f"{old}\n")
        job = stranger.job(mode, source=LOGIN + EARLIEST, sink=LOGIN)
        job.write_text(job.read_text().replace(inside, outside))
        with (
            stranger.busy_topic(),
            stranger.follows_output() as reader,
            stranger.runs(job) as pipeline,
        ):
            stranger.more_comes_out(reader, pipeline)
            (stranger.folder / "password").write_text(f"{new}\n")
            set_password(inside, new)
            cluster.kill_broker(0)  # each connection ends
            cluster.start_broker(0)
            stranger.more_comes_out(reader, pipeline)
            assert pipeline.sigterm() == 0, pipeline.text
        stranger.assert_each_record_came_once()
    assert "AuthenticationError" in pipeline.text
    assert old not in pipeline.text
    assert new not in pipeline.text
