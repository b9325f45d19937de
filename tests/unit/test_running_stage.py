"""The driver's end of a stage against scripted tasks on real sockets."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from connectors.continuous import running_stage
from connectors.continuous.control_channel import (
    Acknowledge,
    Barrier,
    ChannelClosedError,
    Commit,
    Committed,
    ControlChannel,
    Failed,
    Moved,
    Ready,
    Register,
    Start,
    connect,
)
from connectors.continuous.partition_shares import Change
from connectors.continuous.running_stage import RunningStage
from connectors.spark.failures import error_in
from transactions.clock import Deadline
from transactions.errors import (
    CheckpointTimeoutError,
    ConfigurationError,
    PhaseOneError,
    RecordRefusedError,
)

Script = Callable[[ControlChannel, int], Any]
SOON_S = 10.0
AT_ONCE_S = 0.05
BOTH = Change(partitioning={}, readers={0, 1})
ONE = Change(partitioning={}, readers={1})


class OnceSaid(Deadline):
    """Is over at the first look for messages that begins after something was said: the look finds
    it, however busy the machine is.
    """

    def __init__(self, said: threading.Event) -> None:
        super().__init__(SOON_S)
        self._said = said
        self._over = False

    def remaining(self) -> float:
        self._over = self._said.is_set()
        return 0.0 if self._over else AT_ONCE_S

    def expired(self) -> bool:
        return self._over


class Tasks:
    """Tasks that do what a script says, each on a thread."""

    def __init__(self, stage: RunningStage) -> None:
        self.stage = stage
        self._threads = ThreadPoolExecutor(8)
        self.channels: list[ControlChannel] = []
        self.all_ready = threading.Event()
        #: Some task has sent its Ready.
        self.is_ready = threading.Event()

    def open(self, **changes: Any) -> ControlChannel:
        """Connect and register, but do not wait for the answer."""
        channel = connect(self.stage.address, self.stage.key, patience_s=5.0)
        self.channels.append(channel)
        facts = {"stage": self.stage.name, "subtask": 0, "attempt": 0, "host": "here", **changes}
        channel.send(Register(**facts))
        return channel

    def start(self, subtask: int, script: Script) -> Future[Any]:
        """Register, get ready, then follow the script."""

        def run() -> Any:
            channel = self.open(subtask=subtask)
            assert channel.receive() == start_of(subtask)
            channel.send(Ready(transactional_ids=(f"id-{subtask}.0", f"id-{subtask}.1")))
            self.is_ready.set()
            self.all_ready.wait(SOON_S)
            return script(channel, subtask)

        return self._threads.submit(run)

    def start_all(self, *scripts: Script) -> list[Future[Any]]:
        """Start one task per script; each begins with it when all are ready."""
        started = [self.start(subtask, script) for subtask, script in enumerate(scripts)]
        self.stage.await_ready(Deadline(SOON_S))
        self.all_ready.set()
        return started

    def close(self) -> None:
        self.all_ready.set()
        for channel in self.channels:
            channel.close()
        self._threads.shutdown()


def start_of(subtask: int) -> Start:
    return Start(
        application_id="app",
        log_id="log",
        run_epoch=3,
        checkpoint_id=5,
        offsets={f"in-{subtask}": 10 * subtask},
    )


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(running_stage, "_PATIENCE_S", 0.5)
    one = RunningStage("127.0.0.1", 2, error_in)
    one.open(start_of)
    yield one
    one.close()


@pytest.fixture
def tasks(stage):
    all_of_them = Tasks(stage)
    yield all_of_them
    stage.close()
    all_of_them.close()


def until_closed(channel: ControlChannel, _: int = 0) -> list[Any]:
    """Answer nothing; return what came until the driver closed."""
    came = []
    with contextlib.suppress(ChannelClosedError):
        while True:
            came.append(channel.receive())
    return came


def acknowledgement(number: int, subtask: int, **changes: Any) -> Acknowledge:
    facts = {"committable": None, "positions": {f"in-{subtask}": 11}, "lag": 0, "busy_s": 0.5}
    return Acknowledge(checkpoint_id=number, **{**facts, **changes})


def obedient(
    channel: ControlChannel, subtask: int, has_answered: threading.Event | None = None
) -> list[Any]:
    """Be a good task until the driver closes."""
    came = []
    with contextlib.suppress(ChannelClosedError):
        while True:
            message = channel.receive()
            came.append(message)
            if isinstance(message, Barrier):
                channel.send(acknowledgement(message.checkpoint_id, subtask))
            else:
                channel.send(Committed(checkpoint_id=message.checkpoint_id))
            if has_answered is not None:
                has_answered.set()
    return came


def failing(error: Exception) -> str:
    try:
        raise error
    except type(error):
        return traceback.format_exc()


REFUSED = RecordRefusedError("too large", where="out-0", cause="the record", option="max=1")

# --- registration ---------------------------------------------------------------------------


def test_each_task_is_told_its_own_start_and_its_ids_become_known(stage, tasks):
    assert not stage.is_ready
    tasks.start_all(until_closed, until_closed)
    assert stage.is_ready
    assert stage.is_writer("id-0.1")
    assert stage.is_writer("id-1.0")
    assert not stage.is_writer("id-2.0")


def test_strangers_are_refused_and_do_not_keep_the_tasks_out(stage, tasks):
    silent = socket.create_connection(stage.address)
    talking = socket.create_connection(stage.address)
    talking.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises((AuthenticationError, OSError)):
        connect(stage.address, b"another key", patience_s=5.0)
    tasks.start_all(until_closed, until_closed)
    silent.close()
    talking.close()


@pytest.mark.parametrize(
    "changes",
    [{"stage": "an old one"}, {"subtask": 2}, {"subtask": -1}],
    ids=["stage", "too_many", "below"],
)
def test_a_task_of_another_stage_gets_no_start(stage, tasks, changes):
    assert until_closed(tasks.open(**changes)) == []
    tasks.start_all(until_closed, until_closed)


def test_whoever_does_not_register_first_is_refused(stage, tasks):
    for data in (b'["Moved", {}]', b"\x80pickle", b'["Register", {"subtask": 0}]'):
        channel = connect(stage.address, stage.key, patience_s=5.0)
        channel.connection.send_bytes(data)
        assert until_closed(channel) == []
    gone = connect(stage.address, stage.key, patience_s=5.0)
    gone.close()
    tasks.start_all(until_closed, until_closed)


def test_a_second_registration_is_refused_and_the_first_task_goes_on(stage, tasks):
    started = tasks.start_all(obedient, obedient)
    assert until_closed(tasks.open(subtask=1)) == []
    assert len(stage.barrier(5, Deadline(SOON_S), BOTH)) == 2
    stage.close()
    assert [len(one.result(SOON_S)) for one in started] == [1, 1]


def test_a_task_that_registers_after_the_end_is_not_started(stage, tasks):
    """It would write into transactions that nobody prepares, and nobody would stop it."""
    late = connect(stage.address, stage.key, patience_s=5.0)
    stage.close()
    with contextlib.suppress(ChannelClosedError):
        late.send(Register(stage=stage.name, subtask=0, attempt=0, host="here"))
    assert until_closed(late) == []


def test_closing_ends_the_thread_that_accepts(stage):
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "sparkonce-stage"]

    accepting = threads()
    assert accepting
    stage.close()
    stage.close()
    for one in accepting:
        one.join(SOON_S)
    assert threads() == []
    with pytest.raises(OSError, match="refused"):
        connect(stage.address, stage.key, patience_s=5.0)


def test_tasks_that_do_not_come_are_counted(stage, tasks):
    tasks.start(0, until_closed)
    with pytest.raises(CheckpointTimeoutError, match="have registered"):
        stage.await_ready(Deadline(AT_ONCE_S))


def test_a_job_that_fails_first_says_why(stage):
    stage.fail(ConfigurationError("too few slots"))
    stage.fail(PhaseOneError("and so on"))
    with pytest.raises(ConfigurationError, match="too few slots"):
        stage.await_ready(Deadline(SOON_S))


def test_a_task_that_makes_no_producers_is_named(stage, tasks):
    tasks.start(0, until_closed)
    channel = tasks.open(subtask=1)
    assert isinstance(channel.receive(), Start)
    with pytest.raises(CheckpointTimeoutError, match=r"no Ready from \[1\]"):
        stage.await_ready(OnceSaid(tasks.is_ready))


@pytest.mark.parametrize("word", [None, Failed(error=failing(REFUSED))], ids=["dies", "fails"])
def test_a_task_that_ends_before_it_is_ready(stage, tasks, word):
    tasks.start(0, until_closed)
    channel = tasks.open(subtask=1)
    assert isinstance(channel.receive(), Start)
    if word is not None:
        channel.send(word)
    channel.close()
    with pytest.raises(PhaseOneError if word is None else RecordRefusedError):
        stage.await_ready(Deadline(SOON_S))


# --- checkpoints ----------------------------------------------------------------------------


def test_a_barrier_reaches_all_and_the_answers_come_by_subtask(stage, tasks):
    first, second = tasks.start_all(obedient, obedient)
    change = Change(partitioning={}, readers={0, 1}, added={1: {"in-9": 0}}, removed={0: ("in-4",)})
    answers = stage.barrier(5, Deadline(SOON_S), change)
    assert {n: one.positions for n, one in answers.items()} == {0: {"in-0": 11}, 1: {"in-1": 11}}
    assert stage.commit(5, {1}, Deadline(SOON_S)) == {1}
    stage.check()
    stage.barrier(6, Deadline(SOON_S), BOTH, last=True)
    stage.close()
    assert first.result(SOON_S) == [
        Barrier(checkpoint_id=5, removed=("in-4",)),
        Barrier(checkpoint_id=6, last=True),
    ]
    assert second.result(SOON_S) == [
        Barrier(checkpoint_id=5, added={"in-9": 0}),
        Commit(checkpoint_id=5),
        Barrier(checkpoint_id=6, last=True),
    ]


def test_a_barrier_reaches_only_readers_and_the_last_one_all(stage, tasks):
    """A stage of many tasks has few readers where little happens."""
    first, second = tasks.start_all(obedient, obedient)
    for number in (5, 6):
        assert {*stage.barrier(number, Deadline(SOON_S), ONE)} == {1}
    assert {*stage.barrier(7, Deadline(SOON_S), ONE, last=True)} == {0, 1}
    stage.close()
    assert [one.checkpoint_id for one in first.result(SOON_S)] == [7]
    assert [one.checkpoint_id for one in second.result(SOON_S)] == [5, 6, 7]


def test_a_reader_that_rests_and_dies_ends_the_stage(stage, tasks):
    """The next barrier could need it; and Spark replaces a whole stage."""

    def dies(channel: ControlChannel, _: int) -> None:
        channel.close()

    tasks.start_all(dies, obedient)
    with pytest.raises(PhaseOneError, match="is gone"):
        while True:
            stage.barrier(5, Deadline(SOON_S), ONE)


def test_moved_is_waited_for_once_per_barrier(stage, tasks):
    def moving(channel: ControlChannel, subtask: int) -> None:
        channel.send(Moved())
        obedient(channel, subtask)

    tasks.start_all(moving, obedient)
    assert stage.await_moved(SOON_S)
    stage.barrier(5, Deadline(SOON_S), BOTH)
    assert not stage.await_moved(AT_ONCE_S)


def test_moved_between_barrier_and_acknowledgement_is_kept(stage, tasks):
    """It belongs to the next checkpoint: lost, and its records would wait for others."""

    def script(channel: ControlChannel, subtask: int) -> None:
        barrier = channel.receive()
        channel.send(Moved())
        channel.send(acknowledgement(barrier.checkpoint_id, subtask))
        until_closed(channel)

    tasks.start_all(script, obedient)
    stage.barrier(5, Deadline(SOON_S), BOTH)
    assert stage.await_moved(AT_ONCE_S)


def test_the_timeout_names_the_silent_subtasks(stage, tasks):
    said = threading.Event()
    tasks.start_all(functools.partial(obedient, has_answered=said), until_closed)
    with pytest.raises(CheckpointTimeoutError, match=r"no Acknowledge from \[1\]"):
        stage.barrier(5, OnceSaid(said), BOTH)


def test_half_a_message_does_not_hold_up_the_stage(stage, tasks):
    """A frozen worker, or a machine that is lost, between the two writes of a long message."""

    def frozen(channel: ControlChannel, _subtask: int) -> None:
        channel.receive()
        os.write(channel.connection.fileno(), struct.pack("!i", 20_000) + b'["Ack')
        until_closed(channel)

    tasks.start_all(obedient, frozen)
    waiting = ThreadPoolExecutor(1).submit(stage.barrier, 5, Deadline(SOON_S), BOTH)
    with pytest.raises(PhaseOneError, match="subtask 1"):
        waiting.result(SOON_S / 2)


def test_another_checkpoint_than_asked_for_is_refused(stage, tasks):
    def wrong(channel: ControlChannel, subtask: int) -> None:
        channel.receive()
        channel.send(acknowledgement(4, subtask))
        until_closed(channel)

    tasks.start_all(obedient, wrong)
    with pytest.raises(PhaseOneError, match="subtask 1: 4, not 5"):
        stage.barrier(5, Deadline(SOON_S), BOTH)


def dying(word: Failed | None, *, after: int, decided: threading.Event | None = None) -> Script:
    """Follow the protocol for so many messages, then end with a last word or without."""

    def script(channel: ControlChannel, subtask: int) -> None:
        for _ in range(after):
            message = channel.receive()
            if isinstance(message, Barrier):
                channel.send(acknowledgement(message.checkpoint_id, subtask))
        if decided is not None:
            decided.wait(SOON_S)
        if word is not None:
            channel.send(word)
        channel.close()

    return script


@pytest.mark.parametrize("word", [None, Failed(error=failing(REFUSED))], ids=["dies", "fails"])
def test_a_task_that_ends_is_noticed_while_nothing_moves(stage, tasks, word):
    tasks.start_all(obedient, dying(word, after=0))
    with pytest.raises(PhaseOneError if word is None else RecordRefusedError) as raised:
        stage.await_moved(SOON_S)
    if word is not None:
        assert str(raised.value) == str(REFUSED)
        assert raised.value.permanent


@pytest.mark.parametrize("word", [None, Failed(error=failing(REFUSED))], ids=["dies", "fails"])
@pytest.mark.parametrize("writes", [0, 1])
def test_a_barrier_to_a_task_that_has_ended(stage, tasks, word, writes):
    """The first write to a closed socket succeeds, the second does not; the reason is kept."""
    _, ended = tasks.start_all(obedient, dying(word, after=0))
    ended.result(SOON_S)
    for _ in range(writes):
        stage._channels[1].send(Moved())
    with pytest.raises(PhaseOneError if word is None else RecordRefusedError) as raised:
        stage.barrier(5, Deadline(SOON_S), BOTH)
    assert "subtask 1" in str(raised.value) or "too large" in str(raised.value)


def test_a_failure_that_is_none_of_ours_is_quoted(stage, tasks):
    tasks.start_all(obedient, dying(Failed(error=failing(KeyError("price"))), after=0))
    with pytest.raises(PhaseOneError, match="KeyError: 'price'"):
        stage.await_moved(SOON_S)


def test_the_reason_counts_more_than_the_siblings_that_it_took_along(stage, tasks):
    """Spark ends the other tasks of the stage: both are there when the driver looks."""
    both = tasks.start_all(dying(None, after=0), dying(Failed(error=failing(REFUSED)), after=0))
    for one in both:
        one.result(SOON_S)
    with pytest.raises(RecordRefusedError):
        stage.await_moved(SOON_S)


@pytest.mark.parametrize("word", [None, Failed(error=failing(REFUSED))], ids=["dies", "fails"])
@pytest.mark.parametrize("after", [1, 2], ids=["before_commit", "before_committed"])
def test_a_writer_that_ends_after_the_decision_is_not_confirmed(stage, tasks, word, after):
    """The stage is over then: whoever ends its transaction, nobody begins another on its id."""
    decided = threading.Event()
    survivor, _ = tasks.start_all(obedient, dying(word, after=after, decided=decided))
    stage.barrier(5, Deadline(SOON_S), BOTH)
    decided.set()
    assert stage.commit(5, {0, 1}, Deadline(SOON_S)) <= {0}
    assert survivor.result(SOON_S)[0] == Barrier(checkpoint_id=5)  # its channel was closed
    with pytest.raises(PhaseOneError if word is None else RecordRefusedError):
        stage.check()


def test_a_writer_that_does_not_confirm_in_time_is_left_out(stage, tasks):
    def stalled(channel: ControlChannel, subtask: int) -> list[Any]:
        channel.receive()
        channel.send(acknowledgement(5, subtask))
        return until_closed(channel)

    said = threading.Event()
    good = functools.partial(obedient, has_answered=said)
    _, silent = tasks.start_all(good, stalled)
    stage.barrier(5, Deadline(SOON_S), BOTH)
    assert said.wait(SOON_S)
    said.clear()
    assert stage.commit(5, {0, 1}, OnceSaid(said)) == {0}
    assert silent.result(SOON_S) == [Commit(checkpoint_id=5)]
    with pytest.raises(CheckpointTimeoutError, match=r"no Committed from \[1\]"):
        stage.check()


def test_only_writers_are_told_of_a_decision(stage, tasks):
    idle, _ = tasks.start_all(obedient, obedient)
    stage.barrier(5, Deadline(SOON_S), BOTH)
    assert stage.commit(5, {1}, Deadline(SOON_S)) == {1}
    stage.close()
    assert idle.result(SOON_S) == [Barrier(checkpoint_id=5)]


def test_a_stage_that_is_closed_under_its_loop_is_an_error_and_no_silence(stage, tasks):
    """Closed channels leave the selector: nobody would ever hear of them again."""
    tasks.start_all(obedient, obedient)
    stage.barrier(5, Deadline(SOON_S), BOTH)
    stage.close()
    with pytest.raises(PhaseOneError, match="was closed"):
        stage.await_moved(SOON_S)
    with pytest.raises(PhaseOneError):
        stage.barrier(6, Deadline(SOON_S), BOTH)
