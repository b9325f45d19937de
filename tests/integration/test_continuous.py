"""The two-phase matrix in continuous mode: a real broker, a real barrier stage, real SIGKILLs.

The same stories as for micro-batches, told by the same independent readers. Between two runs new
records arrive, so that every run has a checkpoint to die in.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from connectors.kafka.source.offsets import parse_offsets
from connectors.testing.run import Run, running
from connectors.wire.coordinator_wire import CoordinatorWire
from tests.auditor import checkers
from tests.auditor.reader import Follower, read_committed
from tests.integration.job_process import PATIENCE_S
from tests.integration.metrics_view import end_of, group_offset, open_transactions, scraped
from tests.tiers import long, sampled
from tests.waiting import until
from transactions.clock import Deadline
from transactions.decision_log import read_log
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
RECORDS = 40


@dataclass
class Copy:
    """Topics, checkpoint and processes of one test.

    Attributes:
        address: of the checkpoint, if it does not lie in the folder.
        environment: returns the variables of the next process.
    """

    bootstrap: str
    app: str
    source: str
    output: str
    folder: Path
    produced: int = 0
    address: str = ""
    environment: Callable[[], dict[str, str]] = dict

    def produce(self, records: int = RECORDS) -> None:
        """Append records with unique values, spread over the partitions."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for number in range(self.produced, self.produced + records):
            producer.produce(self.source, b"%08d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        self.produced += records

    @contextlib.contextmanager
    def running(
        self, *, crash_at: str = "", crash_signal: str = "KILL", **options: object
    ) -> Iterator[Run]:
        """Start a process; `crash_at` happens once per name and test."""
        arguments = {
            "bootstrap": self.bootstrap,
            "input": self.source,
            "output": self.output,
            "app": self.app,
            "checkpoint": self.address or self.folder / "checkpoint",
            **options,
        }
        command = [sys.executable, "-m", "tests.integration.continuous_main"]
        for name, value in arguments.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        environment = self.environment()
        if crash_at:
            environment["SPARKONCE_CRASH_AT"] = crash_at
            environment["SPARKONCE_CRASH_SIGNAL"] = crash_signal
            environment["SPARKONCE_CRASH_ONCE"] = str(self.folder / f"crashed-{crash_at}")
        with running(command, environment=environment, folder=ROOT) as run:
            yield run

    def run_until_killed(self, crash_at: str, **options: object) -> tuple[int, Run]:
        """Give it work, and wait for the death that comes of it."""
        self.produce()
        with self.running(crash_at=crash_at, **options) as run:
            code = run.wait()
        return code, run

    def run_to_the_end(self, follower: Follower, **options: object) -> Run:
        """Run until everything is visible, then stop it in order."""
        self.produce()
        with self.running(**options) as run:
            follower.until(
                lambda seen: len(seen) >= self.produced or run.process.poll() is not None,
                timeout=PATIENCE_S,
            )
            assert run.stop() == 0, run.text()
        return run

    def audit(self, follower: Follower) -> None:
        """Assert the end state: every record once, in order, and two readers agree."""
        outputs = read_committed(self.bootstrap, self.output)
        inputs = read_committed(self.bootstrap, self.source)
        assert len(inputs) == self.produced
        checkers.assert_exactly_once(
            checkers.history_of(inputs, outputs, identify=lambda record: record.value)
        )
        for partition in range(PARTITIONS):
            mine = [r.value for r in outputs if r.partition == partition]
            assert mine == [r.value for r in inputs if r.partition == partition]
        assert checkers.readers_disagree(follower.drain(), outputs) == []

    def until_fenced(self, run_epoch: int) -> None:
        """Wait until another run has written its Fence."""
        until(lambda: self.log().run_epoch != run_epoch, PATIENCE_S, pause_s=0.1)

    def seen_from_outside(self) -> dict[str, float]:
        """Ask clients that know nothing of the pipeline for what its metrics show as well."""
        decision = self.log().decision
        assert decision is not None
        read = sum(parse_offsets(decision.end_offsets[0]).values())
        end, stable = (
            end_of(self.bootstrap, self.output, PARTITIONS, f"read_{which}")
            for which in ("uncommitted", "committed")
        )
        return {
            "transactions_open": open_transactions(self.bootstrap, self.app),
            "input_lag_records": self.produced - read,
            "output_stable_offset_lag_records": end - stable,
        }

    def log(self) -> LogState:
        """Read the decision log."""
        return read_log(LocalFileBackend(self.folder / "checkpoint" / "decisions"))


@pytest.fixture
def copy(bootstrap: str, topic: Callable[..., str], application_id: str, tmp_path: Path) -> Copy:
    return Copy(
        bootstrap=bootstrap,
        app=application_id,
        source=topic(PARTITIONS, "source"),
        output=topic(PARTITIONS, "output"),
        folder=tmp_path,
    )


def frozen_worker(run: Run) -> psutil.Process:
    """Wait for the worker that stopped itself at its crash point."""
    deadline = Deadline(PATIENCE_S)
    while True:
        assert run.process.poll() is None, run.text()
        assert not deadline.expired(), run.text()
        for one in psutil.Process(run.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() == psutil.STATUS_STOPPED:
                    return one
        deadline.pause(0.05)


def scraped_until(
    run: Run, outside: Callable[[], dict[str, float]], **expected: float
) -> dict[str, float]:
    """Scrape until the metrics have these values, and agree with what is seen from outside.

    A scrape shows a reading of a second ago at most, and markers of a commit need a moment.
    """
    deadline = Deadline(30)
    while True:
        wanted = [*outside().items(), *expected.items()]
        found = scraped("".join(run.errors))
        if all(found.get(name) == value for name, value in wanted):
            assert found["broker_reading_failures_total"] == 0
            return found
        assert not deadline.expired(), f"{wanted} in {found}\n{run.text()}"
        deadline.pause(0.3)


STORIES = {
    "x1_x2_x3_task_in_phase_1": ["records_queued", "records_flushed", "offsets_sent"],
    "x4_x5_x8_task_in_phase_2": ["acknowledged", "commit_received", "transaction_ended"],
    "x3_x4_x5_x8_driver": ["prepared_checked", "decision_durable", "one_committed"],
    "f4_driver_in_recovery_too": ["decision_durable", "recovery_fenced", "recovery_settled"],
}


@pytest.mark.parametrize(
    "crashes", sampled(STORIES.values(), STORIES["x3_x4_x5_x8_driver"]), ids=STORIES.keys()
)
def test_a_sigkill_at_each_step_of_continuous_mode(copy: Copy, crashes: list[str], request):
    tell(copy, crashes, by_task="_task_" in request.node.callspec.id)


def tell(copy: Copy, crashes: list[str], *, by_task: bool, **options: object) -> None:
    """Die at one point after the other, then run to the end; the options are those of each run."""
    with Follower(copy.bootstrap, copy.output) as follower:
        for crash_at in crashes:
            code, run = copy.run_until_killed(crash_at, **options)
            assert code == (3 if by_task else -signal.SIGKILL), run.text()
        copy.run_to_the_end(follower, **options)
        copy.audit(follower)


@pytest.mark.parity(33, 59, mode="continuous")
def test_a_task_that_dies_is_replaced_by_the_restart_strategy(copy: Copy):
    """The stage starts again in the same process, from the last decision, on new ids.

    Until it dies the task stands still with a decided transaction, and what the metrics say then
    is what the brokers say to others. The endpoint lives on, and tells what happened.
    """
    options = {"restart_strategy": "fixed-delay(attempts=3,delay=0.2 s)", "metrics_port": 0}
    with Follower(copy.bootstrap, copy.output) as follower:
        copy.produce()
        with copy.running(crash_at="commit_received", crash_signal="STOP", **options) as run:
            frozen = frozen_worker(run)
            copy.produce()  # the other task writes on, and nothing of it can be decided
            found = scraped_until(run, copy.seen_from_outside, transactions_open=PARTITIONS)
            decision = copy.log().decision
            assert decision is not None
            assert found["transactions_pending"] == len(decision.committables)
            assert found["input_lag_records"] >= RECORDS
            assert found["output_stable_offset_lag_records"] > 0
            assert found["transactions_pending_oldest_age_seconds"] > 0
            assert found["transactions_open_oldest_age_seconds"] > 0
            assert found["checkpoints_failed_total"] == 0

            frozen.kill()
            follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
            run.until(lambda one: "event=restarted" in one.text())
            copy.produce()
            follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
            found = scraped_until(
                run, copy.seen_from_outside, transactions_open=0, transactions_pending=0
            )
            assert run.stop() == 0, run.text()
        copy.audit(follower)
    assert found["input_lag_records"] == found["output_stable_offset_lag_records"] == 0
    assert group_offset(copy.bootstrap, copy.app, copy.source, PARTITIONS) == copy.produced
    assert found["records_committed_total"] == copy.produced
    assert found["checkpoints_failed_total"] == found["restarts_total"] == 1
    assert found["retries_total"] >= 1
    assert found["transactions_recommitted_total"] == 1
    assert found["recoveries_total"] == 2
    assert found["transactions_swept_total"] >= 1
    completed = found["checkpoints_completed_total"]
    for histogram in ("commit_latency", "checkpoint_duration"):
        assert found[f"{histogram}_seconds_count"] == completed
    # A barrier waits for brokers: it takes more than the call of a function.
    assert found["checkpoint_phase_seconds_sum[write]"] > 0.0005 * completed


@pytest.mark.parity(63)
@long
def test_a_backfill_ends_behind_a_marker_a_death_and_on_an_empty_topic(copy: Copy):
    """Its ends are those of the start; a run that replaces a failed one has them too."""
    backfill = {"trigger": "available-now", "restart_strategy": "fixed-delay(attempts=1,delay=1s)"}
    with copy.running(**backfill) as run:
        assert run.wait() == 0, run.text()
    assert read_committed(copy.bootstrap, copy.output) == []
    producer = Producer(
        {"bootstrap.servers": copy.bootstrap, "transactional.id": f"{copy.app}-input"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(RECORDS):  # the last offset is a marker, and partition 1 is empty
        producer.produce(copy.source, b"%08d" % number, partition=0)
    producer.commit_transaction(30)
    copy.produced = RECORDS
    with Follower(copy.bootstrap, copy.output) as follower:
        with copy.running(crash_at="commit_received", **backfill) as run:
            assert run.wait() == 0, run.text()
        assert "event=restarted" in run.text()
        copy.audit(follower)


@pytest.mark.long
def test_x9_a_lost_transaction_of_continuous_mode_is_healed(copy: Copy):
    """The broker aborts what was decided; the driver reads those offsets again and proves it."""
    with Follower(copy.bootstrap, copy.output) as follower:
        code, run = copy.run_until_killed("decision_durable")
        assert code == -signal.SIGKILL, run.text()
        decision = copy.log().decision
        assert decision is not None
        assert decision.committables
        with CoordinatorWire({"bootstrap.servers": copy.bootstrap}) as operator:
            for one in decision.committables:
                operator.fence(one.transactional_id, one.timeout_ms, Deadline(30))
        run = copy.run_to_the_end(follower)
        assert "event=healed" in run.text()
        copy.audit(follower)


@long
def test_x15_the_newest_continuous_driver_wins(copy: Copy):
    with Follower(copy.bootstrap, copy.output) as follower:
        copy.produce()
        with copy.running() as older:
            follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
            first = copy.log().run_epoch
            with copy.running() as newer:
                copy.until_fenced(first)
                copy.produce()
                assert older.wait() == 3, older.text()
                assert "newer run" in older.text()
                follower.until(lambda seen: len(seen) >= copy.produced, timeout=PATIENCE_S)
                assert newer.stop() == 0, newer.text()
        copy.audit(follower)


@pytest.mark.long
def test_another_parallelism_after_a_restart(copy: Copy):
    """Offsets are ListState: dealt out again to one task, then to two (F8).

    The paths to librdkafka take turns: one reads on where the other stopped, and what both write
    is one output.
    """
    with Follower(copy.bootstrap, copy.output) as follower:
        copy.run_to_the_end(follower, parallelism=2, path="native")
        copy.run_to_the_end(follower, parallelism=1, path="plain")
        copy.run_to_the_end(follower, parallelism=2, path="native")
        copy.audit(follower)


@pytest.mark.long
def test_too_few_slots_are_an_error_at_once(copy: Copy):
    copy.produce()
    with copy.running(parallelism=2, master="local[1]") as run:
        assert run.wait(60) == 3, run.text()
    assert "too few slots" in run.text()
    assert "parallelism=2" in run.text()
