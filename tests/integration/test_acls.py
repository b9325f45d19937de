"""What `sparkonce doctor --acls` prints is enough for a pipeline, and each part of it is needed.

The commands are those of the printed text, run by Kafka's own tool. What came out is read by a
reader that has every right.
"""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from connectors.cli.doctor import _cases, command
from connectors.cli.kafka_options import job_of
from connectors.doctor.acl_table import AclRule
from connectors.doctor.acls import acls_of
from connectors.doctor.probe import gather
from connectors.doctor.verdict import Level
from connectors.doctor.verdicts import judge
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.job_definition import JobDefinition
from connectors.options.modes import CONTINUOUS, MODES
from connectors.pipeline.restoring import _committed
from connectors.spark import arrow_pipeline
from connectors.testing.run import running
from tests.auditor.reader import read_committed
from tests.integration.in_process import send, values
from tests.integration.secure_broker import (
    Secure,
    acls_on_broker,
    give_acls,
    secure,  # noqa: F401 - a fixture
)
from tests.integration.test_names_of_a_cluster import PARTITIONS, RECORDS, committed
from tests.integration.wire_helpers import eventually, soon
from tests.kafka_tools import kafka_command
from tests.locked_broker import JAAS
from tests.shared_broker import assert_no_open_transaction
from tests.tiers import long
from transactions.errors import AuthenticationError

pytestmark = long

each_mode = pytest.mark.parametrize("mode", MODES)
READER, WRITER = "carol", "dave"
EACH_RUN_ENDS = 'trigger = "available-now"\n[source]'
WORKER_POINTS = ("records_queued", "records_flushed", "offsets_sent")
TASK_POINTS = ("acknowledged", "commit_received", "transaction_ended")
#: The later ones are met while a recovery finishes what the kill before has left.
DRIVER_POINTS = ("decision_durable", "recovery_fenced", "one_committed", "recovery_settled")
#: Kafka's word for a resource -> that of confluent-kafka, where it differs.
RESOURCES = {"CLUSTER": "BROKER"}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The broker, an application on it that nobody else has, and who may change rights."""

    secure: Secure
    admin: AdminClient
    folder: Path
    app: str
    source: str
    output: str

    def fill(self) -> None:
        for partition in range(PARTITIONS):
            send(self.secure.plain, self.source, range(RECORDS), partition=partition)

    def job(
        self,
        reads: str = "",
        *,
        mode: str = MODES[0],
        reader: str = WRITER,
        guarantee: str = "exactly-once",
    ) -> Path:
        """Write a job file; with no other name, the principal of its sink reads as well."""
        reads = reads or f'subscribe = "{self.source}"\nstartingOffsets = "earliest"'
        path = self.folder / "job.toml"
        path.write_text(
            f'[app]\nid = "{self.app}"\ncheckpoint = "state"\nmode = "{mode}"\n'
            f"[source]\n{reads}\n{self.login(reader)}"
            f'[[sink]]\ntopic = "{self.output}"\nguarantee = "{guarantee}"\n{self.login(WRITER)}'
        )
        return path

    def login(self, user: str) -> str:
        return (
            f'kafka.bootstrap.servers = "{self.secure.sasl}"\n'
            'kafka.security.protocol = "SASL_PLAINTEXT"\nkafka.sasl.mechanism = "PLAIN"\n'
            f'kafka.sasl.username = "{user}"\nkafka.sasl.password = "right"\n'
        )

    def give(self, principal: str, rules: Sequence[AclRule]) -> None:
        wanted = [one for rule in rules for one in bindings(principal, rule)]
        give_acls(self.admin, wanted)

    def take(self, principal: str, rules: Sequence[AclRule]) -> None:
        wanted = [
            AclBindingFilter(
                *(one.restype, one.name, one.resource_pattern_type, one.principal, one.host),
                *(one.operation, one.permission_type),
            )
            for rule in rules
            for one in bindings(principal, rule)
        ]
        for done in self.admin.delete_acls(wanted).values():
            assert len(done.result(timeout=20)) == 1

    def acls(self, user: str) -> set[AclBinding]:
        return acls_on_broker(self.admin, all_of(user))

    def paste(self, text: str) -> None:
        """Run each command as somebody who logs in and may change ACLs."""
        login = self.folder / "admin.properties"
        login.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.jaas.config={JAAS.format(user='root', password='right')}\n"
        )
        lines = text.replace(" \\\n", " ").replace("admin.properties", str(login)).splitlines()
        for line in lines:
            if line and not line.startswith("#"):
                name, *words = shlex.split(line)
                assert name == "kafka-acls.sh"
                kafka_command("tools.AclCommand", *words)


def bindings(principal: str, rule: AclRule) -> list[AclBinding]:
    return [
        AclBinding(
            ResourceType[RESOURCES.get(rule.resource_type, rule.resource_type)],
            rule.name,
            ResourcePatternType[rule.pattern_type],
            *(principal, "*", AclOperation[operation], AclPermissionType.ALLOW),
        )
        for operation in rule.operations
    ]


def all_of(user: str) -> AclBindingFilter:
    return AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )


@pytest.fixture
def cluster(secure: Secure, tmp_path: Path) -> Iterator[Cluster]:
    """Afterwards nobody has a right, and no transaction is open."""
    unique = uuid.uuid4().hex[:10]
    names = f"app-{unique}", f"in-{unique}", f"out-{unique}"
    admin = AdminClient({"bootstrap.servers": secure.plain})
    for made in admin.create_topics([NewTopic(one, PARTITIONS) for one in names[1:]]).values():
        made.result(timeout=20)
    yield Cluster(secure, admin, tmp_path, *names)
    for done in admin.delete_acls([all_of(READER), all_of(WRITER)]).values():
        done.result(timeout=20)
    assert_no_open_transaction(secure.plain, names[0])


def refused(job: JobDefinition) -> list[str]:
    """Return what the doctor tells to change."""
    return [
        one.option
        for case in _cases(job)
        for one in judge(gather(case.settings, case.wanted, soon()), case.wanted)
        if one.level is Level.REFUSE
    ]


def may(question: Callable[[], object]) -> bool:
    """Return whether a question is answered, and not refused."""
    try:
        question()
    except AuthenticationError:
        return False
    return True


def run(spark: SparkSession, job: JobDefinition, folder: Path) -> None:
    """Read what is there, then end."""
    arrow_pipeline(
        spark,
        app_id=job.app_id,
        checkpoint=folder,
        source=job.source,
        sink=job.targets[0],
        mode=job.mode,
        trigger="available-now",
        restart_strategy="none",
    ).run()


def copied(cluster: Cluster) -> list[int]:
    return sorted(values(read_committed(cluster.secure.plain, cluster.output)))


@each_mode
@pytest.mark.parametrize("reader", [READER, WRITER], ids=["two logins", "one login"])
def test_what_is_printed_is_enough(cluster: Cluster, spark: SparkSession, mode: str, reader: str):
    cluster.fill()
    path = cluster.job(mode=mode, reader=reader)
    job = job_of(path)
    assert refused(job), "so far there are no rights"
    printed, data = (
        CliRunner().invoke(command, ["--acls", str(path), *more], catch_exceptions=False).stdout
        for more in ((), ("--json",))
    )
    cluster.paste(printed)
    for grant in orjson.loads(data)["clusters"]:
        rules = [AclRule(**rule) for rule in grant["acls"]]
        meant = {one for rule in rules for one in bindings(grant["principal"], rule)}
        assert cluster.acls(grant["principal"].removeprefix("User:")) == meant
    eventually(lambda: refused(job), [])
    run(spark, job, cluster.folder / "state")
    assert copied(cluster) == sorted([*range(RECORDS)] * PARTITIONS)
    seen = committed(cluster.secure.plain, cluster.app, cluster.source)
    assert [offset for offset, _ in seen] == [RECORDS] * PARTITIONS
    assert all(text for _, text in seen), "a transaction has carried the offsets"


@each_mode
@pytest.mark.timeout(900)  # ten starts of the command
def test_a_kill_at_each_step_with_exactly_these_rights(cluster: Cluster, mode: str):
    """Recovery and sweep need no right that a start without a kill does not need."""
    path = cluster.job(mode=mode)
    path.write_text(path.read_text().replace("[source]", EACH_RUN_ENDS, 1))
    for grant in acls_of(job_of(path)):
        cluster.give(grant.principal, grant.rules)
    eventually(lambda: refused(job_of(path)), [])
    points = [*WORKER_POINTS, *DRIVER_POINTS, *(TASK_POINTS if mode == CONTINUOUS else ())]
    for point in [*points, ""]:
        cluster.fill()
        code, text = killed_at(point, path)
        assert "AuthenticationError" not in text
        assert code == (-signal.SIGKILL if point in DRIVER_POINTS else 0), text
    assert copied(cluster) == sorted([*range(RECORDS)] * PARTITIONS * (len(points) + 1))


def killed_at(point: str, job: Path) -> tuple[int, str]:
    """Run a job in a process in which the first one that comes to the point kills itself."""
    trap = {"SPARKONCE_CRASH_AT": point, "SPARKONCE_CRASH_ONCE": str(job.with_name(f"at-{point}"))}
    command = [str(Path(sys.executable).with_name("sparkonce")), "run", str(job)]
    with running(command, environment=trap if point else {}, folder=job.parent) as process:
        code = process.wait()
        assert not point or job.with_name(f"at-{point}").exists(), process.text()
        return code, process.text()


@each_mode
def test_each_operation_is_needed_and_its_lack_is_named(
    cluster: Cluster, spark: SparkSession, mode: str
):
    cluster.fill()
    job = job_of(cluster.job(mode=mode))
    (grant,) = acls_of(job)
    cluster.give(grant.principal, grant.rules)
    eventually(lambda: refused(job), [])
    single = [
        dataclasses.replace(rule, operations=(operation,))
        for rule in grant.rules
        for operation in rule.operations
    ]
    assert len(single) == 8
    for number, one in enumerate(single):
        cluster.take(grant.principal, [one])
        eventually(lambda: bool(refused(job)), True)
        with pytest.raises(AuthenticationError) as caught:
            run(spark, job, cluster.folder / f"without-{number}")
        error = caught.value
        assert all((error.what, error.where, error.cause, error.option)), (one, error)
        assert one.operations[0] in error.option, (one, error)
        cluster.give(grant.principal, [one])
        eventually(lambda: refused(job), [])
    assert read_committed(cluster.secure.plain, cluster.output) == []
    run(spark, job, cluster.folder / "state")
    assert copied(cluster) == sorted([*range(RECORDS)] * PARTITIONS)


def test_without_transactions_the_right_on_the_group_is_for_lag_tools(
    cluster: Cluster, spark: SparkSession, caplog: pytest.LogCaptureFixture
):
    cluster.fill()
    job = job_of(cluster.job(guarantee="at-least-once"))
    (grant,) = acls_of(job)
    cluster.give(grant.principal, grant.rules)
    eventually(lambda: refused(job), [])
    eventually(lambda: may(lambda: _committed(job.source, cluster.app)), True)
    run(spark, job, cluster.folder / "state")
    assert "were not committed" not in caplog.text
    seen = committed(cluster.secure.plain, cluster.app, cluster.source)
    assert seen == [(RECORDS, "")] * PARTITIONS

    (of_group,) = (one for one in grant.rules if one.resource_type == "GROUP")
    cluster.take(grant.principal, [of_group])
    eventually(lambda: may(lambda: _committed(job.source, cluster.app)), False)
    cluster.fill()
    run(spark, job, cluster.folder / "state")
    assert f"were not committed to the group {cluster.app}" in caplog.text
    assert copied(cluster) == sorted([*range(RECORDS)] * PARTITIONS * 2), "and nothing else"

    (of_output,) = (one for one in grant.rules if one.name == cluster.output)
    cluster.take(grant.principal, [of_output])
    eventually(lambda: bool(refused(job)), True)
    with pytest.raises(AuthenticationError) as caught:
        run(spark, job, cluster.folder / "state")
    assert "WRITE" in caught.value.option


def test_a_starting_group_is_only_looked_at(cluster: Cluster):
    cluster.fill()
    group = f"analysts-{cluster.app}"
    reads = f'subscribe = "{cluster.source}"\nstartingGroupId = "{group}"\n'
    job = job_of(cluster.job(reads + 'startingOffsets = "earliest"', reader=READER))
    of_source = acls_of(job)[0]
    (of_group,) = (one for one in of_source.rules if one.resource_type == "GROUP")
    assert (of_group.name, of_group.operations) == (group, ("DESCRIBE",))
    cluster.give(of_source.principal, of_source.rules)

    def begin() -> dict[str, int]:
        return SourcePlanner(job.source).starting_offsets()

    eventually(lambda: may(begin), True)
    assert set(begin().values()) == {0}
    cluster.take(of_source.principal, [of_group])
    eventually(lambda: may(begin), False)
    with pytest.raises(AuthenticationError) as caught:
        begin()
    assert group in caught.value.where
    assert "DESCRIBE" in caught.value.option


@pytest.mark.parametrize("beginning", ["in-", ""], ids=["a prefix", "every topic"])
def test_a_pattern_of_topics(cluster: Cluster, beginning: str):
    pattern = f"{beginning}.*{cluster.source[-6:]}"
    job = job_of(cluster.job(f"subscribePattern = '{pattern}'", reader=READER))
    of_source = acls_of(job)[0]
    here = [f"{cluster.source}-{number}" for number in range(PARTITIONS)]

    def seen() -> list[str]:
        return [one for one in SourcePlanner(job.source).partitions() if one in here]

    assert seen() == [], "a topic without the right is not there, and nothing says so"
    cluster.give(of_source.principal, of_source.rules)
    eventually(lambda: sorted(seen()), here)


def test_a_savepoint_needs_the_right_of_the_note(cluster: Cluster):
    """The start looks in the group of the application with the login of the source."""
    job = job_of(cluster.job(reader=READER))
    of_source = acls_of(job)[0]
    cluster.give(of_source.principal, of_source.rules)
    eventually(lambda: may(SourcePlanner(job.source).partitions), True)
    with pytest.raises(AuthenticationError, match="lacks a right"):
        _committed(job.source, cluster.app)
    assert any(f"DESCRIBE on the group {cluster.app}" in note for note in of_source.notes)
    noted = AclRule("GROUP", "LITERAL", cluster.app, ("DESCRIBE",), "a savepoint")
    cluster.give(of_source.principal, [noted])
    eventually(lambda: may(lambda: _committed(job.source, cluster.app)), True)
