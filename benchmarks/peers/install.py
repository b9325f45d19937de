"""Where peers are installed: once per machine, in this user's cache, each in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.systems import PeerError
from connectors.machine.java import ensure_java_home
from connectors.machine.pinned_jars import IvyResolver, PinnedJar, ensure_jars, read_pins
from connectors.machine.user_folders import cache_folder

HERE = Path(__file__).parent


def place(name: str) -> Path:
    """Return the folder of a peer."""
    return cache_folder() / "peers" / name


def environment(name: str, *requirements: str) -> Path:
    """Return the Python of a peer's environment, which is made first.

    Raises:
        PeerError: with what pip said.
    """
    folder = place(name)
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        click.echo(f"bench: installing {' '.join(requirements)} into {folder}, once", err=True)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
        done.touch()
    return python


def pins(name: str) -> tuple[PinnedJar, ...]:
    """Return the jars of a peer, each with its version and checksum."""
    return read_pins(HERE / f"{name}.sha256")


def jars(name: str, version: str) -> tuple[Path, ...]:
    """Return the jars of a peer, which are fetched first.

    Raises:
        SparkOnceError: they cannot be had, or are not the ones that are pinned.
    """
    return ensure_jars(
        name,
        version,
        pins(name),
        cache=place(f"{name}-jars"),
        resolver=IvyResolver(ensure_java_home()),
        tell=lambda text: click.echo(f"bench: {text}", err=True),
    )


def compiled(name: str, version: str) -> list[Path]:
    """Return the class path of a peer's Java job, which is compiled first.

    Raises:
        PeerError: there is no Java compiler, or it found an error.
    """
    libraries = jars(name, version)
    source = next((HERE / name).glob("*.java"))
    folder = place(f"{name}-classes")
    made = folder / f"{source.stem}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        beside = Path(ensure_java_home()) / "bin" / "javac"
        compiler = str(beside) if beside.exists() else shutil.which("javac")
        if compiler is None:
            raise PeerError(f"{source.name} needs a Java compiler: install a JDK, or set JAVA_HOME")
        class_path = os.pathsep.join(map(str, libraries))
        _run(compiler, "-nowarn", "-cp", class_path, "-d", str(folder), str(source))
    return [folder, *libraries]


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        said = ended.stderr.strip()[-800:]
        raise PeerError(f"{' '.join(command[:4])} ended with {ended.returncode}: {said}")
