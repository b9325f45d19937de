"""A terminal: the commands of a page are typed as they stand, in a folder, beside a Kafka.

The Kafka is the one that `sparkonce kafka up` of the page starts, on a free port. What a page calls
`localhost:9092` is its address; nothing else of a command changes unless a test says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connectors.cluster.broker_settings import choose_addresses
from tests.journeys.conftest import PATIENCE_S, Process, started
from tests.pages import ROOT, replaced


class Terminal:
    """One folder, and `sparkonce` and `python` on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = choose_addresses(1, None)[0].port
        self.bootstrap = f"localhost:{self.port}"
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state-of-kafka-up"),
        }

    def here(self, text: str) -> str:
        """Put this Kafka's address in the place of the page's."""
        text = text.replace("sparkonce kafka up", f"sparkonce kafka up --port {self.port}")
        return text.replace("localhost:9092", self.bootstrap)

    def writes(self, name: str, block: str, changes: Mapping[str, str] | None = None) -> None:
        (self.folder / name).write_text(replaced(self.here(block), changes or {}), "utf-8")

    def types(
        self, command: str, *, ends_with: int = 0, answer: str = "", patience: float = PATIENCE_S
    ) -> str:
        """Type a command, wait for its end, and return all that it says."""
        done = subprocess.run(
            ["bash", "-c", self.here(command)],
            cwd=self.folder,
            env=os.environ | self._environment,
            input=answer,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == ends_with, f"{command}: exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def starts(
        self, command: str, **environment: str
    ) -> contextlib.AbstractContextManager[Process]:
        """Type a command that runs until it is stopped; it has the terminal to itself."""
        words = ("bash", "-c", f"exec {self.here(command)}")
        return started(*words, folder=self.folder, environment=self._environment | environment)

    def produces(self, topic: str, numbers: range) -> None:
        """Somebody writes into a topic: `k7` with the value `v7`, and so on."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in numbers:
            producer.produce(topic, f"v{number}", f"k{number}")
        assert producer.flush(30) == 0


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal; the Kafka that was started in it is gone afterwards."""
    made = Terminal(tmp_path)
    yield made
    made.types("sparkonce kafka down")
