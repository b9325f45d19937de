"""Hadoop's local file system without its forks, for a driver that checkpoints on a local disk.

PySpark does not ship Hadoop's native library. Without it, Hadoop starts a `chmod` process for every
file: four in each micro-batch, 40 ms. GlobalMentor's Bare Naked Local FileSystem is the same file
system, but uses `java.nio` instead: one jar of 9 kB without dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from connectors.machine.notices import Say, say
from connectors.machine.pinned_jars import IvyResolver, Resolver, ensure_jars, read_pins
from connectors.machine.user_folders import cache_folder
from transactions.errors import SparkOnceError

PIN_FILE = Path(__file__).with_name("local_file_system.sha256")
IMPLEMENTATION = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
IMPLEMENTATION_KEY = "spark.hadoop.fs.file.impl"
CLASS_PATH_KEY = "spark.driver.extraClassPath"
# A machine that cannot reach Maven Central must not wait long for an optional part.
_PATIENCE_S = 30.0


def local_file_system_conf(
    java_home: str,
    conf: Mapping[str, str],
    *,
    resolver: Resolver | None = None,
    tell: Say = say,
) -> dict[str, str]:
    """Return the Spark settings for it; none if the user chose one, or if it is not available.

    Args:
        java_home: runs the download, once per machine.
        conf: the user's settings; a class path in them is kept.
        resolver: replaced in tests.
        tell: receives the notice of a download, and of a failed one.
    """
    if IMPLEMENTATION_KEY in conf:
        return {}
    pins = read_pins(PIN_FILE)
    resolver = IvyResolver(java_home, patience_s=_PATIENCE_S) if resolver is None else resolver
    try:
        jars = ensure_jars(
            "a local file system without forks",
            pins[0].version,
            pins,
            cache=cache_folder() / "local-file-system",
            resolver=resolver,
            tell=tell,
        )
    except SparkOnceError as error:
        tell(
            "Hadoop's own local file system is used; each checkpoint takes about 40 ms longer "
            f"({error.what}: {error.cause}); set {IMPLEMENTATION_KEY} to choose one"
        )
        return {}
    class_path = [conf[CLASS_PATH_KEY]] if CLASS_PATH_KEY in conf else []
    return {
        IMPLEMENTATION_KEY: IMPLEMENTATION,
        CLASS_PATH_KEY: ":".join([*class_path, *map(str, jars)]),
    }
