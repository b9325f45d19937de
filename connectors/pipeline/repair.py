"""A person's repair of a pipeline's transactions, from its Fence on. In the command's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transactions.decision_log import DecisionLog

if TYPE_CHECKING:
    from connectors.operations.transaction_reader import TransactionReader


def take_over(reader: TransactionReader) -> DecisionLog:
    """Append a Fence: after it no older run can decide or continue.

    What a person has accepted stays accepted: only the newest Fence says it.

    Raises:
        FencedError, DecisionLogError: see `DecisionLog.open`.
    """
    return DecisionLog.open(
        reader.backend,
        application_id=reader.state.application_id,
        identity=reader.state.identity,
        check=lambda log: log.accepted,
    )
