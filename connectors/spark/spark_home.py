"""A Spark home for local masters whose Python processes import the installed PySpark.

Spark puts `python/lib/pyspark.zip` of its home before everything else on the path of each Python
process that it starts. Nothing compiled is kept of a zip: each of them compiles the same forty
modules again, 0.45 s of CPU (measured), and the first batch of a query waits for six such
processes, one after the other. They run this interpreter, which has PySpark installed already.

So the JVM is started with another home: a folder of links to all that PySpark's own has, but for
that zip. A path that is not there is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark

from connectors.user_folders import cache_folder

_VARIABLE: Final = "SPARK_HOME"
_WITHOUT: Final = "python"


def installed_home() -> Path:
    """Return the folder that PySpark was installed to, a Spark home."""
    return Path(pyspark.__file__).parent


def linked_home() -> Path | None:
    """Make the folder of links unless it is there; None where that cannot be done."""
    installed = installed_home()
    if not (installed / "jars").is_dir():
        return None
    entries = sorted(one.name for one in installed.iterdir() if one.name != _WITHOUT)
    digest = hashlib.sha256("\n".join([str(installed), *entries]).encode()).hexdigest()[:12]
    home = cache_folder() / "spark-homes" / f"{pyspark.__version__}-{digest}"
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        # Published in one step; whoever comes second finds it there.
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            made = Path(scratch) / "home"
            made.mkdir()
            for name in entries:
                (made / name).symlink_to(installed / name)
            with contextlib.suppress(OSError):
                made.rename(home)
    except OSError:
        return None
    return home if home.is_dir() else None


@contextlib.contextmanager
def local_home() -> Iterator[None]:
    """A JVM that is started in this block has the folder of links, unless the user has a home."""
    home = None if os.environ.get(_VARIABLE) else linked_home()
    if home is None:
        yield
        return
    os.environ[_VARIABLE] = str(home)
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
