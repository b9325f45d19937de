"""Jars fetched once by the Ivy that ships inside PySpark, each pinned by version and SHA-256.

Jars are downloaded into a folder of their own, checked, and moved into the cache by one rename:
a cache folder that exists is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from connectors.machine.notices import Say, progress, progress_done
from transactions.errors import BrokerUnavailableError, ConfigurationError

# An organisation's mirror or proxy is configured as for any Ivy, with its settings file.
SETTINGS_VARIABLE = "SPARKONCE_IVY_SETTINGS"

_MARKER = "complete"


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedJar:
    """One jar of the pin file.

    Attributes:
        classifier: of the jar among the module's jars; empty for the jar that has none.
    """

    sha256: str
    organisation: str
    module: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Return the jar's file name in the cache."""
        return "-".join(filter(None, (self.module, self.version, self.classifier))) + ".jar"


# Puts all jars into the folder; replaced in tests.
Resolver = Callable[[Sequence[PinnedJar], Path], None]


def read_pins(path: Path) -> tuple[PinnedJar, ...]:
    """Read the pin file: lines of ``<sha256>  <organisation>:<module>:<version>``, and perhaps a
    ``:<classifier>``.
    """
    pins = []
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            sha256, _, coordinate = line.partition("  ")
            organisation, module, version, *classifier = coordinate.split(":")
            pins.append(
                PinnedJar(
                    sha256=sha256,
                    organisation=organisation,
                    module=module,
                    version=version,
                    classifier=classifier[0] if classifier else "",
                )
            )
    return tuple(pins)


def ensure_jars(
    name: str,
    version: str,
    pins: Sequence[PinnedJar],
    *,
    cache: Path,
    resolver: Resolver,
    tell: Say,
) -> tuple[Path, ...]:
    """Return the paths of all jars in a stable order; download them if they are not cached.

    Two processes never download at once (file lock). If all jars are there, this costs
    milliseconds: it compares names and sizes with the marker, which follows matching checksums.

    Args:
        name: a name for the jars, for messages.
        version: their version, the first part of the folder's name.
        pins: the jars.
        cache: the folder of this set of jars.
        resolver: downloads them.
        tell: receives a notice before a download begins.

    Raises:
        BrokerUnavailableError: the download failed; a retry is safe.
        ConfigurationError: a jar differs from the pinned one.
    """
    folder = cache / f"{version}-{_digest_of(pins)}"
    try:
        if not _is_whole(folder):
            cache.mkdir(parents=True, exist_ok=True)
            with (cache / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_whole(folder):
                    tell(f"fetching {name} {version}, {len(pins)} jar(s), once")
                    _download(folder, name, pins, resolver)
    except OSError as error:
        raise BrokerUnavailableError(
            f"the jars of {name} could not be stored",
            where=str(folder),
            cause=f"{type(error).__name__}: {error}",
            option="XDG_CACHE_HOME=" + os.environ.get("XDG_CACHE_HOME", "(not set)"),
        ) from error
    return tuple(folder / pin.file_name for pin in pins)


def _download(folder: Path, name: str, pins: Sequence[PinnedJar], resolver: Resolver) -> None:
    # The lock excludes other downloads: such folders are left over from a killed process.
    for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        resolver(pins, unfinished)
        sizes = _verify(unfinished, name, pins)
        (unfinished / _MARKER).write_text(sizes, "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _verify(folder: Path, name: str, pins: Sequence[PinnedJar]) -> str:
    sizes = []
    for pin in pins:
        jar = folder / pin.file_name
        if not jar.is_file():
            raise BrokerUnavailableError(
                f"the download of {name} is incomplete: {pin.file_name} is missing",
                where=f"{pin.organisation}:{pin.module}:{pin.version}",
                cause="the connection broke, or the repository does not have this jar",
                option=f"{SETTINGS_VARIABLE}={os.environ.get(SETTINGS_VARIABLE, '(not set)')}",
            )
        with jar.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != pin.sha256:
            raise ConfigurationError(
                f"the checksum of {pin.file_name} is wrong; nothing was kept",
                where=f"expected {pin.sha256}, downloaded {found}",
                cause="the download was cut short, or a mirror serves another file",
                option=f"{SETTINGS_VARIABLE}={os.environ.get(SETTINGS_VARIABLE, '(not set)')}",
            )
        sizes.append(f"{jar.stat().st_size} {pin.file_name}\n")
    return "".join(sizes)


def _is_whole(folder: Path) -> bool:
    try:
        lines = (folder / _MARKER).read_text("utf-8").splitlines()
        return all(
            (folder / name).stat().st_size == int(size)
            for size, _, name in (line.partition(" ") for line in lines)
        )
    except (OSError, ValueError):
        return False


def _digest_of(pins: Sequence[PinnedJar]) -> str:
    text = "\n".join(f"{p.sha256} {p.file_name}" for p in pins)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class IvyResolver:
    """Downloads exactly the pinned versions, without dependencies, with PySpark's own Ivy."""

    def __init__(self, java_home: str, *, patience_s: float = 900.0) -> None:
        self._java = Path(java_home) / "bin" / "java"
        self._patience_s = patience_s

    def __call__(self, pins: Sequence[PinnedJar], folder: Path) -> None:
        """Put every pinned jar into `folder`, and leave nothing else there."""
        work = folder / "ivy"
        work.mkdir()
        module = work / "ivy.xml"
        module.write_text(_ivy_module(pins), "utf-8")
        command = [str(self._java), "-jar", str(_ivy_jar()), "-cache", str(work / "cache")]
        command += ["-ivy", str(module), "-retrieve"]
        command += [str(folder / "[artifact]-[revision](-[classifier]).[ext]")]
        settings = os.environ.get(SETTINGS_VARIABLE)
        command += ["-settings", settings] if settings else []
        output: str | None
        try:
            output = self._run(command, len(pins))
        except OSError as error:
            output = str(error)
        if output is not None:
            raise BrokerUnavailableError(
                f"{len(pins)} jar(s) could not be downloaded",
                where="Maven Central, through the Ivy of PySpark",
                cause=output or "Ivy stopped without saying why",
                option=f"{SETTINGS_VARIABLE}={settings or '(not set)'}",
            )
        shutil.rmtree(work)

    def _run(self, command: list[str], total: int) -> str | None:
        """Run Ivy and show progress; return its error text if it failed, else None."""
        tail: list[str] = []
        done = 0
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as ivy:
            watchdog = _kill_after(ivy, self._patience_s)
            try:
                assert ivy.stdout is not None
                for line in ivy.stdout:
                    if "[SUCCESSFUL ]" in line:
                        done += 1
                        progress(f"fetching: {done}/{total} jars")
                    if re.search(r"WARN|ERROR|FAILED|not found|rror:", line):
                        tail.append(line.strip())
                code = ivy.wait()
            except BaseException:
                ivy.kill()
                raise
            finally:
                watchdog.cancel()
                progress_done()
        unresolved = any("UNRESOLVED" in line or "FAILED" in line for line in tail)
        return " / ".join(tail[-6:]) if code != 0 or unresolved else None


def _kill_after(process: subprocess.Popen[str], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def _ivy_module(pins: Sequence[PinnedJar]) -> str:
    dependencies = "\n".join(
        f'    <dependency org="{p.organisation}" name="{p.module}" rev="{p.version}"'
        f' conf="default->default" transitive="false">{_artifact(p)}</dependency>'
        for p in pins
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="sparkonce" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</ivy-module>\n"
    )


def _artifact(pin: PinnedJar) -> str:
    if not pin.classifier:
        return ""
    return f'<artifact name="{pin.module}" type="jar" m:classifier="{pin.classifier}"/>'


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    roots = spec.submodule_search_locations if spec is not None else None
    for root in roots or ():
        jars = sorted(Path(root, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    raise ConfigurationError(
        "PySpark, or the Ivy jar inside it, was not found",
        where=", ".join(roots or ()) or "the Python path",
        cause="a PySpark that was not installed from PyPI can come without its jars",
        option="pyspark=(4.3 from PyPI is needed)",
    )
