"""A Spark home for local masters whose Python processes import the installed PySpark.

Spark puts `python/lib/pyspark.zip` of its home first on the path of each Python process that it
starts. Python keeps no compiled modules for a zip. So each process compiles the same forty modules
again, 0.45 s of CPU (measured), and the first batch of a query waits for six such processes, one
after the other. These processes run this interpreter, which already has PySpark installed.

So the JVM starts with another home: a folder of links to all entries of PySpark's own home, except
`python`. Python skips a path that does not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Final

import pyspark
from pyspark.find_spark_home import _find_spark_home

from connectors.machine.user_folders import cache_folder
from transactions.errors import ConfigurationError

_VARIABLE: Final = "SPARK_HOME"
_CORE: Final = re.compile(r"spark-core_[\d.]+-(?P<version>.+)\.jar")
_LEFT_OUT: Final = frozenset({"python", "__pycache__"})


def home_of_jvm() -> Path:
    """Return the home with which a JVM of a local master starts."""
    given = os.environ.get(_VARIABLE)
    return Path(given) if given else linked_home() or installed_home()


def installed_home() -> Path:
    """Return the folder in which PySpark is installed."""
    return Path(pyspark.__file__).parent


def check_home() -> None:
    """Check that a SPARK_HOME of the user's has the Spark that this PySpark belongs to.

    Raises:
        ConfigurationError: it has another one, or none. PySpark would start it, and fail at its
            first call with an error that names neither.
    """
    given = os.environ.get(_VARIABLE)
    if not given:
        return
    cores = [_CORE.fullmatch(one.name) for one in Path(given, "jars").glob("spark-core_*.jar")]
    found = [core["version"] for core in cores if core]
    if not found and Path(given, "bin", "spark-submit").exists():
        return  # built from source: its jars lie elsewhere
    if any(_line_of(version) == _line_of(pyspark.__version__) for version in found):
        return
    raise ConfigurationError(
        "SPARK_HOME names a Spark that this PySpark cannot start.",
        where=given,
        cause=f"it has Spark {found[0]}, and PySpark {pyspark.__version__} is installed in "
        f"{installed_home()}"
        if found
        else "there is no Spark",
        option=f"{_VARIABLE}={given}: unset it (PySpark has a Spark of its own), or install the "
        "PySpark of that version",
    )


def _line_of(version: str) -> list[str]:
    return version.split(".")[:2]


def linked_home() -> Path | None:
    """Make the folder of links unless it exists and is whole. Return None if that is impossible,
    or if PySpark itself would use another home than its own folder: that of SPARK_HOME, or of a
    Spark that was chosen at the installation.
    """
    installed = installed_home()
    try:
        if not Path(_find_spark_home()).samefile(installed):
            return None
        entries = sorted({one.name for one in installed.iterdir()} - _LEFT_OUT)
        digest = hashlib.sha256("\n".join([str(installed), *entries]).encode()).hexdigest()[:12]
        home = cache_folder() / "spark-homes" / f"{pyspark.__version__}-{digest}"
        if not _is_whole(home, entries):
            _make(home, installed, entries)
        return home if _is_whole(home, entries) else None
    except (OSError, SystemExit):  # PySpark exits if it finds no home at all
        return None


def _is_whole(home: Path, entries: list[str]) -> bool:
    return all((home / name).exists() for name in entries)


def _make(home: Path, installed: Path, entries: list[str]) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        made = Path(scratch) / "home"
        made.mkdir()
        for name in entries:
            (made / name).symlink_to(installed / name)
        # Somebody removed links from it. A home that another start published meanwhile stays.
        if home.exists() and not _is_whole(home, entries):
            home.rename(Path(scratch) / "broken")
        # One rename publishes it; a later start finds it there.
        with contextlib.suppress(OSError):
            made.rename(home)


def local_home() -> dict[str, str]:
    """Return what a JVM of a local master needs in its environment to start with the folder of
    links; nothing if the user has set a home, or if there is none.
    """
    home = None if os.environ.get(_VARIABLE) else linked_home()
    return {} if home is None else {_VARIABLE: str(home)}
