"""A broken job, for the test of the audit: copies a topic and writes one record twice.

It does what an at-least-once writer does after a crash: the same record is produced again, outside
of any transaction. `APP_ID` and the others come from the harness.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import Producer

from connectors.testing.auditor import read_committed


def main() -> int:
    bootstrap = os.environ["BOOTSTRAP_SERVERS"]
    producer = Producer({"bootstrap.servers": bootstrap})
    records = read_committed(bootstrap, os.environ["SOURCE"])
    lost, twice = os.environ.get("LOSE", "").encode(), os.environ["DOUBLE"].encode()
    for record in records:
        for _ in range(0 if record.key == lost else 2 if record.key == twice else 1):
            producer.produce(os.environ["OUTPUT"], record.value, record.key)
    return producer.flush(30)


if __name__ == "__main__":
    sys.exit(main())
