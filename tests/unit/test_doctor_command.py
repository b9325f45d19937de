"""`sparkonce doctor --job`: whose settings it tries, and what it says about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from connectors.cli.doctor import command
from connectors.doctor import probe
from connectors.doctor.facts import STATE_TOPIC, ClusterFacts, Topic, Wanted
from connectors.doctor.verdicts import judge
from connectors.pipeline.run_options import RunOptions
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import Deadline

ROOT = Path(__file__).parents[2]
READ = frozenset({"READ", "DESCRIBE"})
ALL = READ | {"WRITE"}
LOGIN = (
    'kafka.security.protocol = "SASL_SSL"\nkafka.sasl.mechanism = "PLAIN"\n'
    'kafka.sasl.username = "{}"\nkafka.sasl.password = "{}-secret"\n'
)
SOURCE = 'kafka.bootstrap.servers = "b:1"\nsubscribe = "in"\n'


def sink(topic: str, user: str, more: str = "") -> str:
    servers = 'kafka.bootstrap.servers = "b:1"\n'
    return f'[[sink]]\ntopic = "{topic}"\n{servers}{LOGIN.format(user, user)}{more}\n'


class Clusters:
    """Answers like a cluster on which users have rights."""

    def __init__(self, rights: dict[str, dict[str, frozenset[str]]]) -> None:
        self.asked: list[tuple[str, Wanted]] = []
        self._rights = rights

    def gather(self, settings: Any, wanted: Wanted, _: Deadline) -> ClusterFacts:
        user = settings["sasl.username"]
        self.asked.append((user, wanted))
        rights = {STATE_TOPIC: ALL, **self._rights[user]}
        return ClusterFacts(
            bootstrap=settings["bootstrap.servers"],
            brokers={1: "4.4"},
            settings={"transaction.max.timeout.ms": "900000"},
            features={"transaction.version": 2},
            topics={
                name: Topic(name=name, replicas=3, in_sync=3, min_in_sync=2, operations=may)
                for name, may in rights.items()
            },
            group_operations=READ,
        )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job.toml"


def written(job: Path, *sinks: str, source: str = SOURCE, user: str = "reader") -> Path:
    head = '[app]\nid = "flights"\ncheckpoint = "state"\n[source]\n'
    job.write_text(head + source + LOGIN.format(user, user) + "".join(sinks))
    return job


def doctor(monkeypatch: pytest.MonkeyPatch, clusters: Clusters, job: Path) -> tuple[int, list[Any]]:
    monkeypatch.setattr(probe, "gather", clusters.gather)
    done = CliRunner().invoke(command, ["--job", str(job), "--json"])
    assert "secret" not in done.output
    return done.exit_code, orjson.loads(done.stdout)["clusters"]


def refusals(reports: list[Any]) -> list[tuple[list[str], str]]:
    rows = [(one["used_by"], row) for one in reports for row in one["checks"]]
    return [(used_by, row["check"]) for used_by, row in rows if row["level"] == "refuse"]


def test_one_principal_for_all_is_asked_once(monkeypatch, job: Path):
    clusters = Clusters({"me": {"in": READ, "out": ALL, "other": ALL}})
    written(job, sink("out", "me"), sink("other", "me"), user="me")
    code, (only,) = doctor(monkeypatch, clusters, job)
    assert (code, only["used_by"]) == (0, ["source", "sink 'out'", "sink 'other'"])
    ((_, wanted),) = clusters.asked
    assert (wanted.inputs, wanted.outputs) == (("in",), ("out", "other"))


def test_the_credentials_of_the_source_are_tried_on_the_brokers_of_a_sink_too(
    monkeypatch, job: Path
):
    clusters = Clusters({"reader": {"in": frozenset()}, "writer": {"in": READ, "out": ALL}})
    code, reports = doctor(monkeypatch, clusters, written(job, sink("out", "writer")))
    assert (code, refusals(reports)) == (1, [(["source"], "input in")])
    assert [one["bootstrap"] for one in reports] == ["b:1", "b:1"]


def test_each_sink_is_tried_with_its_own_credentials(monkeypatch, job: Path):
    one = {"in": READ, "out": ALL, "other": ALL}
    clusters = Clusters({"reader": {"in": READ}, "one": one, "two": {"other": READ}})
    written(job, sink("out", "one"), sink("other", "two"))
    code, reports = doctor(monkeypatch, clusters, job)
    assert (code, refusals(reports)) == (1, [(["sink 'other'"], "output other")])


def test_only_the_sink_whose_transactions_carry_the_offsets_must_read_the_inputs(
    monkeypatch, job: Path
):
    """It is the first one of the driver that is exactly-once and on the source's cluster."""
    rights = {"in": READ, "out": ALL, "other": ALL, "plain": ALL}
    clusters = Clusters(dict.fromkeys(("reader", "one", "two", "plain"), rights))
    plain = sink("plain", "plain", 'guarantee = "at-least-once"')
    written(job, plain, sink("out", "one"), sink("other", "two"))
    assert doctor(monkeypatch, clusters, job)[0] == 0
    assert {user: wanted.inputs for user, wanted in clusters.asked} == {
        "plain": (),
        "one": ("in",),
        "two": (),
        "reader": ("in",),
    }
    assert {user: wanted.transactions for user, wanted in clusters.asked} == {
        "plain": False,
        "one": True,
        "two": True,
        "reader": False,
    }


def test_a_table_says_whose_settings_it_is_about(monkeypatch, job: Path):
    clusters = Clusters({"reader": {"in": READ}, "writer": {"in": READ, "out": ALL}})
    monkeypatch.setattr(probe, "gather", clusters.gather)
    written(job, sink("out", "writer"))
    text = CliRunner().invoke(command, ["--job", str(job)]).stdout
    assert {"b:1: sink 'out'", "b:1: source"} <= {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize("user", ["reader", "writer"])
def test_a_pattern_of_topics_is_not_said_to_be_checked(monkeypatch, job: Path, user: str):
    clusters = Clusters({"reader": {}, "writer": {"out": ALL}})
    source = 'kafka.bootstrap.servers = "b:1"\nsubscribePattern = "flights-.*"\n'
    written(job, sink("out", "writer"), source=source, user=user)
    code, reports = doctor(monkeypatch, clusters, job)
    (of_source,) = (one for one in reports if "source" in one["used_by"])
    (row,) = (row for row in of_source["checks"] if row["level"] == "warn")
    assert (code, row["check"]) == (0, "inputs")
    assert "subscribePattern=flights-.*" in row["found"]
    assert "--input" in row["option"]


def test_the_rows_that_a_driver_leaves_out_are_named_where_its_checks_are_promised():
    driver = RunOptions(
        app_id="flights",
        checkpoint=CheckpointLocation("state"),
        sources=(),
        sinks=(),
        checkpoint_timeout_s=600.0,
        restart_budget_s=60.0,
    )
    facts = ClusterFacts(bootstrap="b:1", brokers={1: "4.4"})
    asked = Wanted(application_id="flights"), driver.wanted
    of_doctor, of_driver = ({row.check for row in judge(facts, one)} for one in asked)
    left_out = of_doctor - of_driver
    assert left_out
    promises = {
        "docs/operations.md": "A driver makes the same checks at its start.*",
        "CHANGELOG.md": r"- `sparkonce doctor`: .*\n.*",
        "connectors/cli/doctor.py": "(?s)Check a cluster before .*?\n\n",
    }
    for page, promise in promises.items():
        said = re.search(promise, (ROOT / page).read_text("utf-8"))
        assert said is not None, page
        assert all(row in said[0] for row in left_out), (page, said[0], left_out)
