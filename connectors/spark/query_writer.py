"""The writers of `format("kafka-exactly-once")`: thin, as PySpark plans, writes and commits in
different processes.

streamWriter, writer   in a worker beside the driver, before the tasks: asks for the plan
write                  in the tasks: writes and prepares Kafka transactions
commit, abort          in another worker beside the driver: hand over to the commit process
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from connectors.kafka.sink.kafka_writer import KafkaWriter
from connectors.options.sink import takes_messages
from connectors.records.arrow_transform import normalised
from connectors.spark.branches import kept_columns, left_out
from connectors.spark.commit_requests import JOB, Abort, Commit, Plan, TaskPlan, ask
from connectors.spark.query_options import QueryOptions
from connectors.spark.sink_stage import BATCH_ID
from connectors.spark.worker_daemon import keep_quiet
from connectors.spark.worker_heap import settle_worker_heap
from transactions.errors import PhaseOneError
from transactions.sink import Owner

keep_quiet()  # the tasks load this module; in a plain session their daemon is PySpark's own


@dataclasses.dataclass(frozen=True)
class Prepared(WriterCommitMessage):  # type: ignore[misc]
    """What one task tells the commit.

    Attributes:
        owner: of its transactions.
        told: its committables, or what it has compared, as JSON lines.
    """

    owner: Owner
    told: bytes


def planned(options: QueryOptions, schema: StructType) -> TaskPlan:
    """Check the columns, and ask the commit process what the tasks of the next batch write.

    Raises:
        ConfigurationError: a column is missing, or has a type that a record cannot have.
        SparkOnceError: see `QueryRun.plan`.
    """
    assert takes_messages(options.sink)
    kept = kept_columns(schema, options.sink, warn=False)
    arrow = to_arrow_schema(StructType([schema[name] for name in kept]), timezone="UTC")
    plan: TaskPlan = ask(
        Plan(options=options, schema=arrow, left_out=(*left_out(schema, options.sink),))
    )
    return plan


class KafkaStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the batches of a streaming query.

    Args:
        options: of the query.
        plan: of the batch; None where PySpark only commits.
    """

    def __init__(self, options: QueryOptions, plan: TaskPlan | None) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        assert self._plan is not None
        context = TaskContext.get()
        assert context is not None
        batch, planned_for = context.getLocalProperty(BATCH_ID), self._plan.order.checkpoint_id
        if batch != str(planned_for):
            raise PhaseOneError(
                "A task has the plan of another batch.",
                where=f"batch {batch}, the plan is of batch {planned_for}",
                cause="Spark has planned a batch before it wrote its offsets "
                "(asyncProgressTrackingEnabled)",
                option="asyncProgressTrackingEnabled=false",
            )
        return _write(self._plan, iterator, context)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decide and commit; an error fails the query."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Give the batch up. Spark calls it also when a query is stopped after a good commit."""
        ask(Abort(options=self._options, owners=_owners(messages)))


class KafkaJobWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one batch job.

    Args:
        options: of the job.
        plan: of its tasks.
    """

    def __init__(self, options: QueryOptions, plan: TaskPlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task.

        A worker serves the tasks of many jobs, and no later task of this one would close the
        producers of its pool.
        """
        context = TaskContext.get()
        assert context is not None
        writer, owner = self._plan.stage.writers[0], self._plan.stage.owner
        if not isinstance(writer, KafkaWriter):
            return _write(self._plan, iterator, context)
        with writer.own_producers(owner):
            return _write(self._plan, iterator, context)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Decide and commit; an error fails the job, and the next run of the job goes on."""
        _commit(self._options, messages, JOB)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Give the job up: its tasks have failed."""
        ask(Abort(options=self._options, owners=frozenset({self._plan.stage.owner})))


def _write(plan: TaskPlan, batches: Iterator[pa.RecordBatch], context: TaskContext) -> Prepared:
    messages = (normalised(one.select(plan.columns)) for one in batches)
    told = plan.stage.write(messages, plan.order, context)
    settle_worker_heap()
    return Prepared(plan.stage.owner, b"\n".join(one.to_json() for one in told))


def _commit(
    options: QueryOptions, messages: Sequence[WriterCommitMessage | None], number: int
) -> None:
    told = [one for one in messages if isinstance(one, Prepared)]
    assert len(told) == len(messages), "Spark commits only when every task has ended well"
    ask(
        Commit(
            options=options,
            number=number,
            owners=_owners(messages),
            told=tuple(one.told for one in told),
        )
    )


def _owners(messages: Sequence[WriterCommitMessage | None]) -> frozenset[Owner]:
    return frozenset(one.owner for one in messages if isinstance(one, Prepared))
