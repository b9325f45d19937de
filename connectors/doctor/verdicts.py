"""From facts to verdicts: what is fine, what to watch, what would break the guarantee. Pure.

REFUSE is only for what makes a pipeline fail or lose exactly-once. What only makes it less durable,
slower, or harder to look after is a WARN with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from connectors.clients.client_version import TRIED_TRANSACTION_VERSION
from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.clients.transaction_timeout import MOST_TIMEOUT_MS
from connectors.clients.transactional_id import probe_id
from connectors.doctor.endless_verdicts import judge_ends
from connectors.doctor.facts import (
    STATE_TOPIC,
    ClusterFacts,
    Topic,
    Wanted,
)
from connectors.doctor.verdict import Kind, Level, Verdict

MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
RETENTION: Final = "offsets.retention.minutes"
STATE_REPLICAS: Final = "transaction.state.log.replication.factor"
STATE_MIN_ISR: Final = "transaction.state.log.min.isr"

#: A broker whose clock is further off shows wrong ages, and wrong times in LogAppendTime topics.
MOST_SKEW_MS: Final = 1000.0

_READ: Final = frozenset({"READ", "DESCRIBE"})
_WRITE: Final = frozenset({"WRITE", "DESCRIBE"})
#: A task that has no partition of the source puts its marker into the transaction as an offset of
#: the output topic. The driver also looks there for commits that a broker hides (KAFKA-20734).
_WRITE_IN_TRANSACTIONS: Final = _WRITE | _READ


def judge(facts: ClusterFacts, wanted: Wanted) -> list[Verdict]:
    """Return every verdict, in the order in which a person would look."""
    if not wanted.transactions:
        # Open transactions of others hide plain records too, from readers of committed records.
        theirs = (*_hanging(facts, wanted), *judge_ends(facts, wanted))
        return [_brokers(facts), *_topics(facts, wanted), *theirs]
    return [
        _brokers(facts),
        _timeout(facts, wanted),
        *_state_topic(facts),
        *_features(facts),
        *_topics(facts, wanted),
        *_rights(facts, wanted),
        *_retention(facts, wanted),
        *_clock(facts, wanted),
        *_hanging(facts, wanted),
        *judge_ends(facts, wanted),
    ]


def worst(verdicts: Iterable[Verdict]) -> Level:
    """Return the worst level among them; OK when there are none."""
    order = list(Level)
    return max((one.level for one in verdicts), key=order.index, default=Level.OK)


def _brokers(facts: ClusterFacts) -> Verdict:
    found = ", ".join(f"{node}: {version}" for node, version in sorted(facts.brokers.items()))
    if not facts.silent:
        return Verdict("brokers", Level.OK, found)
    silent = "; ".join(f"{node}: {why}" for node, why in sorted(facts.silent.items()))
    return Verdict(
        "brokers",
        Level.WARN,
        f"{found}; no answer from {silent}",
        "a known broker is not reachable from here; its transactions and groups would wait",
        "its advertised.listeners, and the network in between",
    )


def _timeout(facts: ClusterFacts, wanted: Wanted) -> Verdict:
    name = "transaction timeout"
    least_ms = int(wanted.transaction_lives_s * 1000)
    budgets = f"{wanted.interval_s:g} s interval + " if wanted.interval_s else ""
    budgets += (
        f"{wanted.checkpoint_timeout_s:g} s checkpoint + {wanted.restart_budget_s:g} s restart"
    )
    if MAX_TIMEOUT not in facts.settings:
        return Verdict(
            name,
            Level.REFUSE,
            facts.unread.get("broker settings", f"{MAX_TIMEOUT} is not shown"),
            "a driver reads the broker's maximum at start",
            "DESCRIBE_CONFIGS on the cluster for the principal",
            Kind.RIGHTS,
        )
    most = int(facts.settings[MAX_TIMEOUT])
    usable = min(most, MOST_TIMEOUT_MS)
    timeout = usable if wanted.timeout_ms is None else wanted.timeout_ms
    found = f"{timeout} ms of {most} ms that the broker allows; {budgets}"
    if timeout > usable:
        return Verdict(
            name,
            Level.REFUSE,
            found,
            "the broker refuses a producer timeout above its maximum, and librdkafka refuses a "
            f"timeout above {MOST_TIMEOUT_MS} ms",
            f"transactionTimeoutMs={timeout}, or the broker's {MAX_TIMEOUT}={most}",
        )
    if timeout < least_ms:
        return Verdict(
            name,
            Level.REFUSE,
            found,
            "decided transactions would be aborted while a driver restarts",
            f"the broker's {MAX_TIMEOUT} to {least_ms} or more, or shorter budgets "
            f"(checkpoint_timeout, restart_budget{', barrier_interval' * bool(wanted.interval_s)})",
        )
    return Verdict(name, Level.OK, found)


def _state_topic(facts: ClusterFacts) -> Iterator[Verdict]:
    topic = facts.topics.get(STATE_TOPIC)
    if topic is None or topic.error:
        replicas = int(facts.settings.get(STATE_REPLICAS, "0"))
        min_in_sync = int(facts.settings.get(STATE_MIN_ISR, "0"))
        why = topic.error if topic else "it is made when the first transaction begins"
        if not replicas:
            yield Verdict(STATE_TOPIC, Level.WARN, f"not seen: {why}", "it holds every outcome")
            return
        topic = Topic(
            name=STATE_TOPIC, replicas=replicas, in_sync=replicas, min_in_sync=min_in_sync
        )
    yield _durability(
        topic,
        STATE_TOPIC,
        "the outcome of every transaction is kept here",
        f"{STATE_REPLICAS}=3, {STATE_MIN_ISR}=2 (for an existing topic: reassign it)",
    )


def _durability(topic: Topic, name: str, because: str, option: str) -> Verdict:
    """Judge replicas, in-sync replicas and leaders of one topic that we write to."""
    known = topic.min_in_sync is not None
    minimum = topic.min_in_sync or 1
    shown = topic.min_in_sync if known else "(may not be read)"
    found = f"RF {topic.replicas}, in sync {topic.in_sync}, min.insync.replicas {shown}"
    if topic.leaderless:
        numbers = ", ".join(map(str, topic.leaderless[:5]))
        return Verdict(
            name,
            Level.REFUSE,
            f"{found}; no leader for partition {numbers}",
            "nothing can be written there now",
            "bring its brokers back",
            Kind.OUTAGE,
        )
    if topic.in_sync < minimum:
        return Verdict(
            name,
            Level.REFUSE,
            found,
            "fewer replicas are in sync than a write needs: every transaction would wait",
            "bring the brokers back, or lower min.insync.replicas",
            Kind.OUTAGE,
        )
    if topic.replicas < 3 or (known and minimum < 2):
        return Verdict(
            name,
            Level.WARN,
            found,
            f"{because}: with RF < 3 or min.insync.replicas < 2 one lost disk can lose "
            "what was acknowledged",
            option,
        )
    return Verdict(name, Level.OK, found)


def _features(facts: ClusterFacts) -> Iterator[Verdict]:
    if "features" in facts.unread:
        yield Verdict("features", Level.WARN, facts.unread["features"], "the levels are unknown")
        return
    level = facts.features.get("transaction.version", 0)
    metadata = facts.features.get("metadata.version")
    found = f"transaction.version {level}"
    found += f", metadata.version {metadata}" if metadata is not None else ""
    if level > TRIED_TRANSACTION_VERSION:
        yield Verdict(
            "features",
            Level.REFUSE,
            found,
            f"sparkonce was tested up to transaction.version {TRIED_TRANSACTION_VERSION}; a "
            "newer version can change the meaning of a transaction's end",
            "kafka-features.sh downgrade --feature "
            f"transaction.version={TRIED_TRANSACTION_VERSION}, or a newer sparkonce",
        )
        return
    yield Verdict("features", Level.OK, found)


def _topics(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    for name in wanted.inputs:
        yield _input(facts, name)
    if wanted.input_pattern:
        yield Verdict(
            "inputs",
            Level.WARN,
            f"subscribePattern={wanted.input_pattern}",
            "no topic was looked at: the right to read the topics that match is not proven",
            "nothing; to check topics: sparkonce doctor without --job, and --input TOPIC for each",
        )
    for name in wanted.outputs:
        is_plain = name in wanted.plain_outputs or not wanted.transactions
        yield _output(facts, name, _WRITE if is_plain else _WRITE_IN_TRANSACTIONS)


def _missing(
    check: str, facts: ClusterFacts, name: str, option: str, needed: frozenset[str]
) -> Verdict | None:
    topic = facts.topics.get(name)
    if topic is not None and not topic.error:
        return None
    if topic is None and (reason := facts.unread.get("topics")):
        return Verdict(check, Level.WARN, reason, "the topic could not be checked")
    why = topic.error if topic else "UNKNOWN_TOPIC_OR_PARTITION"
    if why == "TOPIC_AUTHORIZATION_FAILED":
        return _no_right(check, needed, f"the topic {name}")  # any of them would show it
    return Verdict(
        check,
        Level.REFUSE,
        f"it does not exist ({why})" if why.startswith("UNKNOWN_TOPIC") else why,
        "it was not created, or the name is misspelt; a client would wait for it",
        f"{option}={name}",
        Kind.MISSING,
    )


def _input(facts: ClusterFacts, name: str) -> Verdict:
    check = f"input {name}"
    if missing := _missing(check, facts, name, "subscribe", _READ):
        return missing
    topic = facts.topics[name]
    if lacking := _READ - topic.operations:
        return _no_right(check, lacking, f"the topic {name}")
    if topic.leaderless:
        return _durability(topic, check, "", "")
    return Verdict(check, Level.OK, f"RF {topic.replicas}, in sync {topic.in_sync}, readable")


def _output(facts: ClusterFacts, name: str, needed: frozenset[str]) -> Verdict:
    check = f"output {name}"
    if missing := _missing(check, facts, name, "topic", needed):
        return missing
    topic = facts.topics[name]
    if lacking := needed - topic.operations:
        return _no_right(check, lacking, f"the topic {name}")
    return _durability(
        topic,
        check,
        "committed records are only as safe as their replicas",
        f"replicas and min.insync.replicas of the topic {name}",
    )


def _no_right(check: str, lacking: Iterable[str], on: str) -> Verdict:
    rights = " and ".join(sorted(lacking))
    return Verdict(
        check,
        Level.REFUSE,
        f"the principal lacks {rights}",
        "the broker would refuse the pipeline's requests",
        f"an ACL: {rights} on {on}",
        Kind.RIGHTS,
    )


def _rights(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    app = wanted.application_id
    if facts.authorizer is False:
        yield Verdict("authorizer", Level.OK, "none: the brokers check no rights")
    if not app:
        return
    check = f"transactional ids {app}.*"
    if refused := facts.refused.get("transactional id"):
        yield Verdict(
            check,
            Level.REFUSE,
            refused,
            "no transaction could begin or be settled",
            f"an ACL: WRITE and DESCRIBE on transactional ids with the prefix {app}.",
            Kind.RIGHTS,
        )
    elif reason := facts.unread.get("transactional id"):
        yield Verdict(check, Level.WARN, reason, "the right to use them is not proven")
    else:
        yield Verdict(
            check, Level.OK, f"InitProducerId and DescribeTransactions of {probe_id(app)}"
        )
    yield _group(facts, app)
    if refused := facts.refused.get(OFFSETS_TOPIC):
        yield Verdict(
            OFFSETS_TOPIC,
            Level.REFUSE,
            refused,
            "every batch would fail: a decision needs the transaction's offsets from this topic",
            f"an ACL: DESCRIBE on the topic {OFFSETS_TOPIC}",
            Kind.RIGHTS,
        )


def _group(facts: ClusterFacts, app: str) -> Verdict:
    check = f"group {app}"
    on = f"the group {app} and groups with the prefix {app}. (source offsets and markers)"
    if refused := facts.refused.get("group"):
        return Verdict(
            check,
            Level.REFUSE,
            refused,
            "offsets could not be part of a transaction",
            f"an ACL: READ and DESCRIBE on {on}",
            Kind.RIGHTS,
        )
    if facts.group_operations is None:
        reason = facts.unread.get("group", "not asked")
        return Verdict(check, Level.WARN, reason, "the right to use it is not proven")
    if lacking := _READ - facts.group_operations:
        return _no_right(check, lacking, on)
    return Verdict(check, Level.OK, "offsets may be read and committed")


def _retention(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    if RETENTION not in facts.settings:
        return
    minutes = int(facts.settings[RETENTION])
    needed_s = wanted.checkpoint_timeout_s + wanted.restart_budget_s
    found = f"{RETENTION}={minutes}"
    if minutes * 60 < needed_s:
        yield Verdict(
            "offsets retention",
            Level.WARN,
            found,
            "the broker keeps the markers that prove commits of expired ids for less time than "
            f"a checkpoint and a restart may take ({needed_s:g} s)",
            f"the broker's {RETENTION} to {int(needed_s // 60) + 1} or more",
        )
    else:
        yield Verdict("offsets retention", Level.OK, f"{found} ({minutes / 1440:.3g} days)")


def _clock(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    if facts.skew_ms is None:
        if wanted.application_id and (reason := facts.unread.get("clock")):
            yield Verdict("clock", Level.WARN, "not measured", reason)
        return
    found = f"the broker is {round(facts.skew_ms):+d} ms from us"
    found += f", give or take {facts.skew_error_ms:.0f}"
    if abs(facts.skew_ms) - facts.skew_error_ms > MOST_SKEW_MS:
        yield Verdict(
            "clock",
            Level.WARN,
            found,
            "the shown ages are wrong; the guarantee does not depend on the clock",
            "NTP on this machine and on the broker",
        )
    else:
        yield Verdict("clock", Level.OK, found)


def _hanging(facts: ClusterFacts, wanted: Wanted) -> Iterator[Verdict]:
    if not wanted.strangers:
        return
    if reason := facts.unread.get("open transactions"):
        yield Verdict("open transactions", Level.WARN, reason, "not all brokers could be asked")
        return
    old = [one for one in facts.hanging if one.age_ms > one.timeout_ms / 2]
    if not old:
        younger = f"{len(facts.hanging)} open, none older than half of its timeout"
        yield Verdict("open transactions", Level.OK, younger)
        return
    old.sort(key=lambda one: -one.age_ms)
    ids = ", ".join(
        f"{one.transactional_id} ({one.age_ms / 1000:.0f} of {one.timeout_ms / 1000:.0f} s)"
        for one in old[:5]
    )
    more = f" and {len(old) - 5} more" if len(old) > 5 else ""
    kafka = f"kafka-transactions.sh --bootstrap-server {facts.bootstrap}"
    yield Verdict(
        "open transactions",
        Level.WARN,
        f"{len(old)} older than half of their timeout: {ids}{more}",
        "read_committed readers of their partitions wait for the end of these transactions",
        f"the client that the id names must end it. {kafka} describe --transactional-id "
        f"{old[0].transactional_id} shows its partitions; {kafka} find-hanging --topic TOPIC shows "
        "what no coordinator will end; sparkonce transactions list shows a pipeline's own",
    )
