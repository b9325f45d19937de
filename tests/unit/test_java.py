"""Which Java is taken, and what happens where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.machine.java import find_java_home, install_java, java_major
from transactions.errors import ConfigurationError


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sparkonce" / "java"


def find(told: list[str] | None = None, **environment: str) -> str | None:
    told = [] if told is None else told
    return find_java_home({"PATH": "", **environment}, tell=told.append, common=())


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25)]
)
def test_major_version(tmp_path: Path, version: str, major: int) -> None:
    assert java_major(make_java(tmp_path / "j", version)) == major


def test_a_java_that_does_not_run_and_names_no_version_is_none(tmp_path: Path) -> None:
    home = make_java(tmp_path / "j", "17")
    (home / "release").unlink()
    assert java_major(home) is None


def test_java_home_comes_first_then_path_then_the_cache(tmp_path: Path, cache: Path) -> None:
    named = str(make_java(tmp_path / "named", "21.0.1"))
    on_path = make_java(tmp_path / "path", "17.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(on_path / "bin" / "java")
    cached = str(make_java(cache / "java-17", "17.0.9"))
    links = str(tmp_path / "links")
    assert find(JAVA_HOME=named, PATH=links) == named
    assert find(PATH=links) == str(on_path)
    assert find() == cached


def test_an_old_java_home_is_passed_over_and_named(tmp_path: Path, cache: Path) -> None:
    told: list[str] = []
    old = str(make_java(tmp_path / "old", "11.0.2"))
    assert find(told, JAVA_HOME=old) is None
    assert old in told[0]


def test_install_says_so_and_leaves_one_folder(tmp_path: Path) -> None:
    told: list[str] = []

    def installer(version: str, *, path: str) -> str:
        return str(make_java(Path(path) / f"jdk-{version}+1", version))

    home = install_java(tmp_path, tell=told.append, installer=installer)
    assert java_major(Path(home)) == 17
    assert [path.name for path in tmp_path.iterdir()] == ["java-17"]
    assert str(tmp_path) in told[0]


def test_a_failed_install_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    def no_network(_version: str, *, path: str) -> str:
        (Path(path) / "half.tar.gz").write_bytes(b"half")
        raise OSError("network is unreachable")

    with pytest.raises(ConfigurationError, match="could not be installed") as raised:
        install_java(tmp_path, tell=lambda _text: None, installer=no_network)
    error = raised.value
    assert "network is unreachable" in error.cause
    assert all([error.what, error.where, error.cause, error.option])
    assert list(tmp_path.iterdir()) == []
