"""Every verdict of the pre-flight: facts in, a level with its reason out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.doctor.facts import (
    STATE_TOPIC,
    ClusterFacts,
    Endless,
    Hanging,
    Topic,
    Wanted,
)
from connectors.doctor.verdict import Kind, Level, Verdict
from connectors.doctor.verdicts import judge, worst

ALL = frozenset({"READ", "WRITE", "DESCRIBE"})
SOLID = Topic(name="t", replicas=3, in_sync=3, min_in_sync=2, operations=ALL)
WANTED = Wanted(application_id="app", inputs=("in",), outputs=("out",))
FACTS = ClusterFacts(
    bootstrap="b:9092",
    brokers={1: "4.4", 2: "4.4", 3: "4.4"},
    settings={"transaction.max.timeout.ms": "900000", "offsets.retention.minutes": "10080"},
    features={"transaction.version": 2},
    topics={name: replace(SOLID, name=name) for name in (STATE_TOPIC, "in", "out")},
    authorizer=True,
    group_operations=ALL,
    skew_ms=3.0,
    skew_error_ms=1.0,
)


def with_topic(name: str, **changes: object) -> ClusterFacts:
    return replace(FACTS, topics={**FACTS.topics, name: replace(FACTS.topics[name], **changes)})


def only(verdicts: list[Verdict]) -> Verdict:
    """Return the one verdict that is not ok."""
    (one,) = [verdict for verdict in verdicts if verdict.level is not Level.OK]
    return one


def test_a_solid_cluster_is_all_ok():
    verdicts = judge(FACTS, WANTED)
    assert worst(verdicts) is Level.OK
    checks = " ".join(one.check for one in verdicts)
    for part in ("brokers", "timeout", STATE_TOPIC, "features", "in", "out", "app.*", "group app"):
        assert part in checks


def test_b4_a_broker_without_a_limit_gives_what_the_client_can_compute_with():
    endless = replace(
        FACTS, settings={**FACTS.settings, "transaction.max.timeout.ms": "2147483647"}
    )
    verdicts = judge(endless, WANTED)
    assert worst(verdicts) is Level.OK
    assert any(one.found.startswith("2147483547 ms of 2147483647 ms") for one in verdicts)
    more = only(judge(endless, replace(WANTED, timeout_ms=2_147_483_548)))
    assert (more.level, more.check) == (Level.REFUSE, "transaction timeout")


#: what is wrong -> facts, level, check, and what a driver raises for a refusal.
CASES = {
    "a_broker_is_silent": (replace(FACTS, silent={3: "timed out"}), Level.WARN, "brokers"),
    "settings_may_not_be_read": (
        replace(FACTS, settings={}, unread={"broker settings": "CLUSTER_AUTHORIZATION_FAILED"}),
        Level.REFUSE,
        "transaction timeout",
        Kind.RIGHTS,
    ),
    "maximum_too_small": (
        replace(FACTS, settings={"transaction.max.timeout.ms": "300000"}),
        Level.REFUSE,
        "transaction timeout",
        Kind.SETTING,
    ),
    "b11_a_transaction_version_that_was_never_tried": (
        replace(FACTS, features={"transaction.version": 3}),
        Level.REFUSE,
        "features",
        Kind.SETTING,
    ),
    "state_topic_rf_1": (
        with_topic(STATE_TOPIC, replicas=1, in_sync=1, min_in_sync=1),
        Level.WARN,
        STATE_TOPIC,
    ),
    "state_topic_min_isr_1": (with_topic(STATE_TOPIC, min_in_sync=1), Level.WARN, STATE_TOPIC),
    "state_topic_under_min_isr": (
        with_topic(STATE_TOPIC, in_sync=1),
        Level.REFUSE,
        STATE_TOPIC,
        Kind.OUTAGE,
    ),
    "state_topic_without_leader": (
        with_topic(STATE_TOPIC, leaderless=(7,)),
        Level.REFUSE,
        STATE_TOPIC,
        Kind.OUTAGE,
    ),
    "output_missing": (
        with_topic("out", error="UNKNOWN_TOPIC_OR_PARTITION"),
        Level.REFUSE,
        "output out",
        Kind.MISSING,
    ),
    "input_missing": (
        with_topic("in", error="UNKNOWN_TOPIC_OR_PARTITION"),
        Level.REFUSE,
        "input in",
        Kind.MISSING,
    ),
    "output_not_visible": (
        with_topic("out", error="TOPIC_AUTHORIZATION_FAILED"),
        Level.REFUSE,
        "output out",
        Kind.RIGHTS,
    ),
    "output_not_writable": (
        with_topic("out", operations=frozenset({"DESCRIBE"})),
        Level.REFUSE,
        "output out",
        Kind.RIGHTS,
    ),
    "output_not_readable": (
        with_topic("out", operations=frozenset({"DESCRIBE", "WRITE"})),
        Level.REFUSE,
        "output out",
        Kind.RIGHTS,
    ),
    "input_not_readable": (
        with_topic("in", operations=frozenset({"DESCRIBE"})),
        Level.REFUSE,
        "input in",
        Kind.RIGHTS,
    ),
    "output_rf_1": (with_topic("out", replicas=1, in_sync=1), Level.REFUSE, "output out"),
    "input_without_leader": (
        with_topic("in", leaderless=(0,)),
        Level.REFUSE,
        "input in",
        Kind.OUTAGE,
    ),
    "no_right_on_ids": (
        replace(FACTS, refused={"transactional id": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}),
        Level.REFUSE,
        "transactional ids app.*",
        Kind.RIGHTS,
    ),
    "id_not_proven": (
        replace(FACTS, unread={"transactional id": "no answer"}),
        Level.WARN,
        "transactional ids app.*",
    ),
    "no_right_on_the_group": (
        replace(FACTS, refused={"group": "GROUP_AUTHORIZATION_FAILED"}),
        Level.REFUSE,
        "group app",
        Kind.RIGHTS,
    ),
    "group_not_readable": (
        replace(FACTS, group_operations=frozenset({"DESCRIBE"})),
        Level.REFUSE,
        "group app",
        Kind.RIGHTS,
    ),
    "offsets_are_hidden": (
        replace(FACTS, refused={OFFSETS_TOPIC: "DescribeTransactions omits its partitions"}),
        Level.REFUSE,
        OFFSETS_TOPIC,
        Kind.RIGHTS,
    ),
    "offsets_expire_early": (
        replace(FACTS, settings={**FACTS.settings, "offsets.retention.minutes": "10"}),
        Level.WARN,
        "offsets retention",
    ),
    "clock_is_off": (replace(FACTS, skew_ms=-5000.0), Level.WARN, "clock"),
    "clock_not_measured": (
        replace(FACTS, skew_ms=None, unread={"clock": "no answer"}),
        Level.WARN,
        "clock",
    ),
    "a_transaction_hangs": (
        replace(
            FACTS,
            hanging=(
                Hanging(transactional_id="x.1", state="Ongoing", age_ms=31_000, timeout_ms=60_000),
                Hanging(transactional_id="x.2", state="Ongoing", age_ms=29_000, timeout_ms=60_000),
            ),
        ),
        Level.WARN,
        "open transactions",
    ),
}


OURS = "app.12260e84.1.13fff316.0"


def endless(topic: str, state: str, *, owner: str = OURS) -> ClusterFacts:
    one = Endless(
        partition=f"{topic}-3",
        start_offset=7,
        producer_id=12,
        producer_epoch=1,
        transactional_id=owner,
        state=state,
    )
    return replace(FACTS, endless=(one,))


#: where a marker is missing, what the coordinator says -> level, and what to do about it.
ENDS = {
    "committed": ("out", "CompleteCommit", Level.REFUSE, "transactions write-markers"),
    "aborted": ("out", "CompleteAbort", Level.REFUSE, "--topic out --partition 3 --start-offset 7"),
    "unknown": ("out", "", Level.REFUSE, "whether it was committed"),
    "not_even_begun": ("out", "Empty", Level.REFUSE, "whether it was committed"),
    "of_a_group": ("__consumer_offsets", "CompleteCommit", Level.WARN, "write-markers"),
}


@pytest.mark.parametrize(("topic", "state", "level", "option"), ENDS.values(), ids=ENDS.keys())
def test_a_transaction_without_an_end_has_the_remedy_that_loses_nothing(
    topic, state, level, option
):
    verdict = only(judge(endless(topic, state), WANTED))
    assert (verdict.check, verdict.level) == (f"transaction ends {topic}-3", level)
    assert option in verdict.option
    assert "no marker" in verdict.found
    assert verdict.reason
    # the usual remedy is an abort: the command is there only for what is known to be aborted
    assert ("abort --topic" in verdict.option) is (state == "CompleteAbort")


@pytest.mark.parametrize("owner", ["x.1", "app", "app.doctor", f"{OURS}.1"])
def test_a_strangers_committed_records_are_not_for_our_command(owner):
    """`write-markers` acts on the last decision of one log; no log knows such an id."""
    option = only(judge(endless("out", "CompleteCommit", owner=owner), WANTED)).option
    assert "write-markers" not in option
    assert f"the owner of {owner}" in option
    assert "abort --topic" not in option


def test_an_abort_is_right_only_for_the_records_of_the_transaction_that_was_aborted():
    """Without KIP-890 a producer keeps its epoch: the coordinator then says CompleteAbort of its
    last transaction, while a partition still waits for the commit of the one before.
    """
    option = only(judge(endless("out", "CompleteAbort"), WANTED)).option
    condition, _, command = option.partition(
        "kafka-transactions.sh --bootstrap-server b:9092 abort"
    )
    assert "only if" in condition
    assert "can be committed" in condition
    assert command == " --topic out --partition 3 --start-offset 7"


def test_our_command_is_for_the_ids_of_any_application_of_ours():
    """The doctor also runs without --app."""
    facts = endless("out", "CompleteCommit")
    assert "write-markers" in only(judge(facts, replace(WANTED, application_id=""))).option


@pytest.mark.parametrize("authorizer", [True, None])
def test_a_transaction_whose_id_we_may_not_see_can_be_open_and_is_not_ours_to_abort(authorizer):
    """A broker lists only the ids that the principal may describe."""
    facts = replace(endless("out", "", owner=""), authorizer=authorizer)
    verdict = only(judge(facts, WANTED))
    assert verdict.level is Level.WARN
    assert "open or over" in verdict.found
    assert "not visible" in verdict.found
    assert "DESCRIBE" in verdict.option
    assert "abort" not in verdict.option + verdict.reason


@pytest.mark.parametrize(
    "state_topic",
    [
        replace(SOLID, leaderless=(7,)),
        replace(SOLID, error="TOPIC_AUTHORIZATION_FAILED"),
        None,
    ],
)
def test_a_transaction_whose_coordinator_can_be_away_is_not_ours_to_judge(state_topic):
    """A broker lists only the ids of the partitions of __transaction_state that it leads."""
    facts = replace(endless("out", "", owner=""), authorizer=False)
    topics = {name: one for name, one in FACTS.topics.items() if name != STATE_TOPIC}
    if state_topic is not None:
        topics[STATE_TOPIC] = state_topic
    checks = {one.check: one for one in judge(replace(facts, topics=topics), WANTED)}
    verdict = checks["transaction ends out-3"]
    assert verdict.level is Level.WARN
    assert "open or over" in verdict.found
    assert STATE_TOPIC in verdict.option
    assert "abort" not in verdict.option + verdict.reason


def test_an_id_that_nobody_has_is_over_where_every_id_is_visible():
    facts = replace(endless("out", "", owner=""), authorizer=False)
    verdict = only(judge(facts, WANTED))
    assert verdict.level is Level.REFUSE
    assert verdict.found.startswith("over")
    assert "its owner knows" in verdict.option
    assert "abort --topic" not in verdict.option


def test_what_may_not_be_read_is_said_and_is_no_finding():
    facts = replace(FACTS, unread={"producers": "out (TOPIC_AUTHORIZATION_FAILED)"})
    verdicts = {one.check: one for one in judge(facts, WANTED)}
    assert verdicts["transaction ends"].level is Level.OK
    assert "without READ: out" in verdicts["transaction ends"].found


@pytest.mark.parametrize("producers", ["", "other (TOPIC_AUTHORIZATION_FAILED)"])
def test_a_leader_that_gives_no_answer_leaves_the_ends_unknown(producers):
    facts = replace(FACTS, unread={"leaders": "out: 0, 3 (no answer)", "producers": producers})
    verdict = only(judge(facts, WANTED))
    assert (verdict.check, verdict.level) == ("transaction ends", Level.WARN)
    assert "out: 0, 3 (no answer)" in verdict.found
    assert ("without READ: other" in verdict.found) is bool(producers)
    assert "brokers" in verdict.option


def test_what_is_known_is_said_beside_a_leader_that_gives_no_answer():
    facts = replace(endless("out", "CompleteCommit"), unread={"leaders": "out: 0 (no answer)"})
    levels = {one.check: one.level for one in judge(facts, WANTED)}
    assert levels["transaction ends"] is Level.WARN
    assert levels["transaction ends out-3"] is Level.REFUSE


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_fault_by_its_own_row(case):
    facts, level, check, *kind = case
    verdict = only(judge(facts, WANTED))
    assert (verdict.level, verdict.check) == (level, check)
    assert verdict.reason
    if level is Level.REFUSE:
        assert verdict.option
    if kind:
        assert [verdict.kind] == kind


def test_the_old_transactions_are_named_and_only_they():
    found = only(judge(CASES["a_transaction_hangs"][0], WANTED)).found
    assert "x.1 (31 of 60 s)" in found
    assert "x.2" not in found


def test_kafkas_own_commands_show_the_old_transactions_of_any_client():
    """`sparkonce transactions list` shows only those of its own application."""
    option = only(judge(CASES["a_transaction_hangs"][0], WANTED)).option
    kafka = "kafka-transactions.sh --bootstrap-server b:9092"
    assert f"{kafka} describe --transactional-id x.1" in option
    assert f"{kafka} find-hanging --topic" in option
    assert "shows their owners" not in option


def test_what_is_written_without_transactions_need_not_be_readable():
    facts = with_topic("out", operations=frozenset({"DESCRIBE", "WRITE"}))
    for wanted in (
        replace(WANTED, plain_outputs=frozenset({"out"})),
        replace(WANTED, application_id="", transactions=False),
    ):
        assert all(one.level is Level.OK for one in judge(facts, wanted))


@pytest.mark.parametrize(
    ("name", "wanted", "rights"),
    [
        ("in", WANTED, "DESCRIBE and READ"),
        ("out", WANTED, "DESCRIBE and READ and WRITE"),
        ("out", replace(WANTED, plain_outputs=frozenset({"out"})), "DESCRIBE and WRITE"),
    ],
)
def test_of_a_topic_that_is_hidden_every_right_is_named(name: str, wanted: Wanted, rights: str):
    """Who gave DESCRIBE alone would only get to the next refusal."""
    facts = with_topic(name, error="TOPIC_AUTHORIZATION_FAILED", operations=frozenset())
    assert only(judge(facts, wanted)).option == f"an ACL: {rights} on the topic {name}"


def test_a_skew_within_its_own_error_is_no_warning():
    facts = replace(FACTS, skew_ms=1500.0, skew_error_ms=600.0)
    assert worst(judge(facts, WANTED)) is Level.OK


def test_a_longer_timeout_than_the_brokers_maximum():
    verdict = only(judge(FACTS, replace(WANTED, timeout_ms=900_001)))
    assert verdict.level is Level.REFUSE
    assert "transactionTimeoutMs=900001" in verdict.option


def test_budgets_that_do_not_fit_into_the_timeout():
    verdict = only(judge(FACTS, replace(WANTED, restart_budget_s=400.0)))
    assert verdict.level is Level.REFUSE
    assert "1000000" in verdict.option


@pytest.mark.parametrize(("interval_s", "level"), [(240.0, Level.OK), (241.0, Level.REFUSE)])
def test_b7_a_transaction_is_open_for_an_interval_before_its_barrier(interval_s, level):
    """Rule 14: it must live for interval, checkpoint and restart together; here 900 seconds."""
    verdicts = {one.check: one for one in judge(FACTS, replace(WANTED, interval_s=interval_s))}
    timeout = verdicts["transaction timeout"]
    assert timeout.level is level
    assert f"{interval_s:g} s interval + 600 s checkpoint + 60 s restart" in timeout.found
    if level is Level.REFUSE:
        assert "901000" in timeout.option
        assert "barrier_interval" in timeout.option


def test_a_transaction_log_that_is_not_there_yet_is_judged_by_its_settings():
    settings = {
        **FACTS.settings,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    topics = {"in": SOLID, "out": SOLID}
    verdict = only(judge(replace(FACTS, topics=topics, settings=settings), WANTED))
    assert (verdict.check, verdict.level) == (STATE_TOPIC, Level.WARN)
    assert "RF 1" in verdict.found


def test_a_cluster_that_is_only_read_from_is_not_asked_about_transactions():
    facts = replace(FACTS, settings={}, features={}, group_operations=None)
    verdicts = judge(facts, Wanted(inputs=("in",), strangers=False, transactions=False))
    assert [one.check for one in verdicts] == ["brokers", "input in"]
