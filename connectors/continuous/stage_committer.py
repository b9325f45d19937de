"""The committer of a running stage. The checkpoint coordinator sees it as any committer.

Transactions of any sink but Kafka's are prepared and ended as in micro-batches, by the driver's
`commit`. For them this file only says what is swept while they fill (`lingering`). The rest is
about Kafka.

The difference to micro-batches is who ends a transaction: **one ender**, the task that wrote it.
The driver ends only what a task did not confirm. Before that, it closes that task's channel and
retires its ids, so that no transaction can ever begin on them again.

Why nothing that is committed is ever aborted (KAFKA-20734, see `kafka.wire.partition_leaders`): a
task's producers A and B take turns, N on A, N+1 on B, N+2 on A. If N has no marker in a partition
P, P's leader takes the records of N+2 for a part of the same transaction: a commit of N+2 there
ends both, and so does an abort. Records are lost when N is hidden in P and a later transaction of A
that includes P is aborted. The sweep aborts it after a task or driver died between barrier N+1 and
decision N+2 (or later: N can be many checkpoints old, if A wrote to other partitions since), or the
transaction's timeout does. Then no marker is right any more: a commit would show the undecided
records of N+2, an abort removes those of N. So this must never happen, and recovery cannot help: it
knows neither an N that old, nor where N ends and N+2 begins.

Hence **barrier N+1, which lets a task begin again on A, goes out only when every partition that N
wrote records to has been seen without an open transaction of A** (`CheckpointLoop`). A has begun no
other one then, so an open one can only be N. By induction every transaction begins on a producer
that has nothing hidden. So an abort removes nothing else, and only the last decision can be hidden;
recovery looks at that one. The look begins when N is committed, on another thread, and runs while
the loop waits for its next barrier: two round trips to the leaders.

The look leaves out the partitions of the group's offsets. A missing marker there loses no record: a
transaction of A that is aborted later has sent no offsets yet, or is decided. But if A has gone on,
a recovery cannot read the group then, and ends in OutcomeUnknownError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from connectors.continuous.running_stage import RunningStage
from transactions.clock import Deadline
from transactions.committable import Committable, Outcome
from transactions.sink import Committer, Owner


class StageCommitter:
    """Commits through the tasks of a stage; the wrapped committer does everything else.

    Args:
        committer: of the sink; it talks to the target from the driver.
        stage: the tasks.
        sweep_every_s: checkpoints come many times a second; the look for lingering ones is rarer.
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
        """See `Committer`: tasks with ids of their own do it. A transaction that its task did not
        confirm is UNKNOWN. The stage is over then, and the coordinator asks the broker to settle
        it.
        """
        ours = [one for one in committables if self._stage.is_writer(one.transactional_id)]
        confirmed: set[int] = set()
        if ours:
            writers = {one.subtask for one in ours}
            # If a task stalls, the driver still has the time to end its transaction itself.
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

        If tasks have no ids of their own, only its run distinguishes a transaction that fills from
        one that lingers. Those of this run are left to the sweep after its end. Those of an older
        run are not: a task that froze in it can wake up at any time, and a transaction that it
        prepares then would hold locks for as long as this stage runs.
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

    def close(self) -> None:
        """See `Committer`: the run closes the wrapped committer."""
