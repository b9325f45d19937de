"""Finds the Java for Spark and the embedded broker, and installs one if there is none."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from connectors.machine.notices import Say, say
from connectors.machine.user_folders import cache_folder
from transactions.errors import ConfigurationError

OLDEST_JAVA = 17
INSTALLED_JAVA = "17"

_COMMON_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_HOME_FOLDERS = (".jdk/*", ".jre/*", ".sdkman/candidates/java/*")


def ensure_java_home(*, tell: Say = say) -> str:
    """Return a JAVA_HOME of Java 17 or newer; install one into the user's cache if needed.

    Raises:
        ConfigurationError: there is none and the installation failed.
    """
    found = find_java_home(tell=tell)
    if found is not None:
        return found
    folder = cache_folder() / "java"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_java_home(tell=_silent) or install_java(folder, tell=tell)


def find_java_home(
    environment: Mapping[str, str] | None = None,
    *,
    tell: Say = say,
    common: tuple[str, ...] = _COMMON_FOLDERS,
) -> str | None:
    """Return the first JAVA_HOME of Java 17 or newer, or None.

    Order: the variable JAVA_HOME, `java` on PATH, the user's cache, the common folders. It skips
    a JAVA_HOME that is too old, with a notice, since Spark would use it.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("JAVA_HOME")
    if named:
        if _is_new_enough(Path(named)):
            return named
        tell(f"JAVA_HOME={named} is not Java {OLDEST_JAVA} or newer: looking for another")
    for home in _candidates(environment, common):
        if _is_new_enough(home):
            return str(home)
    return None


def java_major(home: Path) -> int | None:
    """Return the major version of the Java in `home`, or None if it does not work."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    release = home / "release"
    if release.is_file():
        match = re.search(
            r'^JAVA_VERSION="([^"]+)"', release.read_text("utf-8", "replace"), re.MULTILINE
        )
        if match:
            return _major(match.group(1))
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return _major(match.group(1)) if match and answer.returncode == 0 else None


def install_java(
    folder: Path, *, tell: Say = say, installer: Callable[..., str] | None = None
) -> str:
    """Install Java into `folder` with the install-jdk package and return its JAVA_HOME.

    It is unpacked beside its place and renamed, so an interrupted download leaves nothing.
    """
    if installer is None:
        import jdk  # noqa: PLC0415  # it reads the platform at import: only when needed

        installer = jdk.install
    target = folder / f"java-{INSTALLED_JAVA}"
    unpacking = folder / f".unpacking-{os.getpid()}"
    tell(f"no Java {OLDEST_JAVA}+ found: installing Java {INSTALLED_JAVA} into {target}")
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir(parents=True)
    try:
        unpacked = Path(installer(INSTALLED_JAVA, path=str(unpacking)))
        home = next((h for h in _homes_of(unpacked) if _is_new_enough(h)), None)
        if home is None:
            raise LookupError("the downloaded Java does not run on this machine")  # noqa: TRY301
        shutil.rmtree(target, ignore_errors=True)
        home.rename(target)
    except Exception as error:
        raise ConfigurationError(
            f"Java {OLDEST_JAVA} or newer was not found and could not be installed",
            where=str(folder),
            cause=f"{type(error).__name__}: {error}",
            option="JAVA_HOME=(not set): install Java 17 and point it there",
        ) from error
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
    return str(target)


def _candidates(environment: Mapping[str, str], common: tuple[str, ...]) -> Iterator[Path]:
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    java_cache = cache_folder() / "java"
    if java_cache.is_dir():
        yield from sorted(java_cache.glob("java-*"))
    for pattern in common:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    user = environment.get("HOME")
    if user:
        for pattern in _HOME_FOLDERS:
            for found in sorted(Path(user).glob(pattern)):
                yield from _homes_of(found)


def _homes_of(unpacked: Path) -> tuple[Path, ...]:
    return (unpacked, unpacked / "Contents" / "Home")


def _is_new_enough(home: Path) -> bool:
    major = java_major(home)
    return major is not None and major >= OLDEST_JAVA


def _major(version: str) -> int | None:
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else None


def _silent(_text: str) -> None:
    """Print nothing: the first search has printed it already."""
