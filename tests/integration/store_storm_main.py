"""Reads objects by Hadoop's client, each while the store has just become too busy for a while.

    python -m tests.integration.store_storm_main http://127.0.0.1:PORT

It is a process, because the jars of the client must be there when its JVM starts.
"""

from __future__ import annotations

import os
import sys

from connectors.spark.session import build_session
from tests.faulty_store import FaultyStore
from tests.s3_store import BUCKET, hadoop_settings, variables

#: With Spark's own settings each second read fails.
_READS = 8


def main(store: str) -> None:
    with FaultyStore(store, shift=1, every=10**9, storm_every=10**9) as wire:
        os.environ.update(variables(wire.endpoint))
        conf = {f"spark.{name}": it for name, it in hadoop_settings(wire.endpoint).items()}
        spark = build_session("storm", master="local[1]", conf=conf)
        hadoop = spark._jvm.org.apache.hadoop.fs
        for number in range(_READS):
            path = hadoop.Path(f"s3a://{BUCKET}/storm/{number}")
            files = path.getFileSystem(spark._jsc.hadoopConfiguration())
            with_text = files.create(path)
            with_text.write(bytearray(b"state"))
            with_text.close()
            opened = files.open(path)
            wire.begin_storm()
            assert opened.read() == ord("s")
            opened.close()
            wire.end_storm()
        print(f"{_READS} reads, {sum(wire.met.values())} refused")
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
