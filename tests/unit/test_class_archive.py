"""The archive that shortens Spark's start is a convenience: nothing depends on it."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from connectors.machine import spare_room
from connectors.spark import class_archive
from connectors.spark.archived_classes import (
    OPTIONS_KEY,
    class_archive_conf,
    find_archive,
    place_of_archive,
)
from connectors.spark.class_archive import ensure_class_archive, made_meanwhile
from tests.waiting import until
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


LEARNS = "open(sys.argv[1], 'wb').write(b'classes')"
#: It says that it has begun, and then learns for a minute.
TAKES_LONG = "open(sys.argv[1] + '.pid', 'w').write(str(os.getpid())); time.sleep(60)"


def learning(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program, a real process, learn in place of a Spark that takes a minute."""
    command = (sys.executable, "-c", f"import os, sys, time; {program}")
    monkeypatch.setattr(class_archive, "_LEARN", command)


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
    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/java")
    learning(monkeypatch, "sys.stderr.write('first line\\nno space left\\n'); sys.exit(1)")
    with pytest.raises(ConfigurationError) as refused:
        ensure_class_archive(tell=lambda _text: None)
    for part in ("where:", "cause:", "look at:", "no space left"):
        assert part in str(refused.value)
    left = (cache / "sparkonce" / "class-archives").iterdir()
    assert [one.name for one in left] == [".making"]


def test_one_that_is_there_is_not_made_again(monkeypatch):
    archive = made("/java")
    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/java")
    monkeypatch.setattr(class_archive, "_LEARN", None)
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

    of_a_killed_process = made("/new").parent / "tmpabc"
    (of_a_killed_process / "spark").mkdir(parents=True)
    made("/new").unlink()
    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/new")
    learning(monkeypatch, LEARNS)
    archive = ensure_class_archive(tell=lambda _text: None)
    lock = archive.with_name(".making")
    assert {*archive.parent.iterdir()} == {in_use, marks[1], of_another_user, archive, lock}


@pytest.fixture
def own_java(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, "sparkonce.class_archive")
    monkeypatch.setattr(class_archive, "ensure_java_home", lambda: "/java")
    folder, _ = place_of_archive("/java")
    return folder


def pids_in(folder: Path) -> list[int]:
    texts = [one.read_text() for one in folder.glob("*/*.pid")]
    return [int(text) for text in texts if text]


def test_a_job_makes_it_beside_its_work(own_java, monkeypatch, caplog):
    learning(monkeypatch, LEARNS)
    with made_meanwhile(after_s=0.0):
        until(lambda: find_archive("/java") is not None)
    assert "made in" in caplog.text


def test_a_job_that_ends_meanwhile_leaves_neither_a_process_nor_half_an_archive(
    own_java, monkeypatch, caplog
):
    learning(monkeypatch, TAKES_LONG)
    with made_meanwhile(after_s=0.0):
        until(lambda: pids_in(own_java))
        (pid,) = pids_in(own_java)
    assert not psutil.pid_exists(pid)
    assert [one.name for one in own_java.iterdir()] == [".making"]
    assert "no class archive" not in caplog.text, "it is no failure"


def test_a_job_that_ends_soon_begins_nothing(own_java, monkeypatch):
    learning(monkeypatch, LEARNS)
    with made_meanwhile():
        pass
    assert not own_java.exists()


def test_one_job_at_a_time_makes_it(own_java, monkeypatch, caplog):
    learning(monkeypatch, LEARNS)
    own_java.mkdir(parents=True)
    with (own_java / ".making").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        class_archive._make_beside(threading.Event(), 0.0)
    assert find_archive("/java") is None
    assert not caplog.text


def test_a_machine_without_room_makes_none(own_java, monkeypatch, caplog):
    learning(monkeypatch, LEARNS)
    monkeypatch.setattr(spare_room, "_MEMORY", 1 << 60)
    class_archive._make_beside(threading.Event(), 0.0)
    assert find_archive("/java") is None
    assert "of memory are free" in caplog.text


def test_a_failure_is_a_line_in_the_log_of_the_job(own_java, monkeypatch, caplog):
    learning(monkeypatch, "sys.exit('no space left')")
    class_archive._make_beside(threading.Event(), 0.0)
    class_archive._make_beside(threading.Event(), 0.0)  # it is not tried again at once
    told = [line for line in caplog.messages if not line.startswith("making")]
    assert told == ["no class archive of Spark was made: no space left"]


def test_a_day_after_a_failure_a_job_tries_again(own_java, monkeypatch):
    learning(monkeypatch, "sys.exit('no space left')")
    class_archive._make_beside(threading.Event(), 0.0)
    (failed,) = own_java.glob("*.failed")
    yesterday = SYSTEM_CLOCK.now_ms() / 1000 - 86_401
    os.utime(failed, (yesterday, yesterday))
    learning(monkeypatch, LEARNS)
    class_archive._make_beside(threading.Event(), 0.0)
    assert find_archive("/java") is not None
    assert not failed.exists()


def test_what_learns_beside_a_job_is_told_that_nobody_waits(own_java, monkeypatch):
    learning(monkeypatch, "open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))")
    class_archive._make_beside(threading.Event(), 0.0)
    (archive,) = own_java.glob("*.jsa")
    assert archive.read_text() == "--idle"


#: What the process of the product does before it starts Spark.
IDLE = """
import os
from pathlib import Path
from connectors.spark import class_archive
class_archive.learn = lambda _: print(os.nice(0), Path("/proc/self/oom_score_adj").read_text())
class_archive.main(["--learn", "x", "--idle"])
"""


def test_it_has_the_lowest_priority_and_goes_first_when_memory_ends():
    root = Path(class_archive.__file__).parents[2]
    command = [sys.executable, "-c", IDLE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # it ends with its input
    with subprocess.Popen(command, text=True, cwd=root, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == ["19", "1000"]
