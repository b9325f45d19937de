"""The systems beside which we are measured, each doing the same job with its own means.

All read (key, value), replace the value's last byte by T, and write (key, value); settings that are
not named here are each product's defaults. `Spark` is at least once, the others are exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.install import HERE, compiled, environment, jars, pins, place
from benchmarks.systems import python_job
from connectors.bench.system import System, Task
from connectors.machine.java import ensure_java_home

SPARK_VERSION = "4.2.0"  # the newest whose Kafka connector is on Maven Central
STREAMS_VERSION = "4.3.1"
FLINK_VERSION = "2.3.0"
QUIX_VERSION = "3.28.1"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
#: Flink's own scripts open these; it serializes with reflection.
_FLINK_OPENS = tuple(
    f"--add-opens=java.base/java.{package}=ALL-UNNAMED"
    for package in ("lang", "lang.invoke", "util", "util.concurrent", "net", "nio", "time")
)


def _spark(task: Task) -> list[str]:
    python = environment(f"spark-{SPARK_VERSION}", f"pyspark=={SPARK_VERSION}")
    connector = ",".join(map(str, jars("spark", SPARK_VERSION)))
    conf = {
        "spark.jars": connector,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    return python_job(HERE / "spark_kafka_job.py", python)(
        {**task, "format": "kafka", "conf": {**task["conf"], **conf}}
    )


def _java(task: Task, class_path: Sequence[Path], main: str, options: Sequence[str]) -> list[str]:
    keys = ("bootstrap", "input", "output", "id", "interval_ms", "folder")
    return [
        f"{ensure_java_home()}/bin/java",
        *options,
        _QUIET,
        "-cp",
        os.pathsep.join(map(str, class_path)),
        main,
        *(str(task[key]) for key in keys),
    ]


def _streams(task: Task) -> list[str]:
    return _java(task, compiled("streams", STREAMS_VERSION), "StreamsJob", ["-Xmx1g"])


def _flink(task: Task) -> list[str]:
    options = ["-Xmx2g", *_FLINK_OPENS]
    return _java(task, compiled("flink", FLINK_VERSION), "FlinkJob", options)


def _loop(task: Task) -> list[str]:
    return python_job(HERE / "hand_written_loop.py")(task)


def _quix(task: Task) -> list[str]:
    python = environment(f"quix-{QUIX_VERSION}", f"quixstreams=={QUIX_VERSION}")
    return python_job(HERE / "quix_job.py", python)(task)


def _versions(name: str, *modules: str) -> dict[str, str]:
    found = {pin.module.removesuffix("_2.13"): pin.version for pin in pins(name)}
    return {module: found[module] for module in modules}


_INSTALLED = {
    "spark": lambda: (place(f"spark-{SPARK_VERSION}") / ".installed").exists(),
    "streams": lambda: place("streams-classes").exists(),
    "flink": lambda: place("flink-classes").exists(),
    "loop": lambda: False,  # needs nothing, and nobody asked for it: by its name only
    "quix": lambda: (place(f"quix-{QUIX_VERSION}") / ".installed").exists(),
}

PEERS: Mapping[str, System] = {
    "spark": System(
        name="spark kafka (at least once)",
        command=_spark,
        versions={
            "pyspark": SPARK_VERSION,
            **_versions("spark", "spark-sql-kafka-0-10", "kafka-clients"),
        },
    ),
    **{
        f"streams-{ms}": System(
            name=f"kafka streams, {ms} ms",
            command=_streams,
            settings={"interval_ms": ms},
            versions=_versions("streams", "kafka-streams", "kafka-clients"),
        )
        for ms in (10, 100, 1000)
    },
    **{
        f"flink-{ms}": System(
            name=f"flink, {ms} ms",
            command=_flink,
            settings={"interval_ms": ms},
            versions=_versions("flink", "flink-clients", "flink-connector-kafka", "kafka-clients"),
        )
        for ms in (100, 1000)
    },
    **{
        f"loop-{ms}": System(
            name=f"hand-written loop, {ms} ms",
            command=_loop,
            settings={"interval_ms": ms, "tuned": True},
            versions={},
        )
        for ms in (100, 1000)
    },
    **{
        f"quix-{ms}": System(
            name=f"quix streams, {ms} ms",
            command=_quix,
            settings={"interval_ms": ms},
            versions={"quixstreams": QUIX_VERSION},
        )
        for ms in (100, 1000)
    },
}


def chosen(words: str) -> list[System]:
    """Return the peers of a list: names, first parts of names, `all` or `installed`.

    Raises:
        KeyError: a word is none of these.
    """
    found: dict[str, System] = {}
    for word in filter(None, words.split(",")):
        names = [name for name in PEERS if _means(word, name)]
        if not names and word != "installed":
            raise KeyError(word)
        found |= {name: PEERS[name] for name in names}
    return list(found.values())


def _means(word: str, name: str) -> bool:
    kind = name.partition("-")[0]
    return word in {"all", name, kind} or (word == "installed" and _INSTALLED[kind]())
