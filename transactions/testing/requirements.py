"""What a sink must do, in the words of `transactions/sink.py`: a failed test quotes one."""

from __future__ import annotations

import enum


class Requirement(enum.StrEnum):
    """A sentence of the contract. tests/unit/test_sink_contract.py finds each in its file."""

    # What the outside system must offer.
    OUTLIVES_ITS_WRITER = (
        "a prepared transaction can be committed after the process that wrote it has died"
    )
    IDEMPOTENT = "commit is idempotent: a second commit of one transaction changes nothing"
    INVISIBLE = "data of an open or prepared transaction is invisible to its readers"
    # The sink itself.
    TRAVELS = "It is pickled on the driver, again with every batch."
    NAME = "Unique in its driver, the same at every restart"
    # Phase 1.
    COMMITTABLE = "Make the transaction committable by another process."
    EMPTY = "None if nothing was written and no offsets are carried"
    ABORT = "Give the transaction up."
    # The driver.
    STILL_PREPARED = "Ask the target whether every transaction is still as prepared."
    COMMIT = "Make decided transactions visible, all of them."
    LOST_ANSWER = "A lost answer is UNKNOWN, never an error."
    RECOVER = "Finish what an earlier run decided, by asking the target first."
    RECOVERED = "Per token COMMITTED, ALREADY_COMMITTED, ABORTED (proven) or UNKNOWN (deadline)."
    LINGERING = "Return open transactions of the owner's log, of its own run or an older one."
    FOREIGN = "Never another application's or another log's, nor a newer run's."
    FENCE = "Abort lingering transactions and fence their writers."
    HIDDEN = "empty when all of them are visible."
    # Of every method: transactions/clock.py, and what a driver that runs for months needs.
    DEADLINE = "The moment at which a step and everything below it gives up."
    ORDER = "Readers meet a subtask's records in the order of invoke, checkpoint after checkpoint."
    NO_LEAK = "What a transaction has opened is closed when it has ended."

    @property
    def source(self) -> str:
        """The file that says so."""
        return _ELSEWHERE.get(self.name, "transactions/sink.py")

    def broken(self, what: str) -> str:
        """Return the text of a failed assertion."""
        return f'The contract of a sink is broken ({self.source}): "{self.value}"\n  {what}'


_ELSEWHERE = {
    "DEADLINE": "transactions/clock.py",
    "ORDER": "transactions/testing/requirements.py",
    "NO_LEAK": "transactions/testing/requirements.py",
}
