"""The contract of a sink that commits in two phases, and what a task must know to begin.

Flink's `TwoPhaseCommitSinkFunction` in Python, in the cut of Flink's `TwoPhaseCommittingSink`. A
run opens a sink once, on the driver (`OpenSink`). Its `Writer` travels to the tasks as frozen data
and does phase 1 there. Its `Committer` stays on the driver and does phase 2. Only a `Committable`
passes from the one to the other, so a committer needs nothing of the process that wrote.

What the outside system must offer:

* a prepared transaction can be committed after the process that wrote it has died;
* commit is idempotent: a second commit of one transaction changes nothing;
* data of an open or prepared transaction is invisible to its readers;
* a transaction outlives the longest checkpoint plus the longest downtime.

In a micro-batch a task's calls come one after the other on one thread. In a continuous stage they
also come one after the other, but some on a second thread. There a task begins its next transaction
when the one before is prepared, maybe before that one is decided.

A sink that promises less than exactly-once needs none of this, and uses the same contract. In phase
1 it writes and, if it promises at-least-once, waits for its target. It returns a committable whose
`needs_commit` is False. No method of phase 2 is called for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from transactions.clock import Deadline
from transactions.committable import Committable, Outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of transactions.

    Attributes:
        application_id: stable name of the pipeline; ``[A-Za-z0-9_-]``, so that a dot ends it.
        log_id: random name of its decision log.
        run_epoch: number of this run's Fence.
    """

    application_id: str
    log_id: str
    run_epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecidedToken:
    """The last decided transaction of one transactional id."""

    checkpoint_id: int
    token: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one subtask at one checkpoint; travels in the task's closure.

    Attributes:
        owner: the owner of its transaction.
        checkpoint_id: N.
        subtask: number of the sink task, from 0.
        attempt_id: ``<run epoch>.<task attempt id>``: unique for ever. Stage, partition and
            attempt number repeat after an executor was lost; the task attempt id does not.
        source_offsets: this subtask's even split of the ListState of the source.
        last_decided: the last decided token per transactional id of this run; a task may believe it
            about a transaction that it finds on a cached producer.
        retired: ids whose end was ever in doubt; they are never used again.
    """

    owner: Owner
    checkpoint_id: int
    subtask: int
    attempt_id: str
    source_offsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    last_decided: Mapping[str, DecidedToken] = dataclasses.field(default_factory=dict)
    retired: frozenset[str] = frozenset()


TransactionT = TypeVar("TransactionT")
BatchT_contra = TypeVar("BatchT_contra", contravariant=True)


class Writer(Protocol[TransactionT, BatchT_contra]):
    """The half of a sink that works in tasks: phase 1 (Flink: `PrecommittingSinkWriter`).

    It is pickled on the driver, again with every batch. So it has options only: a method makes what
    is live (a producer, a connection) where it runs, and looks it up again.
    """

    @property
    def name(self) -> str:
        """Unique in its driver, the same at every restart: part of the identity."""

    def begin_transaction(self, attempt: Attempt) -> TransactionT:
        """Open a transaction. In a task, once per attempt, before the first record.

        Raises:
            PhaseOneError: it cannot begin; the attempt fails and is tried again.
            FencedError: the attempt is a zombie's; it stops.
        """

    def invoke(self, transaction: TransactionT, batch: BatchT_contra) -> None:
        """Write an Arrow record batch of the sink's schema. In a task, any number of times.

        It does not promise that records have reached the target when it returns.
        """

    def pre_commit(self, transaction: TransactionT) -> Committable | None:
        """Make the transaction committable by another process. In a task, once, at the end.

        Returns:
            None if nothing was written and no offsets are carried: an empty transaction never
            becomes a committable, because Kafka refuses to end one. One with `needs_commit` False
            if there was no transaction.

        Raises:
            DeliveryError: a record was refused or not acknowledged.
        """

    def abort(self, transaction: TransactionT) -> None:
        """Give the transaction up. In a task, from its own `except`. A killed task does not call it
        (a Python worker has no last word): that is what the sweep is for.
        """


class Committer(Protocol):
    """The half of a sink that works on the driver: phase 2, and recovery (Flink: `Committer`). It
    needs nothing of the process that wrote a transaction, which may be dead.
    """

    @property
    def name(self) -> str:
        """The name of its writer."""

    def check_prepared(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> list[Committable]:
        """Ask the target whether every transaction is still as prepared. On the driver, once
        per checkpoint, immediately before the decision.

        Returns:
            The committables with what only the target knows (Kafka: the start time).

        Raises:
            PhaseOneError: one is not; the checkpoint fails before its decision.
        """

    def commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """Make decided transactions visible, all of them. On the driver, after the decision.

        Returns:
            The outcome per token. A lost answer is UNKNOWN, never an error.
        """

    def recover_and_commit(
        self, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[str, Outcome]:
        """Finish what an earlier run decided, by asking the target first. On the driver: at
        start, and whenever `commit` left an UNKNOWN.

        Returns:
            Per token COMMITTED, ALREADY_COMMITTED, ABORTED (proven) or UNKNOWN (deadline).
        """

    def lingering(self, owner: Owner, deadline: Deadline) -> list[str]:
        """Return open transactions of the owner's log, of its own run or an older one. On the
        driver. Never another application's or another log's, nor a newer run's.
        """

    def recover_and_abort(self, transaction_ids: Sequence[str], deadline: Deadline) -> None:
        """Abort lingering transactions and fence their writers. On the driver, only when the
        last decision is settled: the abort is unconditional.
        """

    def hidden(self, committed: Sequence[Committable], deadline: Deadline) -> list[str]:
        """Return, in words for people, where the target hides proven committed transactions from
        readers; empty when all of them are visible. On the driver, while no task writes under their
        ids.

        Raises:
            BrokerUnavailableError: it could not be learnt before the deadline.
        """

    def retired(self) -> frozenset[str]:
        """Return ids that a doubt has made unusable in this run. On the driver."""

    def close(self) -> None:
        """Release what the driver's side holds; a second call is harmless. On the driver, at the
        end of each run, also of a failed one.
        """


AnyWriter = Writer[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as a user names it, and as it names itself.

    Attributes:
        servers: ``host:port`` of the brokers that the user names.
        cluster_id: the cluster's own id; "" if it was not asked, or does not tell its id.
    """

    servers: frozenset[str]
    cluster_id: str = ""

    def is_same(self, other: Cluster) -> bool:
        """Return whether both are one cluster. Pure.

        Equal servers are one cluster, so nobody need ask for the ids then. Different servers can
        be one cluster too: other brokers of it, or another name of one broker. The ids tell. If one
        of the two ids is not known (a very old or odd broker has none), only the servers are
        compared.
        """
        if self.servers == other.servers:
            return True
        return self.cluster_id != "" and self.cluster_id == other.cluster_id


@runtime_checkable
class CarriesOffsets(Protocol):
    """What a writer states if its transactions can contain offsets of the source."""

    def carries_offsets_of(self, cluster: Cluster) -> bool:
        """Return whether it can contain the offsets of a cluster. On the driver.

        Args:
            cluster: the cluster that the source reads.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class OpenSink:
    """A sink in one run of its driver.

    Attributes:
        writer: travels to the tasks.
        committer: stays on the driver.
    """

    writer: AnyWriter
    committer: Committer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a run tells a sink that it opens.

    Attributes:
        checkpoint_timeout_s: how long one checkpoint may take.
        fills_s: how long a transaction can be open before its checkpoint begins; 0 where a batch
            is a checkpoint.
        transaction_lives_s: how long a prepared transaction must wait for its commit at least, over
            a restart of the driver. 0: it is not known.
        schema: `pyarrow.Schema` of the branch, so that a target with columns of its own can be
            checked now. None: it is not known.
        patience_s: how long the target may take for its first answers.
    """

    checkpoint_timeout_s: float
    fills_s: float = 0.0
    transaction_lives_s: float = 0.0
    schema: Any = None
    patience_s: float = 20.0

    @property
    def task_timeout_s(self) -> float:
        """How long any one task may hold a transaction."""
        return self.checkpoint_timeout_s + self.fills_s


class Sink(Protocol):
    """What a user says about a sink: plain data, checked when it is made (Flink: `Sink`)."""

    @property
    def name(self) -> str:
        """The name, unique in the driver and the same at every restart; ``[A-Za-z0-9_-]``."""

    def identity(self) -> Mapping[str, str | None]:
        """Return ``kind`` and all else that must be the same at every restart on one checkpoint."""

    def check_columns(self, schema: Any) -> None:
        """Check that the sink can carry a branch. On the driver, before it starts.

        Args:
            schema: `pyarrow.Schema` of the branch.

        Raises:
            ConfigurationError: the sink cannot carry it; the text names the column.
        """

    def open(self, context: SinkContext) -> OpenSink:
        """Open the sink for a run. On the driver, once per run, before its Fence.

        Raises:
            SparkOnceError: the target cannot be used.
        """


def offsets_carrier(sinks: Mapping[str, OpenSink], clusters: Sequence[Cluster]) -> str | None:
    """Return the name of the first sink whose transactions can contain the offsets of all sources.

    Args:
        sinks: of the run, in the order of the branches.
        clusters: of the sources.
    """
    for name, one in sinks.items():
        writer = one.writer
        if isinstance(writer, CarriesOffsets) and all(map(writer.carries_offsets_of, clusters)):
            return name
    return None


def most_urgent_first(
    sinks: Mapping[str, Committer], committables: Sequence[Committable]
) -> list[tuple[Committer, list[Committable]]]:
    """Return the committers that have something to commit, each with its committables.

    Sinks whose transactions time out (Kafka's) come first; otherwise the order of the sinks stays.
    All share one deadline, and a target that does not answer can use up all of it.
    """
    mine = {name: [one for one in committables if one.sink == name] for name in sinks}
    names = [name for name in sinks if mine[name]]
    names.sort(key=lambda name: all(one.timeout_ms == 0 for one in mine[name]))
    return [(sinks[name], mine[name]) for name in names]
