"""`sparkonce doctor` as a person types it, against real brokers. With rights:
test_coordinator_wire_secure.py, on the broker that is started there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from connectors.cluster.local_cluster import LocalCluster
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.integration.job_process import PATIENCE_S
from tests.integration.wire_helpers import begin, open_producer, soon
from tests.tiers import long
from transactions.clock import Deadline

NOBODY = "127.0.0.1:1"


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "connectors.cli.main", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def checks_of(output: str) -> dict[str, dict[str, str]]:
    (cluster,) = orjson.loads(output)["clusters"]
    return {row["check"]: row for row in cluster["checks"]}


def test_a_single_broker_is_usable_with_warnings(bootstrap, topic, application_id):
    source, output = topic(2, "in"), topic(2, "out")
    asked = ("--bootstrap", bootstrap, "--app", application_id)
    asked += ("--input", source, "--output", output)
    found = doctor(*asked, "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    checks = checks_of(found.stdout)
    levels = {name: row["level"] for name, row in checks.items()}
    assert levels["__transaction_state"] == levels[f"output {output}"] == "warn"
    assert "RF 1" in checks["__transaction_state"]["found"]
    for name in (
        "transaction timeout",
        f"input {source}",
        "authorizer",
        f"transactional ids {application_id}.*",
        f"group {application_id}",
        "clock",
    ):
        assert levels[name] == "ok", checks[name]
    assert "ms from us" in checks["clock"]["found"]
    # the transaction that read the clock is over; the teardown of application_id asks as well
    with CoordinatorWire({"bootstrap.servers": bootstrap}) as wire:
        assert wire.list_open(application_id, None, soon()) == []

    table = doctor(*asked)
    assert table.returncode == 0
    assert "warn" in table.stdout
    assert application_id in table.stdout


def test_a_missing_topic_and_a_timeout_above_the_maximum_are_refused(bootstrap):
    found = doctor(
        *("--bootstrap", bootstrap, "--output", "no-such-topic"),
        *("--transaction-timeout", "2000000000", "--json"),
    )
    assert found.returncode == 1
    refused = {n: row for n, row in checks_of(found.stdout).items() if row["level"] == "refuse"}
    assert refused.keys() == {"transaction timeout", "output no-such-topic"}
    assert refused["output no-such-topic"]["option"] == "topic=no-such-topic"
    assert "transaction.max.timeout.ms" in refused["transaction timeout"]["option"]


@pytest.mark.parametrize(
    ("options", "budgets"),
    [
        ('restart_budget = "1 hour"', "; 600 s checkpoint + 3600 s restart"),
        (
            'mode = "continuous"\nbarrier_interval = "800 seconds"',
            "; 800 s interval + 60 s checkpoint + 60 s restart",
        ),
    ],
    ids=["micro-batch", "b7_continuous"],
)
def test_a_job_file_says_what_to_check(
    bootstrap, topic, application_id, tmp_path: Path, options: str, budgets: str
):
    path = tmp_path / "job.toml"
    path.write_text(f"""
        [app]
        id = "{application_id}"
        checkpoint = "state"
        {options}
        [source]
        kafka.bootstrap.servers = "{bootstrap}"
        subscribe = "{topic(1, "in")}"
        [[sink]]
        kafka.bootstrap.servers = "{bootstrap}"
        topic = "{topic(1, "out")}"
    """)
    found = doctor("--job", str(path), "--json")
    assert found.returncode == 1
    checks = checks_of(found.stdout)
    refused = [name for name, row in checks.items() if row["level"] == "refuse"]
    assert refused == ["transaction timeout"]
    assert checks["transaction timeout"]["found"].endswith(budgets)


@pytest.fixture
def short_lived() -> Iterator[LocalCluster]:
    """A broker on which transactions may live for half a minute."""
    with LocalCluster(properties={"transaction.max.timeout.ms": "30000"}) as cluster:
        cluster.create_topic("out")
        yield cluster


def test_a_small_maximum_is_refused_and_an_old_transaction_named(short_lived: LocalCluster):
    bootstrap = short_lived.bootstrap_servers
    settings = {"transaction.timeout.ms": 30_000, "message.timeout.ms": 5_000}
    begin(open_producer(bootstrap, "somebody.else", **settings), "out", ["one"])
    deadline = Deadline(29.0)  # it warns when half of the time has passed
    while True:
        found = doctor("--bootstrap", bootstrap, "--app", "app", "--json")
        assert found.returncode == 1, found.stdout + found.stderr
        checks = checks_of(found.stdout)
        assert checks["transaction timeout"]["level"] == "refuse"
        assert "30000 ms" in checks["transaction timeout"]["found"]
        if checks["open transactions"]["level"] == "warn":
            break
        assert not deadline.expired(), checks["open transactions"]
        deadline.pause(0.2)
    assert "somebody.else" in checks["open transactions"]["found"]


def test_no_broker_is_said_in_four_parts():
    found = doctor("--bootstrap", NOBODY, "--timeout", "2")
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr.startswith("BrokerUnavailableError: ")
    for part in ("where:", "cause:", "look at:", NOBODY):
        assert part in found.stderr


@long
def test_bad_usage(tmp_path: Path):
    settings = tmp_path / "client.properties"
    settings.write_text("# a comment\nsecurity.protocol=NONSENSE\n")
    cases = (
        (),
        ("--bootstrap", NOBODY, "--kafka", "client.id"),
        ("--bootstrap", NOBODY, "--kafka", "acks=1"),
        ("--bootstrap", NOBODY, "--config", str(settings)),
        ("--bootstrap", NOBODY, "--config", str(tmp_path / "absent")),
        ("--job", str(tmp_path / "absent.toml")),
        ("--no-such-option",),
        ("--bootstrap", NOBODY, "--barrier-interval", "-1"),
    )
    for arguments in cases:
        found = doctor(*arguments)
        assert found.returncode == 2, (arguments, found.stdout, found.stderr)
        assert "Traceback" not in found.stderr
