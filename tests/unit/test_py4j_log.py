"""py4j's debug log names what is called, and shows no argument, no answer and no key."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from py4j import protocol
from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import GatewayConnection

from connectors.spark.py4j_log import hide_arguments
from connectors.spark.streaming_driver import StreamingDriver

OPTION = "\n".join(
    [
        protocol.CALL_COMMAND_NAME.strip(),
        "o67",
        "option",
        protocol.get_command_part("kafka.sasl.jaas.config").strip(),
        protocol.get_command_part('password="hunter2"\nand more').strip(),
        "e",
        "",
    ]
)


class Socket:
    def sendall(self, _data: bytes) -> None:
        """Nobody listens."""


def connection(kind: type[Any], answer: bytes) -> Any:
    made = kind.__new__(kind)
    made.socket, made.stream = Socket(), io.BytesIO(answer)
    return made


@pytest.mark.parametrize("kind", [ClientServerConnection, GatewayConnection])
@pytest.mark.parametrize(
    ("command", "names"),
    [
        (OPTION, ["c o67 option"]),
        (
            protocol.CONSTRUCTOR_COMMAND_NAME + "org.apache.spark.SparkConf\nbTrue\ne\n",
            ["SparkConf"],
        ),
        (protocol.AUTH_COMMAND_NAME + "hunter2\n", ["A"]),
        (protocol.REFLECTION_COMMAND_NAME + "u\nhunter2\ne\n", ["r"]),
    ],
    ids=["call", "constructor", "key", "other"],
)
def test_names_are_shown_and_arguments_are_not(
    kind: type[Any], command: str, names: list[str], caplog: pytest.LogCaptureFixture
):
    hide_arguments()
    with caplog.at_level(logging.DEBUG):
        made = connection(kind, b"!yshunter2\n")
        made.send_command(command)
        sent, received = caplog.messages
    assert all(name in sent for name in names), sent
    assert received == "Answer received: !ys (10 characters)"
    assert "hunter2" not in caplog.text


def test_all_else_is_logged_as_before(caplog: pytest.LogCaptureFixture):
    hide_arguments()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("py4j.clientserver").info("%s is ready", "the server")
    assert caplog.messages == ["the server is ready"]


@pytest.mark.parametrize("whose", ["a driver", "a user"])
def test_a_batch_that_fails_is_told_by_its_driver_alone(
    whose: str, caplog: pytest.LogCaptureFixture
):
    hide_arguments()
    try:
        (StreamingDriver._run_batch if whose == "a driver" else fails)(None, None, 0)  # type: ignore[arg-type]
    except AttributeError:
        logging.getLogger("py4j.clientserver").exception("There was an exception")
    assert bool(caplog.messages) == (whose == "a user")


def fails(*_: object) -> None:
    raise AttributeError("of a user")
