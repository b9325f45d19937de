"""The committer of a running stage, as the checkpoint coordinator sees it: one of the contract.

Transactions of any sink but Kafka's are prepared and ended as in micro-batches, by the driver's
`commit`; of theirs this file only says what is swept while they fill (`lingering`). The rest is
about Kafka.

What differs from micro-batches is who ends a transaction: **one ender**, and that is the task
which wrote it. The driver ends only what a task did not confirm, after it has closed that task's
channel and retired its ids, so that no transaction can ever begin on them again.

Why nothing that is committed is ever aborted (KAFKA-20734, see `kafka.wire.partition_leaders`): a
task's producers A and B take turns, N on A, N+1 on B, N+2 on A. Where N has got no marker in a
partition P, its leader takes the records of N+2 for a part of the same transaction: a commit of
N+2 there ends both, and so does an abort. Records are lost when N is hidden in P and a later
transaction of A, which P is part of, is aborted: by the sweep after a task or driver died between
barrier N+1 and decision N+2 (or later: N can be many checkpoints old, if what A wrote since went
to other partitions), or by the transaction's timeout. Then no marker is right any more: a commit
would show the undecided records of N+2, an abort takes those of N. So it must not come to that,
and recovery cannot help: it knows neither an N that old, nor where N ends and N+2 begins.

Hence **barrier N+1, which lets a task begin again on A, goes out only when every partition that N
wrote records to has been seen without an open transaction of A** (`CheckpointLoop`). A has none
open then, so what is seen can only be N. By induction every transaction begins on a producer that
has nothing hidden, whatever aborts it takes nothing along, and what can be hidden is the last
decision only, at which recovery looks. The look begins when N is committed, on another thread, and
runs while the loop waits for its next barrier: two round trips to the leaders.

Not looked at are the partitions of the group's offsets. A marker that is left out there loses no
record: the transaction of A that is aborted later has sent no offsets yet, or is decided. But a
recovery that finds A gone on cannot read the group then, and ends in OutcomeUnknownError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from connectors.continuous.running_stage import RunningStage
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import Committer, Owner


class StageCommitter:
    """Commits through the tasks of a stage; everything else is the wrapped committer's.

    Args:
        committer: of the sink; it talks to the target from the driver.
        stage: the tasks.
        sweep_every_s: checkpoints come many times a second; what lingers is looked for less often.
    """

    def __init__(self, committer: Committer, stage: RunningStage, *, sweep_every_s: float) -> None:
        self._committer = committer
        self._stage = stage
        self._sweep_every_s = sweep_every_s
        self._next_sweep = Deadline(0.0)

    @property
    def name(self) -> str:
        """See `Committer.name`."""
        return self._committer.name

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """See `Committer`."""
        return self._committer.check_prepared(committables, deadline)

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer`: tasks with ids of their own do it. What one of them did not
        confirm is UNKNOWN; its stage is over then, and the coordinator settles it by asking the
        broker.
        """
        ours = [one for one in committables if self._stage.is_writer(one.transactional_id)]
        confirmed: set[int] = set()
        if ours:
            writers = {one.subtask for one in ours}
            # A task that stalls leaves the driver the time to end its transaction itself.
            patience = Deadline(deadline.remaining() / 2)
            confirmed = self._stage.commit(ours[0].checkpoint_id, writers, patience)
        outcomes = {
            one.token: Outcome.COMMITTED if one.subtask in confirmed else Outcome.UNKNOWN
            for one in ours
        }
        healed = [one for one in committables if one.token not in outcomes]
        return {**outcomes, **(self._committer.commit(healed, deadline) if healed else {})}

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """See `Committer`; only for tasks whose channel is closed."""
        return self._committer.recover_and_commit(committables, deadline)

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """See `Committer`: the tasks' own transactions are open all the time.

        Where tasks have no ids of their own, nothing tells a transaction that fills from one that
        lingers, but for its run: this one's are left to the sweep after its end. An older one's are
        not: a task that froze in it can wake up at any time, and what it prepares then would hold
        locks for as long as this stage runs.
        """
        if not self._stage.is_ready or not self._next_sweep.expired():
            return []
        self._next_sweep = Deadline(self._sweep_every_s)
        if not self._stage.has_writers:
            owner = dataclasses.replace(owner, run_epoch=owner.run_epoch - 1)
        found = self._committer.lingering(owner, deadline)
        return [one for one in found if not self._stage.is_writer(one)]

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """See `Committer`."""
        self._committer.recover_and_abort(transaction_ids, deadline)

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        """See `Committer`: tasks write meanwhile, on their other producers."""
        return self._committer.hidden(committed, deadline)

    def retired(self) -> frozenset[str]:
        """See `Committer`."""
        return self._committer.retired()
