"""What the doctor says about transactions that have no end in a partition. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from connectors.clients.transactional_id import TransactionalId
from connectors.doctor.facts import STATE_TOPIC, ClusterFacts, Endless, Wanted
from connectors.doctor.verdict import Kind, Level, Verdict


def judge_ends(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    """Return a verdict for each transaction, or a single one when there is none."""
    if not wanted.strangers:
        return
    check = "transaction ends"
    unread = facts.unread.get("producers")
    closer = (
        f"; some partitions are held back, not checked without READ: {unread}" if unread else ""
    )
    if reason := facts.unread.get(check):
        yield Verdict(check, Level.WARN, reason, "not all partitions could be asked")
    elif silent := facts.unread.get("leaders"):
        yield Verdict(
            check,
            Level.WARN,
            f"no leader answered for {silent}{closer}",
            "a completed transaction can be without its marker there, and readers would wait for "
            "ever",
            "bring the brokers of these partitions back, and run the doctor again",
        )
    elif not facts.endless:
        yield Verdict(check, Level.OK, f"every completed transaction has its markers{closer}")
    for one in facts.endless:
        yield _endless(facts, wanted, one)


def _endless(facts: ClusterFacts, wanted: Wanted, one: Endless) -> Verdict:
    if not one.transactional_id and not _sees_every_id(facts):
        return _not_ours_to_judge(one)
    topic, _, number = one.partition.rpartition("-")
    fate = {"CompleteCommit": "committed", "CompleteAbort": "aborted"}.get(one.state, "over")
    owner = one.transactional_id or "no transactional id has this producer"
    abort = (
        f"kafka-transactions.sh --bootstrap-server {facts.bootstrap} abort --topic {topic} "
        f"--partition {number} --start-offset {one.start_offset}"
    )
    options = {
        "committed": _to_show(one.transactional_id),
        # The coordinator speaks of the producer's last transaction. Without KIP-890 the one before
        # has the same epoch, and can be a hidden commit.
        "aborted": "only if these records are of its producer's last transaction, since an earlier "
        f"one can be committed (kafka-transactions.sh describe shows when the last began): {abort}",
        # No command: pasted, it would remove the records if they were committed.
        "over": "its owner knows whether it was committed (of a pipeline's last checkpoint: "
        "sparkonce transactions list --checkpoint ...); if it was, kafka-transactions.sh abort "
        "would remove its records",
    }
    return Verdict(
        f"transaction ends {one.partition}",
        Level.REFUSE if topic in wanted.outputs else Level.WARN,
        f"{fate}, and no marker at {one.partition} from offset {one.start_offset}: "
        f"{owner}, producer {one.producer_id}/{one.producer_epoch}",
        "read_committed readers stop there for ever: the coordinator treated a partition without a "
        "leader as deleted (KAFKA-20734), or the log was truncated",
        options[fate],
        Kind.OUTAGE,
    )


def _to_show(transactional_id: str) -> str:
    """Return what makes committed records visible. Our command knows only decisions of our logs."""
    if TransactionalId.of(transactional_id.rsplit(".", 4)[0], transactional_id) is not None:
        return (
            "sparkonce transactions write-markers --checkpoint ...; never use "
            "kafka-transactions.sh abort: it would remove the committed records"
        )
    return (
        f"the owner of {transactional_id}: Kafka has no command that writes a commit marker. The "
        "next commit of the same producer in this partition shows the records; its abort there, or "
        "kafka-transactions.sh abort, would remove them"
    )


def _sees_every_id(facts: ClusterFacts) -> bool:
    """Return whether the brokers' lists are whole. A broker lists only ids that the principal may
    describe, and only from the partitions of the transaction log that it leads.
    """
    log = facts.topics.get(STATE_TOPIC)
    is_led = log is not None and not log.error and not log.leaderless
    return is_led and facts.authorizer is False


def _not_ours_to_judge(one: Endless) -> Verdict:
    """Nobody said that it is over. To abort a transaction that another client will commit would
    lose that client's records.
    """
    return Verdict(
        f"transaction ends {one.partition}",
        Level.WARN,
        f"open or over at {one.partition} from offset {one.start_offset}: its id is not visible to "
        f"this principal now, producer {one.producer_id}/{one.producer_epoch}",
        "read_committed readers stop there until it ends; nothing says whether its owner still "
        "works on it",
        f"run the doctor while all partitions of {STATE_TOPIC} have a leader, with a principal "
        "that has DESCRIBE on all transactional ids",
    )
