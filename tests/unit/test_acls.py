"""Which ACLs a job needs: for each login, each guarantee, and each way to name topics."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from connectors.cli.doctor import _cases
from connectors.clients.offsets_topic import OFFSETS_TOPIC
from connectors.clients.transactional_id import probe_id
from connectors.doctor.acl_table import TABLE, AclRule
from connectors.doctor.acls import Grant, acls_of
from connectors.doctor.facts import ClusterFacts, Topic, Wanted
from connectors.doctor.verdict import Level
from connectors.doctor.verdicts import judge
from connectors.options.job_definition import JobDefinition
from connectors.options.job_file import parse_job
from transactions.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
SOURCE = 'subscribe = "in"'
MODES = pytest.mark.parametrize("mode", ["micro-batch", "continuous"])


def login(user: str, servers: str = "b:1") -> str:
    return (
        f'kafka.bootstrap.servers = "{servers}"\n'
        'kafka.security.protocol = "SASL_SSL"\nkafka.sasl.mechanism = "PLAIN"\n'
        f'kafka.sasl.username = "{user}"\nkafka.sasl.password = "hunter2"\n'
    )


def sink(topic: str = "out", user: str = "me", servers: str = "b:1", more: str = "") -> str:
    return f'[[sink]]\ntopic = "{topic}"\n{login(user, servers)}{more}\n'


def job(*sinks: str, reads: str = SOURCE, by: str = "", mode: str = "micro-batch") -> JobDefinition:
    """Return a job; `by` is the login of its source."""
    text = (
        f'[app]\nid = "app"\ncheckpoint = "state"\nmode = "{mode}"\n'
        f"[source]\n{reads}\n{by or login('me')}{''.join(sinks or [sink()])}"
    )
    return parse_job(text, Path("/jobs/job.toml"), {})


def shown(grant: Grant) -> set[str]:
    """Return the rules in short: ``TOPIC out READ,WRITE``, with a * behind a prefix."""
    return {
        f"{one.resource_type} {one.name}{'*' * (one.pattern_type == 'PREFIXED')} "
        f"{','.join(one.operations)}"
        for one in grant.rules
    }


def by_principal(job: JobDefinition) -> dict[str, set[str]]:
    grants = acls_of(job)
    assert len({one.principal for one in grants}) == len(grants)
    return {one.principal: shown(one) for one in grants}


TRANSACTIONS = {
    "CLUSTER kafka-cluster DESCRIBE_CONFIGS",
    "TRANSACTIONAL_ID app.* WRITE",
    "GROUP app READ",
    "GROUP app.* READ",
    "TOPIC __consumer_offsets DESCRIBE",
}


@MODES
def test_one_login_for_all(mode: str):
    (grant,) = acls_of(job(mode=mode))
    assert shown(grant) == TRANSACTIONS | {"TOPIC in READ", "TOPIC out READ,WRITE"}
    assert (grant.bootstrap, grant.principal) == ("b:1", "User:me")
    assert grant.used_by == ("source", "sink 'out'")
    assert grant.notes == ()
    assert all(one.reason for one in grant.rules)


def test_settings_that_do_not_log_in_make_no_other_principal():
    (grant,) = acls_of(job(sink(more='kafka.compression.type = "zstd"')))
    assert grant.used_by == ("source", "sink 'out'")


def test_the_order_of_the_brokers_makes_no_other_cluster():
    made = job(sink(servers="b:2,a:1"), by=login("me", "a:1, b:2"))
    (grant,) = acls_of(made)
    assert grant.bootstrap == "a:1,b:2"


@MODES
def test_a_source_with_a_principal_of_its_own_only_reads(mode: str):
    """The transactions of the sink carry its offsets, so the sink's principal must read, too."""
    assert by_principal(job(sink(user="writer"), by=login("reader"), mode=mode)) == {
        "User:reader": {"TOPIC in READ"},
        "User:writer": TRANSACTIONS | {"TOPIC in READ", "TOPIC out READ,WRITE"},
    }


def test_only_the_first_such_sink_carries_the_offsets():
    plain = sink("plain", "plain", more='guarantee = "at-least-once"')
    elsewhere = sink("far", "far", "c:1")
    made = job(plain, elsewhere, sink("out", "one"), sink("other", "two"), by=login("reader"))
    assert by_principal(made) == {
        "User:reader": {"TOPIC in READ"},
        "User:plain": {"TOPIC plain WRITE"},
        "User:far": TRANSACTIONS | {"TOPIC far READ,WRITE"},
        "User:one": TRANSACTIONS | {"TOPIC in READ", "TOPIC out READ,WRITE"},
        "User:two": TRANSACTIONS | {"TOPIC other READ,WRITE"},
    }


def test_one_principal_on_two_clusters():
    read, written = acls_of(job(sink(servers="c:1")))
    assert (read.bootstrap, shown(read)) == ("b:1", {"TOPIC in READ", "GROUP app READ"})
    assert (written.bootstrap, shown(written)) == ("c:1", TRANSACTIONS | {"TOPIC out READ,WRITE"})
    assert read.notes == ()
    (note,) = written.notes
    assert "sink 'out'" in note
    assert "name them alike" in note  # nobody asked for the ids of the clusters


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
@MODES
def test_without_transactions_there_is_no_right_on_them(guarantee: str, mode: str):
    (grant,) = acls_of(job(sink(more=f'guarantee = "{guarantee}"'), mode=mode))
    assert shown(grant) == {"TOPIC in READ", "GROUP app READ", "TOPIC out WRITE"}


def test_a_sink_that_is_not_kafkas_needs_no_right():
    files = '[[sink]]\nkind = "files"\npath = "rows"\nformat = "json"\n'
    (grant,) = acls_of(job(files))
    assert (grant.used_by, shown(grant)) == (("source",), {"TOPIC in READ", "GROUP app READ"})
    both = job(files, sink())
    assert by_principal(both) == by_principal(job())


def test_partitions_are_rights_on_their_topics():
    made = job(reads="""assign = '{"one": [0, 2], "two": [1]}'""")
    assert {"TOPIC one READ", "TOPIC two READ"} < shown(acls_of(made)[0])


def test_the_group_of_another_client_is_only_looked_at():
    start = SOURCE + '\nstartingGroupId = "analysts"'
    made = job(sink(user="writer"), reads=start, by=login("reader"))
    assert by_principal(made)["User:reader"] == {"TOPIC in READ", "GROUP analysts DESCRIBE"}


def test_a_right_that_includes_another_one_is_enough():
    """READ lets one describe, too."""
    own = SOURCE + '\nstartingGroupId = "app"'
    assert shown(acls_of(job(reads=own))[0]) == shown(acls_of(job())[0])
    (loop,) = acls_of(job(sink("in")))
    (both,) = (one for one in loop.rules if one.name == "in")
    assert both.operations == ("READ", "WRITE")
    assert both.reason.count(";") >= 1, "it says both reasons"


PATTERNS = {
    "flights-.*": {"TOPIC flights-* READ"},
    "^flights-.*$": {"TOPIC flights-* READ"},
    r"flights\.eu\.\d+": {"TOPIC flights.eu.* READ"},
    "flights.eu": {"TOPIC flights* READ"},
    "flights-(eu|us)": {"TOPIC flights-* READ"},
    "flights-[a|b]x": {"TOPIC flights-* READ"},
    "flights-(?:[)(]|eu)": {"TOPIC flights-* READ"},
    "flightss?": {"TOPIC flights* READ"},
    "flightss*x": {"TOPIC flights* READ"},
    "flights{0,2}": {"TOPIC flight* READ"},
    "flights+": {"TOPIC flights* READ"},
    "flights": {"TOPIC flights READ"},
    "flights|orders-.*": {"TOPIC flights READ", "TOPIC orders-* READ"},
    "flights|.*-orders": {"TOPIC * READ"},
    ".*": {"TOPIC * READ"},
    "(?i)flights-.*": {"TOPIC * READ"},
    "(flights|orders)": {"TOPIC * READ"},
    "(?x) flights | orders": {"TOPIC * READ"},
    r"\w+-flights": {"TOPIC * READ"},
    "|flights": {"TOPIC flights READ"},
}
TOPICS = (
    *("flights", "flight", "flightsss", "flightsx", "flights-eu", "flights.eu.7", "flights-ax"),
    *("flights-)", "FLIGHTS-1", "a-flights", "orders", "orders-1", "x-orders"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_of_topics(pattern: str):
    made = job(sink(user="writer"), reads=f"subscribePattern = '{pattern}'", by=login("reader"))
    grants = {one.principal: one for one in acls_of(made)}
    read = {one for one in shown(grants["User:reader"]) if one.startswith("TOPIC")}
    assert read == PATTERNS[pattern]
    assert read < shown(grants["User:writer"]), "it carries the offsets"
    for one in grants.values():
        notes = [text for text in one.notes if "regular expression" in text]
        assert bool(notes) == any("*" in rule for rule in read), "names alone are what it means"
        for note in notes:
            assert f" {shlex.quote(pattern)} " in note
            assert "wider" in note
            assert ("every topic of the cluster" in note) == (read == {"TOPIC * READ"})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_allows_all_that_it_means(pattern: str):
    (grant,) = acls_of(job(reads=f"subscribePattern = '{pattern}'"))
    meant = [topic for topic in TOPICS if re.fullmatch(pattern, topic)]
    assert meant or pattern in {r"flights\.eu\.\d+", "flights.eu"}
    assert [topic for topic in meant if "READ" not in allowed(grant.rules, "TOPIC", topic)] == []


def test_rows_that_name_their_topics():
    rows = sink().replace('topic = "out"', 'name = "rows"')
    (grant,) = acls_of(job(rows))
    assert shown(grant) == TRANSACTIONS | {"TOPIC in READ"}
    (note,) = grant.notes
    assert "sink 'rows'" in note
    assert "READ and WRITE" in note
    (plain,) = acls_of(job(rows + 'guarantee = "none"'))
    assert "READ" not in plain.notes[0]
    assert "WRITE" in plain.notes[0]


def test_a_savepoint_is_restored_with_the_login_of_the_source():
    """It looks in the group of the application for newer output (connectors/pipeline/restoring)."""
    of_source, of_sink = acls_of(job(sink(user="writer"), by=login("reader")))
    (note,) = of_source.notes
    assert "--from-savepoint" in note
    assert "DESCRIBE on the group app" in note
    assert of_sink.notes == ()


PROTOCOL = 'kafka.bootstrap.servers = "b:1"\nkafka.security.protocol = "{}"\n'
SCRAM = (
    "kafka.sasl.mechanism = 'SCRAM-SHA-512'\nkafka.sasl.jaas.config = "
    "'''org.apache.kafka.common.security.scram.ScramLoginModule required "
    """username="alice" password="hunter2";'''\n"""
)
OAUTH = (
    'kafka.sasl.mechanism = "OAUTHBEARER"\n'
    'kafka.sasl.oauthbearer.token.endpoint.url = "https://idp.example/token"\n'
    'kafka.sasl.oauthbearer.client.credentials.client.id = "flights"\n'
    'kafka.sasl.oauthbearer.client.credentials.client.secret = "hunter2"\n'
)
#: A login -> the principal, and what its note says.
LOGINS = {
    "plain": (login("me"), "User:me", ""),
    "scram": (PROTOCOL.format("sasl_plaintext") + SCRAM, "User:alice", ""),
    "tls": (
        PROTOCOL.format("SSL") + 'kafka.ssl.keystore.location = "absent.pem"\n',
        "",
        "the subject of the certificate",
    ),
    "oauth": (PROTOCOL.format("SASL_SSL") + OAUTH, "", "sub of its tokens"),
    "kerberos": (
        PROTOCOL.format("SASL_SSL") + 'kafka.sasl.mechanism = "GSSAPI"\n',
        "",
        "Kerberos",
    ),
    "nobody": ('kafka.bootstrap.servers = "b:1"\n', "", "User:ANONYMOUS"),
}


@pytest.mark.parametrize("name", LOGINS)
def test_the_principal_is_what_the_login_says(name: str):
    """Nothing of the login is tried: a file may be absent here, a library too."""
    text, principal, says = LOGINS[name]
    (grant,) = acls_of(job(f'[[sink]]\ntopic = "out"\n{text}', by=text))
    assert grant.principal == principal
    assert len(grant.notes) == bool(says)
    assert says in "".join(grant.notes)
    assert "hunter2" not in repr(grant)


def test_logins_without_a_name_are_told_apart():
    one, other = (
        PROTOCOL.format("SSL") + f'kafka.ssl.keystore.location = "{who}.pem"\n'
        for who in ("reader", "writer")
    )
    grants = acls_of(job(f'[[sink]]\ntopic = "out"\n{other}', by=one))
    assert [one.used_by for one in grants] == [("source",), ("sink 'out'",)]


def test_a_principal_that_a_person_names_is_that_of_every_login():
    grants = acls_of(job(sink(user="key-2"), by=login("key-1")), "User:sa-1")
    assert [(one.principal, one.used_by) for one in grants] == [
        ("User:sa-1", ("source", "sink 'out'"))
    ]
    nobody = LOGINS["nobody"][0]
    (of_all,) = acls_of(job(f'[[sink]]\ntopic = "out"\n{nobody}', by=nobody), "User:x")
    assert (of_all.principal, of_all.notes) == ("User:x", ())


def test_a_login_that_cannot_be_read_is_refused():
    with pytest.raises(ConfigurationError, match="mechanism is missing"):
        acls_of(job(by=PROTOCOL.format("SASL_SSL")))


def allowed(rules: Iterable[AclRule], resource: str, name: str) -> frozenset[str]:
    """Return what Kafka's StandardAuthorizer allows by these rules."""
    matches: dict[str, Callable[[str], bool]] = {
        "LITERAL": lambda rule: rule in (name, "*"),
        "PREFIXED": name.startswith,
    }
    found = {
        operation
        for one in rules
        if one.resource_type == resource and matches[one.pattern_type](one.name)
        for operation in one.operations
    }
    return frozenset(found | ({"DESCRIBE"} if found & {"READ", "WRITE"} else set()))


def facts(rules: Iterable[AclRule], wanted: Wanted) -> ClusterFacts:
    """Return what the probe finds on a cluster where these rules are all."""
    rules = [*rules]
    app = wanted.application_id
    topics = {
        name: Topic(
            name=name,
            error="" if (may := allowed(rules, "TOPIC", name)) else "TOPIC_AUTHORIZATION_FAILED",
            replicas=3,
            in_sync=3,
            operations=may,
        )
        for name in (*wanted.inputs, *wanted.outputs)
    }
    refused = {}
    if "WRITE" not in allowed(rules, "TRANSACTIONAL_ID", probe_id(app)):
        refused["transactional id"] = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    if not allowed(rules, "TOPIC", OFFSETS_TOPIC):
        refused[OFFSETS_TOPIC] = "DescribeTransactions omits its partitions"
    groups = [allowed(rules, "GROUP", name) for name in (app, probe_id(app))]
    shows = "DESCRIBE_CONFIGS" in allowed(rules, "CLUSTER", "kafka-cluster")
    return ClusterFacts(
        bootstrap="b:1",
        brokers={1: "4.4"},
        settings={"transaction.max.timeout.ms": "900000"} if shows else {},
        topics=topics,
        authorizer=True,
        group_operations=frozenset.intersection(*groups),
        refused=refused,
    )


def refusals(rules: Iterable[AclRule], wanted: Wanted) -> list[str]:
    """Return what the doctor tells to change."""
    verdicts = judge(facts(rules, wanted), wanted)
    return [one.option for one in verdicts if one.level is Level.REFUSE]


JOBS = {
    "one login": job(),
    "continuous": job(mode="continuous"),
    "two logins": job(sink(user="writer"), by=login("reader")),
    "two sinks": job(sink(), sink("other", "two"), by=login("reader")),
    "no transactions": job(sink(more='guarantee = "at-least-once"')),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_doctor_refuses_nothing_with_them_and_something_without_any_of_them(name: str):
    made = JOBS[name]
    wanted = {case.used_by[0]: case.wanted for case in _cases(made)}
    tried = 0
    for grant in acls_of(made):
        asked = next(wanted[who] for who in grant.used_by if who in wanted)
        assert refusals(grant.rules, asked) == []
        needed = [one for one in grant.rules if "lag tools" not in one.reason]
        for rule in needed:
            for operation in rule.operations:
                left = dataclasses.replace(rule, operations=tuple({*rule.operations} - {operation}))
                rest = [one for one in grant.rules if one != rule] + [left]
                (option,) = refusals(rest, asked)
                assert operation in option, (rule, operation)
                tried += 1
    assert tried >= 2


def test_the_page_has_the_table():
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    text = page.partition("\n### Rights\n")[2].partition("\n**")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        f"| {role.value} | {rule.resource_type.lower().replace('_', ' ')} "
        f"| {rule.pattern_type.lower()} `{rule.name}` | {', '.join(rule.operations)} "
        f"| {rule.reason} |"
        for role, rule in TABLE
    ]
