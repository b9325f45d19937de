"""The proof of a two-phase sink of your own: a test class to inherit.

::

    from transactions.testing import TwoPhaseCommitSinkContract

    class TestMySink(TwoPhaseCommitSinkContract):
        def new_sink(self): ...
        def visible(self): ...

See docs/write_your_own_sink.md. It needs pytest, so nothing else in `transactions` imports it. Read
in this order: `requirements`, `killed_process`, `engine`, `sink_under_test`, then the contracts.
"""

import pytest

pytest.register_assert_rewrite(
    "transactions.testing.sink_under_test",
    "transactions.testing.visibility_contract",
    "transactions.testing.recovery_contract",
    "transactions.testing.lingering_contract",
    "transactions.testing.resource_contract",
)

from transactions.testing.contract import TwoPhaseCommitSinkContract  # noqa: E402 - rewritten first

__all__ = ["TwoPhaseCommitSinkContract"]
