"""Where the class archive of the driver's JVM lies, and the settings that use it."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from connectors.machine.user_folders import cache_folder
from connectors.spark.spark_home import home_of_jvm

#: Spark puts these options before the user's own `spark.driver.extraJavaOptions`.
OPTIONS_KEY: Final = "spark.driver.defaultJavaOptions"
#: An archive that does not fit is not worth a line on the user's terminal.
QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_MONTH_S: Final = 30 * 86_400.0


def class_archive_conf(java_home: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings that use the archive; no settings if there is no archive.

    Args:
        java_home: the Java of the driver.
        conf: the user's settings; default Java options among them are kept.
    """
    archive = find_archive(java_home)
    if archive is None:
        return {}
    with contextlib.suppress(OSError):  # a cache that others maintain
        _mark(archive).touch()
    ours = f"{QUIET} {shlex.quote(f'-XX:SharedArchiveFile={archive}')}"
    return {OPTIONS_KEY: f"{ours} {conf[OPTIONS_KEY]}" if OPTIONS_KEY in conf else ours}


def find_archive(java_home: str) -> Path | None:
    """Return the archive of this Java and this installation of PySpark, if it exists and is whole.

    A truncated archive kills the JVM (SIGBUS, Java 17), so the file's name contains its size.
    """
    folder, stem = place_of_archive(java_home)
    whole = (one for one in folder.glob(f"{stem}-*.jsa") if one.stem == f"{stem}-{size_of(one)}")
    return next(whole, None)


def remove_unused(folder: Path, now_s: float) -> None:
    """Remove archives that no start has used for a month: each has 170 MB, and each place of an
    installation its own. A JVM that has mapped one keeps it.
    """
    for one in folder.glob("*.jsa"):
        mark = _mark(one)
        with contextlib.suppress(OSError):
            used_s = max(file.stat().st_mtime for file in (one, mark) if file.exists())
            if used_s < now_s - _MONTH_S:
                one.unlink()
                mark.unlink(missing_ok=True)


def _mark(archive: Path) -> Path:
    """Return the file whose time says when a start has used an archive. Not the archive's own time:
    in a container, which has it in its image, that would copy all of it.
    """
    return archive.with_suffix(".used")


def place_of_archive(java_home: str) -> tuple[Path, str]:
    """Return the folder of all archives, and the beginning of this archive's file name."""
    jars = home_of_jvm() / "jars"
    release = Path(java_home) / "release"
    belongs_to = (
        str(Path(java_home).resolve()),
        release.read_text("utf-8", "replace") if release.is_file() else "",
        str(jars),
        # The JVM refuses an archive of jars that have changed.
        str(max((one.stat().st_mtime_ns for one in jars.glob("spark-core_*.jar")), default=0)),
    )
    digest = hashlib.sha256("\n".join(belongs_to).encode()).hexdigest()[:12]
    return cache_folder() / "class-archives", f"spark-{pyspark.__version__}-{digest}"


def size_of(file: Path) -> int:
    """Return the size of a file; the file's name contains it."""
    return file.stat().st_size
