"""The jar that saves a process per checkpoint file is a convenience: nothing fails without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from connectors.machine.pinned_jars import PinnedJar, read_pins
from connectors.spark.local_file_system import (
    CLASS_PATH_KEY,
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    PIN_FILE,
    local_file_system_conf,
)
from transactions.errors import BrokerUnavailableError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


class Told(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def no_way(pins: Sequence[PinnedJar], folder: Path) -> None:
    raise BrokerUnavailableError("1 jar(s) could not be downloaded", cause="no route to host")


def another_jar(pins: Sequence[PinnedJar], folder: Path) -> None:
    (folder / pins[0].file_name).write_bytes(b"something else")


def test_without_a_way_to_it_spark_goes_on_and_says_what_it_costs():
    told = Told()
    assert local_file_system_conf("/java", {}, resolver=no_way, tell=told) == {}
    assert "40 ms" in told[-1]
    assert "no route to host" in told[-1]
    assert IMPLEMENTATION_KEY in told[-1]


def test_a_wrong_jar_is_not_used():
    told = Told()
    assert local_file_system_conf("/java", {}, resolver=another_jar, tell=told) == {}
    assert "checksum" in told[-1]


def test_a_file_system_that_the_user_chose_is_left_alone():
    conf = {IMPLEMENTATION_KEY: "org.example.FileSystem"}
    assert local_file_system_conf("/java", conf, resolver=no_way) == {}


def test_a_class_path_that_the_user_gave_is_kept(monkeypatch):
    monkeypatch.setattr(
        "connectors.spark.local_file_system.ensure_jars", lambda *_, **__: (Path("/jars/a.jar"),)
    )
    conf = local_file_system_conf("/java", {CLASS_PATH_KEY: "/mine.jar"})
    assert conf == {IMPLEMENTATION_KEY: IMPLEMENTATION, CLASS_PATH_KEY: "/mine.jar:/jars/a.jar"}


def test_the_pin_is_whole():
    (pin,) = read_pins(PIN_FILE)
    assert len(pin.sha256) == 64
    assert IMPLEMENTATION.startswith(pin.organisation)
