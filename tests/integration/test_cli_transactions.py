"""`sparkonce transactions` as an operator types it, beside logs and brokers that are real."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.both_halves import KafkaBothHalves
from tests.integration.job_process import PATIENCE_S
from tests.integration.pipeline_process import Pipeline, pipeline_on
from tests.integration.wire_helpers import begin, eventually, open_producer, soon, values
from tests.pages import block, commands, replaced
from tests.tiers import long, sampled
from transactions.decision_log import DecisionLog, read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_entries import Decision
from transactions.log_state import LogState
from transactions.recovery import settle_last_decision
from transactions.sink import Attempt, Owner

RECORDS = 80  # two batches of 40


def transactions(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "connectors.cli.main", "transactions", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def listed(*place: str) -> dict[str, Any]:
    done = transactions("list", *place, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def verdicts(*place: str) -> dict[str, str]:
    return {row["transactional_id"]: row["verdict"] for row in listed(*place)["transactions"]}


def log_of(checkpoint: str | Path) -> LogState:
    return read_log(LocalFileBackend(Path(checkpoint) / "decisions"))


# -- a driver that was killed between decision and commit --------------------------------------


@pytest.fixture
def pipeline(bootstrap, topic, application_id, tmp_path) -> Pipeline:
    made = pipeline_on(bootstrap, topic, tmp_path, application_id)
    made.produce(RECORDS)
    return made


@long
def test_an_operator_commits_what_a_killed_driver_had_decided(pipeline: Pipeline):
    place = ("--checkpoint", pipeline.checkpoint, "--bootstrap", pipeline.bootstrap)
    code, run = pipeline.run_once(crash_at="decision_durable@1")
    assert code == -signal.SIGKILL, run.text()
    before = log_of(pipeline.checkpoint)
    assert before.decision is not None
    decided = {one.transactional_id for one in before.decision.committables}

    found = listed(*place)
    assert (found["application"], found["checkpoint"]) == (pipeline.application_id, 1)
    assert found["run_alive"] is False
    rows = found["transactions"]
    assert {row["transactional_id"] for row in rows} == decided
    assert {row["verdict"] for row in rows} == {"pending"}
    assert {row["state"] for row in rows} == {"Ongoing"}
    assert {row["sink"] for row in rows} == {pipeline.copies, pipeline.counts}
    # the auditor's reader would wait for them: this one reads up to what is stable
    assert len(values(pipeline.bootstrap, pipeline.copies)) == RECORDS - 40
    table = transactions("list", *place)
    assert table.returncode == 0
    assert all(name in table.stdout for name in decided)
    _it_describes_one(rows[0], place)

    # a writer of the dead run left a transaction that no checkpoint owns
    lingering = f"{pipeline.application_id}.{before.log_id}.{before.run_epoch}.gone.0"
    writer = open_producer(pipeline.bootstrap, lingering)
    begin(writer, pipeline.copies, ["never decided"])
    _decided_ones_are_never_aborted(place, sorted(decided), lingering)

    done = transactions("commit", *place, "--yes")
    assert (done.returncode, done.stdout) == (0, f"{len(decided)} transaction(s) committed.\n")
    pipeline.audit()
    assert set(verdicts(*place).values()) == {"committed"}
    assert transactions("commit", *place).stdout == "Nothing is pending.\n"

    _a_restarted_pipeline_goes_on(pipeline, place)


def _it_describes_one(row: dict[str, Any], place: tuple[str, ...]) -> None:
    done = transactions("describe", row["transactional_id"], *place, "--json")
    (described,) = orjson.loads(done.stdout)
    assert described["marker"]["group"]
    assert described["marker"]["metadata"] != described["token"]
    assert described["partitions"]
    assert transactions("describe", "no-such-id", *place).returncode == 2


def _decided_ones_are_never_aborted(
    place: tuple[str, ...], decided: list[str], lingering: str
) -> None:
    tail = log_of(place[1]).tail
    assert verdicts(*place)[lingering] == "lingering"
    refused = transactions("abort", decided[0], *place, "--yes")
    assert refused.returncode == 2
    for part in ("never aborted", decided[0], "transactions commit"):
        assert part in refused.stderr
    assert transactions("abort", *place, stdin="n\n").returncode == 1
    assert log_of(place[1]).tail == tail  # nobody was fenced by looking, refusing or asking

    done = transactions("abort", *place, "--yes")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"aborted: {lingering}", "1 transaction(s) aborted."],
    )
    assert verdicts(*place) == dict.fromkeys(decided, "pending")


def _a_restarted_pipeline_goes_on(pipeline: Pipeline, place: tuple[str, ...]) -> None:
    pipeline.produce(40)
    with pipeline.running(trigger="0 seconds") as run:
        run.until(lambda one: 2 in one.checkpoints())
        assert run.replays() == [1]
        # Forty records can be two batches: partitions show theirs each in its own moment (seen).
        eventually(lambda: len(values(pipeline.bootstrap, pipeline.copies)), pipeline.produced)
        assert listed(*place)["run_alive"] is True
        # none when it has been idle for long enough: then the log itself says so
        eventually(
            lambda: {r["verdict"] for r in listed(*place)["transactions"]} <= {"committed"}, True
        )
        # looking disturbed nobody
        pipeline.produce(40)
        eventually(lambda: len(values(pipeline.bootstrap, pipeline.copies)), pipeline.produced)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0, run.text()
    pipeline.audit()


# -- without Spark: a log, a sink and a broker -------------------------------------------------


class Decided:
    """A checkpoint whose only transaction is written, prepared and decided; its driver is gone."""

    def __init__(self, bootstrap: str, topic: str, application_id: str, checkpoint: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.place = ("--checkpoint", checkpoint, "--bootstrap", bootstrap)
        options = KafkaSink(bootstrap_servers=bootstrap, topic=topic, name="out")
        self.sink = KafkaBothHalves(options, timeout_ms=60_000, checkpoint_timeout_s=30)
        self.backend = LocalFileBackend(Path(checkpoint) / "decisions")
        self.log = DecisionLog.open(
            self.backend,
            application_id=application_id,
            identity={"sinks": orjson.dumps({"out": {"topic": topic}}).decode()},
        )
        owner = Owner(
            application_id=application_id, log_id=self.log.log_id, run_epoch=self.log.run_epoch
        )
        attempt = Attempt(owner=owner, checkpoint_id=0, subtask=0, attempt_id="1.1")
        transaction = self.transaction = self.sink.begin_transaction(attempt)
        batch = pa.RecordBatch.from_pydict({"value": [b"one"]}, pa.schema([("value", pa.binary())]))
        self.sink.invoke(transaction, batch)
        committable = self.sink.pre_commit(transaction)
        assert committable is not None
        (self.committable,) = self.sink.check_prepared([committable], soon())
        self.log.decide(
            Decision(
                checkpoint_id=0,
                query_id="q",
                generation=0,
                start_offsets=(),
                end_offsets=(),
                committables=(self.committable,),
            )
        )

    @property
    def name(self) -> str:
        return self.committable.transactional_id


@pytest.fixture
def decided(bootstrap, topic, application_id, checkpoint) -> Iterator[Decided]:
    made = Decided(bootstrap, topic(1, "out"), application_id, checkpoint)
    yield made
    made.sink.close()


@pytest.mark.parametrize("verdict", sampled(["aborted", "unknown"], "unknown"))
def test_a_lost_transaction_is_a_persons_decision(decided: Decided, verdict: str):
    """A broker knows how a transaction ended, until somebody takes its id for the next one."""
    if verdict == "aborted":
        decided.sink.abort(decided.transaction)
    else:
        with CoordinatorWire({"bootstrap.servers": decided.bootstrap}) as operator:
            operator.fence(decided.name, 60_000, soon())
    (row,) = listed(*decided.place)["transactions"]
    assert row["verdict"] == verdict

    lost = transactions("commit", *decided.place, "--yes")
    assert lost.returncode == 1
    assert lost.stderr.count("TransactionLostError") == 1
    assert decided.name in lost.stderr
    assert "transactions resolve" in lost.stderr

    assert transactions("resolve", *decided.place, "--yes").returncode == 2
    tail = log_of(decided.place[1]).tail
    page = block("docs/operations.md", "transactions resolve --accept-loss")
    here = {"state/flights": decided.place[1], "localhost:9092": decided.bootstrap}
    (words,) = map(shlex.split, commands(replaced(page, here)))
    if verdict == "unknown":
        refused = transactions(*words[2:], stdin="y\n")
        assert refused.returncode == 2
        assert decided.name in refused.stderr
        words.append(decided.name)
    assert transactions(*words[2:]).returncode == 1
    assert log_of(decided.place[1]).tail == tail
    done = transactions(*words[2:], stdin="y\n")
    assert done.returncode == 0, done.stderr
    assert "1 transaction(s) with 1 records resolved: accept-loss." in done.stdout
    state = log_of(decided.place[1])
    assert state.resolved == {decided.committable.token: "accept-loss"}
    assert verdicts(*decided.place) == {decided.name: "resolved"}
    again = transactions("resolve", "--replay", *decided.place, "--yes")
    assert again.returncode == 2
    assert "nothing to resolve" in again.stderr

    log = DecisionLog.open(
        decided.backend, application_id=state.application_id, identity=state.identity
    )
    assert settle_last_decision(log, {"out": decided.sink}, soon()).lost == []
    assert values(decided.bootstrap, decided.topic) == []


def test_x21_another_logs_and_another_applications_transactions_are_left_alone(
    decided: Decided, application_id: str
):
    """One application id is a prefix of the other; a second log has the same application."""
    other_log = f"{application_id}.0therlog.1.p.0"
    stranger = f"{application_id}-2.{decided.log.log_id}.1.p.0"
    writers = [open_producer(decided.bootstrap, name) for name in (other_log, stranger)]
    for writer in writers:
        begin(writer, decided.topic, ["kept"])

    assert verdicts(*decided.place) == {decided.name: "pending", other_log: "other log"}
    refused = transactions("abort", other_log, *decided.place, "--yes")
    assert refused.returncode == 2
    assert "another checkpoint of the same application" in refused.stderr
    assert transactions("abort", *decided.place, "--yes").stdout == "Nothing lingers.\n"

    assert transactions("commit", *decided.place, "--yes").returncode == 0
    for writer in writers:
        writer.commit_transaction(20)
    eventually(lambda: values(decided.bootstrap, decided.topic), ["kept", "kept", "one"])


@long  # `unit/test_transaction_table.py` has the verdict in `make test`
def test_b6_what_another_client_calls_its_transactions_is_not_ours_to_abort(
    decided: Decided, application_id: str
):
    """Its ids begin like ours, one even with the id of our log; they have not our shape."""
    names = [f"{application_id}.billing", f"{application_id}.{decided.log.log_id}.billing"]
    writers = [open_producer(decided.bootstrap, name) for name in names]
    for writer in writers:
        begin(writer, decided.topic, ["kept"])
    place = decided.place

    strangers = dict.fromkeys(names, "stranger's")
    assert verdicts(*place) == {decided.name: "pending", **strangers}
    assert all(name in transactions("list", *place).stdout for name in names)
    for name in names:
        refused = transactions("abort", name, *place, "--yes")
        assert refused.returncode == 2, refused.stdout
        for part in (name, "stranger's", "of another client"):
            assert part in refused.stderr
    assert transactions("commit", *place, "--yes").returncode == 0
    assert transactions("abort", *place, "--yes").stdout == "Nothing lingers.\n"

    for writer in writers:
        writer.commit_transaction(20)
    eventually(lambda: values(decided.bootstrap, decided.topic), ["kept", "kept", "one"])


@long
def test_wrong_usage_touches_nothing(decided: Decided, tmp_path: Path):
    absent = tmp_path / "absent"
    cases = (
        ("list",),
        ("list", "--checkpoint", str(absent)),
        ("commit", "--checkpoint", decided.place[1], "--yes"),
        ("list", "--checkpoint", decided.place[1], "--kafka", "client.id=me"),
        ("list", "--job", str(absent)),
    )
    for arguments in cases:
        done = transactions(*arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    assert not absent.exists()

    alone = transactions("list", "--checkpoint", decided.place[1], "--json")
    assert alone.returncode == 0
    assert "No broker was asked" in alone.stderr
    (row,) = orjson.loads(alone.stdout)["transactions"]
    assert (row["verdict"], row["proof"]) == ("unknown", "no broker was asked")
    assert transactions("commit", *decided.place, "--yes").returncode == 0
