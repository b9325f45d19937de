"""`sparkonce transactions`: what a repair may touch, and what it must leave to somebody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from connectors.cli.transactions import command
from connectors.kafka.sink.kafka_committer import KafkaCommitter
from connectors.kafka.sink.kafka_sink import KafkaSink
from connectors.operations import transaction_reader
from connectors.wire.coordinator_wire import CoordinatorWire
from connectors.wire.partition_leaders import Unended
from tests.simulation.end_txn_table import State
from tests.simulation.fake_cluster import FakeCluster, Transaction
from tests.simulation.fake_wire import FakeWire
from tests.simulation.virtual_clock import VirtualClock
from tests.unit.samples import committable, decision
from transactions.checkpoint_location import BOUND_TO
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    FencedError,
    HiddenCommitError,
    IdentityMismatchError,
    SparkOnceError,
)
from transactions.log_backend import LocalFileBackend
from transactions.log_state import LogState

IDENTITY = {"sinks": orjson.dumps({"out": {"topic": "out"}}).decode()}


class Pipeline:
    """A checkpoint folder whose driver is gone, and the cluster of its sink.

    Attributes:
        before: called with each request before the cluster answers it.
        unended: what hides the last decision from readers, or why nobody can say it.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "state"
        self.backend = LocalFileBackend(self.folder / "decisions")
        self.clock = VirtualClock()
        self.cluster = FakeCluster(self.clock.now_ms)
        self.before: Callable[[str], None] = lambda _: None
        self.log = self.driver()
        monkeypatch.setattr(transaction_reader, "KafkaCommitter", self._committer)
        self.unended: list[Unended] | BrokerUnavailableError = []
        monkeypatch.setattr(transaction_reader.TransactionReader, "hidden", self._hidden)

    def driver(self, accepted: tuple[str, ...] = ()) -> DecisionLog:
        """Start a driver on the folder."""
        return DecisionLog.open(
            self.backend, application_id="app", identity=IDENTITY, check=lambda _: accepted
        )

    def state(self) -> LogState:
        return read_log(self.backend)

    def id_of(self, run: int, process: str = "p") -> str:
        return f"app.{self.log.log_id}.{run}.{process}.0"

    def opened(self, name: str, state: State = State.ONGOING) -> Transaction:
        made = Transaction(name, 7, 3, 60_000, state)
        self.cluster.transactions[name] = made
        return made

    def run(self, *words: str, say_yes: bool = True) -> Result:
        place = ("--checkpoint", str(self.folder), "--bootstrap", "fake:9092")
        return CliRunner().invoke(command, [*words, *place, *(["--yes"] if say_yes else [])])

    def _committer(self, name: str, settings: dict[str, str]) -> KafkaCommitter:
        made = KafkaCommitter(name, settings)
        made._wire = CoordinatorWire(settings)
        made._wire._wire = FakeWire(self._exchange, self.clock)
        return made

    def _hidden(self, *_: object) -> dict[str, list[Unended]]:
        if isinstance(self.unended, BrokerUnavailableError):
            raise self.unended
        return {"out": self.unended}

    def _exchange(self, request: Any) -> Any:
        self.before(type(request).__name__)
        return self.cluster.handle(request)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(tmp_path, monkeypatch)


def test_a_repair_forgets_no_duplicates_that_a_person_has_accepted(pipeline: Pipeline):
    """Without them the next start would be refused again."""
    pipeline.driver(accepted=("8.0.00112233aabbccdd",))
    lingering = pipeline.opened(pipeline.id_of(1))
    done = pipeline.run("abort")
    assert done.exit_code == 0, done.exception
    assert lingering.state is State.EMPTY
    assert pipeline.state().accepted == ("8.0.00112233aabbccdd",)


# -- whose transactions a repair aborts ------------------------------------------------------------


def settled_at(pipeline: Pipeline, number: int) -> None:
    pipeline.log.decide(decision(number, committables=()))


def is_refused(pipeline: Pipeline, *, words: tuple[str, ...] = ("abort",)) -> None:
    """Refused before the Fence: nobody was stopped, and nothing was aborted."""
    before, tail = dict(pipeline.cluster.transactions), pipeline.state().tail
    states = {name: one.state for name, one in before.items()}
    error = pipeline.run(*words).exception
    assert isinstance(error, IdentityMismatchError), error
    assert "another copy" in error.cause
    assert pipeline.state().tail == tail
    assert {name: one.state for name, one in pipeline.cluster.transactions.items()} == states


def test_an_old_copy_of_the_folder_aborts_nothing_of_the_pipeline_that_went_on(pipeline: Pipeline):
    """Its run has the same log id and number there, so its transactions look like ours."""
    settled_at(pipeline, 7)
    pipeline.opened(pipeline.id_of(1), State.COMPLETE_COMMIT)
    pipeline.opened(pipeline.id_of(1, "decided0there"))
    pipeline.cluster.groups[pipeline.id_of(1), "in-0"] = (8, f"8.0.{'ef' * 8}")
    is_refused(pipeline)


def test_an_open_transaction_of_a_run_that_the_log_does_not_have_is_not_ours(pipeline: Pipeline):
    pipeline.opened(pipeline.id_of(1))
    pipeline.opened(pipeline.id_of(12))
    is_refused(pipeline)


@pytest.mark.parametrize("words", [("commit",), ("resolve", "7.0.t", "--accept-loss")])
def test_no_repair_settles_an_old_copy(pipeline: Pipeline, words: tuple[str, ...]):
    pipeline.log.decide(decision(7))
    pipeline.opened(pipeline.id_of(1), State.COMPLETE_COMMIT)
    pipeline.cluster.groups[pipeline.id_of(1), "in-0"] = (8, f"8.0.{'ef' * 8}")
    is_refused(pipeline, words=words)


def test_output_of_another_log_does_not_protect_what_lingers_of_this_one(pipeline: Pipeline):
    """The pipeline goes on from a savepoint elsewhere; readers wait for what the old run left."""
    settled_at(pipeline, 7)
    lingering = pipeline.opened(pipeline.id_of(1))
    other = "app.0123abcd.12.p.0"
    pipeline.opened(other, State.COMPLETE_COMMIT)
    for group in (other, "app"):
        pipeline.cluster.groups[group, "in-0"] = (99, f"9.0.{'ef' * 8}")
    done = pipeline.run("abort")
    assert done.exit_code == 0, done.exception
    assert lingering.state is State.EMPTY


def test_a_driver_that_commits_during_the_look_makes_no_old_copy(pipeline: Pipeline):
    """The log that was read is old then, and not the folder: everything is read again."""
    settled_at(pipeline, 7)
    lingering = pipeline.opened(pipeline.id_of(1))
    pipeline.opened(pipeline.id_of(1, "q"), State.COMPLETE_COMMIT)
    token = f"8.0.{'ef' * 8}"

    def commits(request: str) -> None:
        if request == "OffsetFetchRequest" and pipeline.state().decision == decision(
            7, committables=()
        ):
            pipeline.log.decide(decision(8, committables=(committable(token=token),)))
            pipeline.log.settle()
            pipeline.cluster.groups[pipeline.id_of(1, "q"), "in-0"] = (8, token)

    pipeline.before = commits
    done = pipeline.run("abort")
    assert done.exit_code == 0, done.exception
    assert lingering.state is State.EMPTY


class Busy:
    """A driver that decides and commits one checkpoint before each answer about transactions."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self.number, self.is_fenced = pipeline, 7, False
        self._group = pipeline.id_of(1, "q")
        pipeline.opened(self._group, State.COMPLETE_COMMIT)
        self("ListTransactionsRequest")
        pipeline.before = self

    def __call__(self, request: str) -> None:
        if request != "ListTransactionsRequest" or self.is_fenced:
            return
        self.number += 1
        token = f"{self.number}.0.{self.number:016x}"
        one = committable(checkpoint_id=self.number, token=token)
        try:
            self._pipeline.log.decide(decision(self.number, committables=(one,)))
        except FencedError:
            self.is_fenced = True
        else:
            self._pipeline.cluster.groups[self._group, "in-0"] = (self.number, token)


@pytest.mark.parametrize("words", [("abort",), ("resolve", "--accept-state")])
def test_x15_a_driver_that_commits_all_the_time_is_fenced_by_a_repair(
    pipeline: Pipeline, words: tuple[str, ...]
):
    lingering = pipeline.opened(pipeline.id_of(1))
    driver = Busy(pipeline)
    done = pipeline.run(*words)
    assert done.exit_code == 0, done.exception
    assert driver.is_fenced
    assert lingering.state is (State.EMPTY if words == ("abort",) else State.ONGOING)
    with pytest.raises(FencedError):
        pipeline.log.check_newest()


@pytest.mark.parametrize("words", [("abort",), ("resolve", "--accept-state")])
def test_an_old_copy_that_somebody_writes_is_repaired_by_nobody(
    pipeline: Pipeline, words: tuple[str, ...]
):
    """No look before the Fence can tell its newer output from what its driver commits."""
    lingering = pipeline.opened(pipeline.id_of(1))
    pipeline.opened(pipeline.id_of(1, "r"), State.COMPLETE_COMMIT)
    pipeline.cluster.groups[pipeline.id_of(1, "r"), "in-0"] = (1000, f"1000.0.{'ef' * 8}")
    driver = Busy(pipeline)
    error = pipeline.run(*words).exception
    assert isinstance(error, IdentityMismatchError), error
    assert f"last in the log: checkpoint {driver.number - 1} " in error.where
    assert lingering.state is State.ONGOING
    assert pipeline.state().resolved == {}


def test_a_cluster_without_transactions_of_the_log_is_asked_for_no_group(pipeline: Pipeline):
    """A sink with a lower guarantee has none; its principal may have no right on the group."""
    pipeline.log.decide(decision(7))
    asked: list[str] = []
    pipeline.before = asked.append
    done = pipeline.run("resolve", "--accept-state")
    assert done.exit_code == 0, done.exception
    assert set(asked) == {"ListTransactionsRequest"}


@pytest.mark.parametrize("after", [0, 1])
def test_a_driver_that_takes_over_from_the_command_keeps_its_transactions(
    pipeline: Pipeline, after: int
):
    names = [pipeline.id_of(1), pipeline.id_of(1, "q")]
    for name in names:
        pipeline.opened(name)

    def takes_over(request: str) -> None:
        """After the command's Fence: when it looks again, or between two aborts."""
        is_ours = pipeline.state().run_epoch == 2
        when = "ListTransactionsRequest" if after == 0 else "InitProducerIdRequest"
        if is_ours and request == when:
            pipeline.driver()
            pipeline.opened(pipeline.id_of(3))

    pipeline.before = takes_over
    error = pipeline.run("abort").exception
    assert isinstance(error, FencedError), error
    states = [pipeline.cluster.transactions[name].state for name in names]
    assert states.count(State.ONGOING) == 2 - after
    assert pipeline.cluster.transactions[pipeline.id_of(3)].state is State.ONGOING


# -- what is shown --------------------------------------------------------------------------------


def test_the_last_decided_checkpoint_is_shown_also_when_nothing_of_it_is_left(pipeline: Pipeline):
    """After a power cut a person asks whether a batch was decided; a settled one has no row."""

    def shown() -> tuple[str, int | None]:
        fields = orjson.loads(pipeline.run("list", "--json", say_yes=False).stdout)
        return pipeline.run("list", say_yes=False).stdout, fields["checkpoint"]

    table, number = shown()
    assert "last decided checkpoint: none" in table
    assert number is None
    pipeline.log.decide(decision(7))
    table, number = shown()
    assert "last decided checkpoint: 7" in table
    assert "left to prove" not in table
    pipeline.log.settle()
    table, number = shown()
    assert "last decided checkpoint: 7" in table
    assert "Nothing of the last checkpoint is left to prove, and no transaction is open." in table
    assert number == 7


def test_without_a_broker_nothing_is_said_about_open_transactions(pipeline: Pipeline):
    pipeline.log.decide(decision(7))
    pipeline.log.settle()
    done = CliRunner().invoke(command, ["list", "--checkpoint", str(pipeline.folder)])
    assert done.exit_code == 0, done.exception
    assert "left to prove." in done.stdout


# -- what readers do not see yet -------------------------------------------------------------------

UNASKED = BrokerUnavailableError("No broker answered.", where="out-3: no leader")
HIDDEN = [Unended("out-3", 7, 3, 1, 42)]


@pytest.mark.parametrize(
    ("unended", "kind"), [(UNASKED, BrokerUnavailableError), (HIDDEN, HiddenCommitError)]
)
def test_nothing_is_aborted_or_settled_that_readers_may_not_see(
    pipeline: Pipeline, unended: Any, kind: type[SparkOnceError]
):
    """An abort under the same producer id would take the committed records along."""
    name = pipeline.id_of(1)
    number, mine = 7, committable(checkpoint_id=7, transactional_id=name, token="7.0.t")
    pipeline.log.decide(decision(number, committables=(mine,)))
    commits = pipeline.folder / "spark/commits"
    commits.mkdir(parents=True)
    (commits / str(number)).write_text("v1\n{}")
    following = pipeline.opened(name)
    pipeline.unended = unended
    assert pipeline.run("list", say_yes=False).exit_code == 0
    assert isinstance(pipeline.run("abort").exception, kind)
    assert following.state is State.ONGOING
    assert pipeline.state().decision == pipeline.log.state.decision
    pipeline.unended = []
    assert pipeline.run("abort").exit_code == 0
    assert following.state is State.EMPTY
    assert pipeline.state().written == (mine,)


@pytest.mark.parametrize("state", [State.ONGOING, State.COMPLETE_COMMIT])
@pytest.mark.parametrize(
    ("unended", "kind"), [(UNASKED, BrokerUnavailableError), (HIDDEN, HiddenCommitError)]
)
def test_a_commit_that_readers_may_not_see_is_no_success(
    pipeline: Pipeline, state: State, unended: Any, kind: type[SparkOnceError]
):
    """A start refuses to go on then: the command says the same, also if nothing is left to do."""
    name = pipeline.id_of(1)
    mine = committable(checkpoint_id=7, transactional_id=name, token="7.0.t")
    pipeline.log.decide(decision(7, committables=(mine,)))
    decided = pipeline.opened(name, state)
    decided.start_ms = mine.start_time_ms
    pipeline.unended = unended
    done = pipeline.run("commit")
    assert isinstance(done.exception, kind), done.exception
    assert done.exit_code == 1
    assert "out-3" in done.exception.where
    assert decided.state is State.COMPLETE_COMMIT
    if kind is HiddenCommitError:
        assert "write-markers" in done.exception.option
    said = "1 transaction(s) committed.\n" if state is State.ONGOING else ""
    assert done.stdout == said
    pipeline.unended = []
    assert pipeline.run("commit").stdout == "Nothing is pending.\n"


# -- what a person decides -------------------------------------------------------------------------


def two_decided(pipeline: Pipeline) -> tuple[str, str]:
    """Decide two transactions: the broker has aborted the first, and does not know the second."""
    aborted, unknown = pipeline.id_of(1), pipeline.id_of(1, "q")
    mine = [
        committable(checkpoint_id=7, transactional_id=name, token=f"7.{number}.t")
        for number, name in enumerate((aborted, unknown))
    ]
    pipeline.log.decide(decision(7, committables=tuple(mine)))
    pipeline.opened(aborted, State.COMPLETE_ABORT).start_ms = mine[0].start_time_ms
    return aborted, unknown


@pytest.mark.parametrize("verdict", ["accept-loss", "replay"])
def test_without_an_id_only_what_is_proven_aborted_is_resolved(pipeline: Pipeline, verdict: str):
    """An unknown one can be in the output: the proof has expired, or another cluster has it."""
    two_decided(pipeline)
    done = pipeline.run("resolve", f"--{verdict}")
    assert done.exit_code == 0, done.exception
    assert pipeline.state().resolved == {"7.0.t": verdict}
    assert "1 transaction(s) with 10 records" in done.stdout
    assert "unless it can still prove or commit them" in done.stdout


def test_an_unknown_one_needs_its_id(pipeline: Pipeline):
    _, unknown = two_decided(pipeline)
    assert pipeline.run("resolve", "--accept-loss").exit_code == 0
    tail = pipeline.state().tail
    error = pipeline.run("resolve", "--accept-loss").exception
    assert isinstance(error, ConfigurationError), error
    assert unknown in error.where
    assert "can be in the output" in error.cause
    assert "resolve ID --accept-loss" in error.option
    assert "--job" in error.option
    assert pipeline.state().tail == tail  # nobody was fenced
    done = pipeline.run("resolve", unknown, "--replay")
    assert done.exit_code == 0, done.exception
    assert pipeline.state().resolved == {"7.0.t": "accept-loss", "7.1.t": "replay"}
    error = pipeline.run("resolve", "--replay").exception
    assert isinstance(error, ConfigurationError)
    assert "nothing to resolve" in error.what


# -- a folder and its log --------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["list", "commit", "abort"])
def test_a_log_that_is_not_the_folders_is_refused(pipeline: Pipeline, word: str):
    """What Spark has finished in the folder would settle what is pending in the log."""
    bound = pipeline.folder / BOUND_TO
    bound.write_text("0123abcd")
    tail = pipeline.state().tail
    error = pipeline.run(word, say_yes=word != "list").exception
    assert isinstance(error, IdentityMismatchError), error
    assert "the folder belongs to the log 0123abcd" in error.cause
    assert pipeline.state().tail == tail
    bound.write_text(pipeline.log.log_id)
    assert pipeline.run(word, say_yes=word != "list").exit_code == 0


def test_sinks_of_another_job_file_are_refused(pipeline: Pipeline):
    other = KafkaSink(bootstrap_servers="fake:9092", topic="other", name="other")
    with pytest.raises(ConfigurationError, match="its sinks differ") as refused:
        transaction_reader.TransactionReader(str(pipeline.folder), {}, {"other": other})
    error = refused.value
    assert str(pipeline.folder) in error.where
    assert "'out'" in error.where
    assert "'other'" in error.where
    assert "of another pipeline" in error.cause
    assert f"checkpoint={pipeline.folder}" in error.option
