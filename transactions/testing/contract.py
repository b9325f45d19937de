"""The whole contract in one class."""

from __future__ import annotations

from transactions.testing.lingering_contract import LingeringContract
from transactions.testing.recovery_contract import RecoveryContract
from transactions.testing.resource_contract import ResourceContract
from transactions.testing.visibility_contract import VisibilityContract


class TwoPhaseCommitSinkContract(
    VisibilityContract, RecoveryContract, LingeringContract, ResourceContract
):
    """Tests of a `TwoPhaseCommitSink`, to inherit in a pytest file (docs/write_your_own_sink.md).

    A subclass says `new_sink` and `visible`, and `batch`, `drop_process`, `stall`, `leftovers` and
    the attributes of `SinkUnderTest` where the default is not true of its target. A test that fails
    quotes the sentence of `transactions/sink.py` that is broken.
    """

    __test__ = False
