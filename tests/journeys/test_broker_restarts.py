"""The only broker goes down in order, and comes back: the pipeline goes on by itself.

Unless the broker has hidden a commit in its last moment: then the error's own advice lets it go on.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from connectors.cluster.broker_settings import choose_addresses
from tests.journeys.conftest import MODES, SPARKONCE, Process, Stranger, stranger_on
from tests.tiers import long


def kafka(state: Path, *words: str) -> None:
    """Type ``sparkonce kafka ...`` in a home of this test's own."""
    done = subprocess.run(
        [SPARKONCE, "kafka", *words],
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@long
@MODES
def test_it_goes_on(tmp_path: Path, mode: str):
    (free,) = choose_addresses(1, None)
    address = f"127.0.0.1:{free.port}"
    data = ("--port", str(free.port), "--directory", str(tmp_path / "kafka"))

    def create_topic(name: str, partitions: int) -> None:
        kafka(tmp_path, "up", *data, "--topic", f"{name}:{partitions}")

    try:
        stranger = stranger_on(address, create_topic, tmp_path)
        restarted(stranger, tmp_path, data, mode)
    finally:
        kafka(tmp_path, "down")


def restarted(stranger: Stranger, state: Path, data: tuple[str, ...], mode: str) -> None:
    script = stranger.script(mode)
    with stranger.busy_topic(), stranger.follows_output() as reader:
        with stranger.runs(script) as pipeline:
            stranger.more_comes_out(reader, pipeline)
            kafka(state, "down")
            kafka(state, "up", *data)
            written = stranger.input_ends()
            went_on = stranger.comes_to_or_ends(written, reader, pipeline)
            if went_on:
                assert pipeline.sigterm() == 0, pipeline.text
        if not went_on:
            writes_the_markers(stranger, pipeline)
            with stranger.runs(script) as pipeline:
                stranger.comes_to(written, reader, pipeline)
                assert pipeline.sigterm() == 0, pipeline.text
    stranger.assert_each_record_came_once()


def writes_the_markers(stranger: Stranger, ended: Process) -> None:
    """Do what the error says. A broker that shuts down leads no partition for its last tenths of a
    second, and still answers as a coordinator. A commit of that moment gets no marker, which no
    client can know before (KAFKA-20734).
    """
    assert ended.ends() == 1, ended.text
    assert "look at: sparkonce transactions write-markers" in ended.text, ended.text
    (checkpoint,) = stranger.folder.glob("checkpoint*")
    place = ("--checkpoint", str(checkpoint), "--bootstrap", stranger.bootstrap)
    done = subprocess.run(
        [SPARKONCE, "transactions", "write-markers", *place, "--yes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Readers see the records now.\n"), done.stdout
