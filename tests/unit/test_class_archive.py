"""The archive that shortens Spark's start is a convenience: nothing depends on it."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from connectors.spark import class_archive
from connectors.spark.archived_classes import (
    OPTIONS_KEY,
    class_archive_conf,
    find_archive,
    place_of_archive,
)
from connectors.spark.class_archive import ensure_class_archive
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def made(java_home: str, content: bytes = b"classes", size: int = 7) -> Path:
    folder, stem = place_of_archive(java_home)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{stem}-{size}.jsa"
    archive.write_bytes(content)
    return archive


def test_without_one_nothing_is_set():
    assert class_archive_conf("/java", {}) == {}


def test_it_stands_before_what_the_user_set():
    archive = made("/java")
    options = class_archive_conf("/java", {OPTIONS_KEY: "-Dmine=1"})[OPTIONS_KEY]
    assert options.endswith(f"-XX:SharedArchiveFile={archive} -Dmine=1")
    assert "-Xshare:auto" in options  # one that does not fit is no error
    assert class_archive_conf("/java", {}) == {OPTIONS_KEY: options.removesuffix(" -Dmine=1")}


def test_a_cache_with_a_blank_in_its_path_is_one_option(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    archive = made("/java")
    options = shlex.split(class_archive_conf("/java", {})[OPTIONS_KEY])
    assert options[-1] == f"-XX:SharedArchiveFile={archive}"


def test_one_that_was_cut_off_is_not_used():
    made("/java", b"class")
    assert find_archive("/java") is None
    assert class_archive_conf("/java", {}) == {}


def test_another_java_has_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    archive = made(one)
    assert find_archive(one) == archive
    assert find_archive(two) is None
    (tmp_path / "one" / "release").write_text('JAVA_VERSION="21"')
    assert find_archive(one) is None


def test_one_that_cannot_be_made_is_an_error_with_its_cause_and_leaves_nothing(cache, monkeypatch):
    def fails(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "first line\nno space left on device\n")

    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/java")
    monkeypatch.setattr(class_archive.subprocess, "run", fails)
    with pytest.raises(ConfigurationError) as refused:
        ensure_class_archive(tell=lambda _text: None)
    for part in ("where:", "cause:", "look at:", "no space left"):
        assert part in str(refused.value)
    assert list((cache / "sparkonce" / "class-archives").iterdir()) == []


def test_one_that_is_there_is_not_made_again(monkeypatch):
    archive = made("/java")
    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/java")
    monkeypatch.setattr(class_archive.subprocess, "run", None)
    assert ensure_class_archive() == archive


def test_a_new_one_takes_the_place_of_those_that_nobody_uses(cache, monkeypatch):
    forgotten, in_use, of_another_user = made("/old"), made("/older"), made("/new", size=6)
    month_ago = SYSTEM_CLOCK.now_ms() / 1000 - 31 * 86_400
    for java in ("/old", "/older"):
        class_archive_conf(java, {})  # a start
    marks = [one.with_suffix(".used") for one in (forgotten, in_use)]
    for one in (forgotten, in_use, *marks):
        os.utime(one, (month_ago, month_ago))
    class_archive_conf("/older", {})
    assert in_use.stat().st_mtime < month_ago + 1, "in a container, all of it was copied"

    def learns(command, **_):
        Path(command[-1]).write_bytes(b"classes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/new")
    monkeypatch.setattr(class_archive.subprocess, "run", learns)
    archive = ensure_class_archive(tell=lambda _text: None)
    assert {*archive.parent.iterdir()} == {in_use, marks[1], of_another_user, archive}
