"""A wrong password is said at once, in words, without the password; nothing is tried for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.conftest import Stranger, stranger_on
from tests.locked_broker import JAAS, locked_broker, wants_password
from tests.tiers import long

LOGIN = """\
"kafka.security.protocol" = "SASL_PLAINTEXT"
"kafka.sasl.mechanism" = "PLAIN"
"kafka.sasl.jaas.config" = '''{jaas}'''
"""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Stranger]:
    """A stranger whose broker asks for a password."""
    made, (_, outside) = locked_broker(
        {"LOGIN": "SASL_PLAINTEXT"}, wants_password("login", stranger="right")
    )
    with made as cluster:
        yield stranger_on(outside, cluster.create_topic, tmp_path)


@long  # `integration/test_bad_input.py` has the refusal in `make test`
def test_it_is_said_once_and_the_command_ends(locked: Stranger):
    wrong = LOGIN.format(jaas=JAAS.format(user="stranger", password="not-the-right-one"))
    with locked.runs(locked.job(source=wrong, sink=wrong)) as pipeline:
        assert pipeline.ends() in (1, 2), pipeline.text
    said = pipeline.text
    assert said.count("AuthenticationError: ") == 1, said
    for part in ("where:", "cause:", "look at:", "sasl"):
        assert part in said.lower(), said
    assert "not-the-right-one" not in said
    assert "Traceback" not in said
    assert len(pipeline.lines) <= 15, said
