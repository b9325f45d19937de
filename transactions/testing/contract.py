"""The whole contract in one class."""

from __future__ import annotations

from transactions.testing.lingering_contract import LingeringContract
from transactions.testing.recovery_contract import RecoveryContract
from transactions.testing.resource_contract import ResourceContract
from transactions.testing.visibility_contract import VisibilityContract


class TwoPhaseCommitSinkContract(
    VisibilityContract, RecoveryContract, LingeringContract, ResourceContract
):
    """Tests of a two-phase `Sink`, to inherit in a pytest file (docs/write_your_own_sink.md).

    A subclass defines `new_sink` and `visible`. It also defines `batch`, `drop_process`, `stall`,
    `leftovers` and the attributes of `SinkUnderTest` if the default is not right for its target. A
    test that fails quotes the sentence of `transactions/sink.py` that is broken.
    """

    __test__ = False
