"""The independent auditor: reads topics with a plain client and judges what it saw.

It imports only confluent-kafka and the standard library, and nothing of the product, so that a bug
of the product cannot hide itself. `reader` reads from the broker. `checkers` are pure functions
from a history to its anomalies.

A test that ends in a proof reads like this::

    inputs = read_committed(bootstrap, "flights")
    outputs = read_committed(bootstrap, "flights-clean")  # raises OpenTransaction: S11
    assert_exactly_once(history_of(inputs, outputs, identify=lambda r: r.key))
"""

from connectors.testing.auditor.checkers import (
    Case,
    Expected,
    History,
    Seen,
    assert_exactly_once,
    history_of,
    judge,
)
from connectors.testing.auditor.reader import (
    Follower,
    IncompleteRead,
    OpenTransaction,
    Record,
    assert_no_open_transaction,
    read_committed,
    read_uncommitted,
)

__all__ = [
    "Case",
    "Expected",
    "Follower",
    "History",
    "IncompleteRead",
    "OpenTransaction",
    "Record",
    "Seen",
    "assert_exactly_once",
    "assert_no_open_transaction",
    "history_of",
    "judge",
    "read_committed",
    "read_uncommitted",
]
