"""What a continuous task writes with if its sink is not Kafka's but fulfils the two-phase contract.

The sink sees what it sees in a micro-batch: its transactions one after the other, each begun with
its first record, and all columns of the branch. Kafka's producers take turns, so their transactions
overlap. The contract does not allow that for two transactions of one task, so here one is prepared
before the next one's first record. The driver ends a prepared transaction with `commit`, which
needs nothing of the process that wrote it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa

from connectors.records.arrow_transform import complete
from transactions.clock import Deadline
from transactions.committable import Committable
from transactions.errors import PhaseOneError
from transactions.sink import AnyWriter, Attempt, Owner

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class ContractWrite:
    """What is read between two barriers; the sink is first called when there is something to write.

    Attributes:
        attempt: the attempt that writes it.
        begun: whether the sink has a transaction for it.
        transaction: the sink's own transaction.
        committable: of the prepared transaction.
    """

    attempt: Attempt
    begun: bool = False
    transaction: Any = None
    committable: Committable | None = None


class ContractWriter:
    """See `connectors.continuous.stage_task.StageWriter`, and `KafkaStageWriter` for its threads.

    The sink's methods are called on both threads of a task, never two of them at once.

    Args:
        sink: the task's own copy.
        schema: of the branch, as a micro-batch would give it to the sink.
    """

    ends_transactions = False
    shows_at_barriers = True

    def __init__(self, sink: AnyWriter, schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = schema
        self._lock = threading.Lock()  # between the end of the task and a barrier
        self._filling: ContractWrite | None = None
        self._closed = False

    def open(self, owner: Owner, deadline: Deadline) -> tuple[str, ...]:  # noqa: ARG002
        """Do nothing: an id of the contract belongs to one transaction, and there is none yet."""
        return ()

    def begin_transaction(self, attempt: Attempt) -> ContractWrite:
        """Begin nothing: an idle branch must leave no open file and no session."""
        # A task's id is unique for the task's life; an attempt's id must be so per checkpoint.
        unique = f"{attempt.attempt_id}-{attempt.checkpoint_id}"
        own = dataclasses.replace(attempt, attempt_id=unique, source_offsets={})
        return ContractWrite(own)

    def invoke(self, transaction: ContractWrite, batch: pa.RecordBatch) -> None:
        """See `Writer.invoke`."""
        if not transaction.begun:
            transaction.transaction = self._sink.begin_transaction(transaction.attempt)
            transaction.begun = True
            self._filling = transaction
        self._sink.invoke(transaction.transaction, complete(batch, self._schema))

    def flush(self, transaction: ContractWrite, source_offsets: Mapping[str, int]) -> None:  # noqa: ARG002
        """Prepare the transaction, while nothing is written: see the module. Only the decision
        carries the offsets.

        Raises:
            PhaseOneError: the task is ending, and has given its transaction up.
            SparkOnceError: the sink could not prepare it.
        """
        if not transaction.begun:
            return
        with self._lock:
            if self._closed:
                raise PhaseOneError(
                    "A barrier came while the task was ending.",
                    where=f"checkpoint {transaction.attempt.checkpoint_id}, "
                    f"subtask {transaction.attempt.subtask}",
                    cause="the reading thread of the task failed; its error has the reason",
                )
            self._filling = None
            try:
                transaction.committable = self._sink.pre_commit(transaction.transaction)
            except Exception:
                self._abort(transaction)
                raise

    def pre_commit(self, transaction: ContractWrite) -> Committable | None:
        """Return what `flush` has prepared, None when nothing was written."""
        return transaction.committable

    def end(self, transaction: ContractWrite) -> NoReturn:
        """Never called: the driver ends the transaction."""
        raise AssertionError(f"the driver ends the transaction of {transaction.attempt}")

    def serve(self) -> None:
        """See `connectors.continuous.stage_task.StageWriter`: nothing waits."""

    def close(self) -> None:
        """Abort what is filling. A prepared one may be decided already; the driver ends it."""
        with self._lock:
            self._closed = True
            filling, self._filling = self._filling, None
        if filling is not None:
            self._abort(filling)

    def _abort(self, transaction: ContractWrite) -> None:
        try:
            self._sink.abort(transaction.transaction)
        except Exception:
            logger.exception(
                "aborting a transaction of sink %s failed; the sweep ends it", self._sink.name
            )
