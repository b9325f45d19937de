"""The continuous pipeline into a database that crash tests run as a process of its own.

Its sink is a user's own, around the product's: an Arrow pipeline has the columns of a Kafka record,
and PostgreSQL has no column for headers.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from connectors import KafkaSource
from connectors.postgres import PostgresSink
from connectors.spark import arrow_pipeline, build_session
from connectors.testing.child import FAILED, say, say_checkpoint
from connectors.testing.jobs import QUICK_START
from transactions.errors import SparkOnceError


class OpenWithoutHeaders:
    """The live sink: the product's, but for one column."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def invoke(self, transaction: Any, batch: pa.RecordBatch) -> None:
        self._sink.invoke(transaction, batch.drop_columns(["headers"]))

    def __getattr__(self, name: str) -> Any:
        if name == "_sink":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self._sink, name)


@dataclasses.dataclass(frozen=True)
class WithoutHeaders:
    """See `connectors.branch_sink.OtherSink`."""

    sink: PostgresSink

    @property
    def name(self) -> str:
        return self.sink.name

    def identity(self) -> Mapping[str, str]:
        return self.sink.identity()

    def check_columns(self, schema: pa.Schema) -> None:
        self.sink.check_columns(self._kept(schema))

    def open_sink(self, *, checkpoint_timeout_s: float, schema: pa.Schema) -> Any:
        return OpenWithoutHeaders(
            self.sink.open_sink(
                checkpoint_timeout_s=checkpoint_timeout_s, schema=self._kept(schema)
            )
        )

    @staticmethod
    def _kept(schema: pa.Schema) -> pa.Schema:
        return schema.remove(schema.get_field_index("headers"))


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "conninfo", "app", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("sparkonce").setLevel(logging.INFO)
    pipeline = arrow_pipeline(
        build_session("database", master="local[2]", conf=QUICK_START),
        app_id=given.app,
        checkpoint=given.checkpoint,
        source=KafkaSource(
            bootstrap_servers=given.bootstrap, subscribe=given.input, starting_offsets="earliest"
        ),
        transform="tests.integration.continuous_main:copy",
        sink=WithoutHeaders(PostgresSink(conninfo=given.conninfo, table="words")),
        mode="continuous",
        restart_strategy="none",
        on_checkpoint=say_checkpoint,
    )
    try:
        pipeline.run()
    except SparkOnceError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return FAILED
    finally:
        say(recommitted=pipeline.recommitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
