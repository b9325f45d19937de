"""What the probe learnt about a cluster, and what the caller wants from it. Plain data, no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

STATE_TOPIC = "__transaction_state"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a pipeline wants from a cluster.

    Attributes:
        application_id: its id; "" leaves out everything that needs an id.
        inputs: topics to read.
        input_pattern: names the topics to read instead; what it matches is not looked at.
        outputs: topics to write.
        plain_outputs: the outputs that are written to without transactions.
        timeout_ms: transaction timeout; None takes what the broker allows.
        checkpoint_timeout_s: longest checkpoint.
        restart_budget_s: longest restart.
        interval_s: longest time between two barriers; 0 where a batch is a checkpoint.
        strangers: look at the open transactions of everybody as well.
        transactions: False for a cluster that has none of ours (it is only read from, or written to
            with another guarantee than exactly-once): then nothing is asked or said about them.
    """

    application_id: str = ""
    inputs: tuple[str, ...] = ()
    input_pattern: str = ""
    outputs: tuple[str, ...] = ()
    plain_outputs: frozenset[str] = frozenset()
    timeout_ms: int | None = None
    checkpoint_timeout_s: float = 600.0
    restart_budget_s: float = 60.0
    interval_s: float = 0.0
    strangers: bool = True
    transactions: bool = True

    @property
    def transaction_lives_s(self) -> float:
        """How long a transaction must live at least: it is open before its barrier, too."""
        return self.interval_s + self.checkpoint_timeout_s + self.restart_budget_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic in the metadata.

    Attributes:
        error: Kafka's name of the error that prevents its description; "" when there is none.
        replicas: fewest replicas of a partition; 0 when there is no partition.
        in_sync: fewest in-sync replicas of a partition.
        min_in_sync: `min.insync.replicas`; None when it may not be read.
        leaderless: numbers of partitions without a leader.
        operations: names of the operations that we may do (READ, WRITE, ...).
    """

    name: str
    error: str = ""
    replicas: int = 0
    in_sync: int = 0
    min_in_sync: int | None = None
    leaderless: tuple[int, ...] = ()
    operations: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """An open transaction, of any owner."""

    transactional_id: str
    state: str
    age_ms: int
    timeout_ms: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endless:
    """A transaction that has no end in a partition, and that no coordinator shows us as open.

    Attributes:
        partition: ``topic-partition``.
        start_offset: where readers of committed records stop.
        producer_id: the producer that wrote it.
        producer_epoch: the epoch of that producer.
        transactional_id: the id that has the producer id now; "" when we may see none.
        state: the coordinator's word for this transaction; "" when it has none.
    """

    partition: str
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str = ""
    state: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that was read. For what could not be read, `unread` has the reason.

    Attributes:
        bootstrap: the address that was asked.
        brokers: node id -> Kafka's version as far as its API versions show it.
        silent: node id -> why it did not answer.
        settings: broker settings by name.
        features: finalized feature -> level.
        topics: by name; `STATE_TOPIC` among them when it exists.
        authorizer: whether the brokers check rights; None when we may not ask that.
        group_operations: names of the operations that we may do with the application's group.
        refused: the part of the probe that was refused -> Kafka's sentence ("transactional id",
            "group", `OFFSETS_TOPIC`).
        skew_ms: broker's clock minus ours; None when it was not measured.
        skew_error_ms: the error of `skew_ms`: half of the request's time.
        hanging: open transactions of the cluster.
        endless: transactions without an end in the outputs and in the offsets of groups.
        unread: what could not be read -> the reason.
    """

    bootstrap: str
    brokers: Mapping[int, str]
    silent: Mapping[int, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    features: Mapping[str, int] = dataclasses.field(default_factory=dict)
    topics: Mapping[str, Topic] = dataclasses.field(default_factory=dict)
    authorizer: bool | None = None
    group_operations: frozenset[str] | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skew_ms: float | None = None
    skew_error_ms: float = 0.0
    hanging: tuple[Hanging, ...] = ()
    endless: tuple[Endless, ...] = ()
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)
