"""One task against a scripted driver: what a barrier may take, and what is said at the end."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

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
    accept,
    listen,
)
from connectors.continuous.read_pause import ReadPause
from connectors.continuous.stage_task import run_task
from connectors.kafka.source.partition_reader import Read
from connectors.spark.failures import error_in
from tests.reads import read_of
from tests.unit.samples import committable
from tests.waiting import until
from transactions.errors import PhaseOneError, RecordRefusedError

SOON_S = 10.0
START = Start(application_id="app", log_id="log", run_epoch=3, checkpoint_id=5, offsets={"in-0": 0})


class FakeReader:
    """Hands out what a test puts in; closing takes as long as the test wants."""

    lag = 0

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.rows: dict[str, list[bytes]] = {}
        self.puts = self.taken = 0
        self.more = threading.Condition()
        self.may_close = threading.Event()
        self.may_close.set()
        self.added: dict[str, int] = {}
        self.removed: list[str] = []
        self.handled = 0
        self.waits: list[float] = []

    def put(self, partition: str, position: int, *values: bytes) -> None:
        with self.more:
            self.positions[partition] = position
            self.rows.setdefault(partition, []).extend(values)
            self.puts += 1
            self.more.notify_all()

    def add(self, offsets: Mapping[str, int]) -> None:
        with self.more:
            self.added.update(offsets)
            self.more.notify_all()

    def remove(self, names: Collection[str]) -> None:
        with self.more:
            self.removed += names
            self.more.notify_all()

    def read(self, timeout_s: float) -> Read:
        with self.more:
            self.waits.append(timeout_s)
            self.more.notify_all()
            if self.puts == self.taken:
                self.more.wait(min(timeout_s, 0.01))
            read = read_of(self.positions, self.rows)
            self.positions, self.rows, self.taken = {}, {}, self.puts
        return read

    def is_written(self) -> None:
        """Note that the last read has been written: a task serves its clients behind that."""
        with self.more:
            self.handled = self.taken
            self.more.notify_all()

    def await_added(self, offsets: Mapping[str, int]) -> None:
        """Wait until exactly these partitions are read as well."""
        with self.more:
            assert self.more.wait_for(lambda: self.added == offsets, SOON_S), self.added

    def await_handled(self, count: int) -> None:
        """Wait until what was put so many times has been written."""
        with self.more:
            assert self.more.wait_for(lambda: self.handled >= count, SOON_S)

    def await_another(self) -> None:
        """Wait for the next call of `read`: the last one has ended."""
        with self.more:
            calls = len(self.waits)
            assert self.more.wait_for(lambda: len(self.waits) > calls, SOON_S)

    def close(self) -> None:
        self.may_close.wait(SOON_S)


class FakeWriter:
    """A transaction is a list of what was written."""

    ends_transactions = True
    shows_at_barriers = True

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.invoked: list[bytes] = []
        self.begins: Mapping[str, int] = {}
        self.ended: list[list[bytes]] = []
        self.prepared: dict[int, list[bytes]] = {}
        self.offsets: dict[int, Mapping[str, int]] = {}
        self.refuse: Callable[[bytes], None] = lambda _: None
        self.flushing: Callable[[], None] = lambda: None
        self.preparing: Callable[[], None] = lambda: None
        self.served = threading.Event()
        self.serving: Callable[[], None] = lambda: None

    def serve(self) -> None:
        self.serving()
        self.served.set()

    def open(self, owner: Any, deadline: Any) -> tuple[str, ...]:
        return ("app.log.3.w.0", "app.log.3.w.1")

    def begin_transaction(self, attempt: Any) -> Any:
        self.begun.append(attempt.checkpoint_id)
        self.begins = attempt.source_offsets
        return attempt, []

    def invoke(self, transaction: Any, batch: pa.RecordBatch) -> None:
        for value in batch.column("value").to_pylist():
            transaction[1].append(value)
            self.invoked.append(value)
            self.refuse(value)

    def flush(self, transaction: Any, source_offsets: Mapping[str, int]) -> None:
        attempt, _ = transaction
        self.flushing()
        self.offsets[attempt.checkpoint_id] = dict(source_offsets)

    def pre_commit(self, transaction: Any) -> Any:
        attempt, values = transaction
        self.preparing()
        self.prepared[attempt.checkpoint_id] = list(values)
        made = dataclasses.replace(committable(), checkpoint_id=attempt.checkpoint_id)
        return made if values or self.offsets[attempt.checkpoint_id] else None

    def end(self, transaction: Any) -> None:
        self.ended.append(transaction[1])

    def close(self) -> None:
        return


@dataclasses.dataclass
class Story:
    """A task on a thread, its parts, and its driver's end of the channel."""

    driver: ControlChannel
    task: Future[None]
    read: FakeReader
    write: FakeWriter

    def next(self, *, moved: bool = False) -> Any:
        """Return what the task says next; `Moved` only when it is asked for."""
        while True:
            message = self.driver.receive()
            if not isinstance(message, Moved) or moved:
                return message

    def barrier(self, number: int, **more: Any) -> Acknowledge:
        self.driver.send(Barrier(checkpoint_id=number, **more))
        answer = self.next()
        assert isinstance(answer, Acknowledge), answer
        assert answer.checkpoint_id == number
        return answer

    def commit(self, number: int) -> None:
        self.driver.send(Commit(checkpoint_id=number))
        assert self.next() == Committed(checkpoint_id=number)


@pytest.fixture
def story():
    listener = listen("127.0.0.1")
    reader, writer = FakeReader(), FakeWriter()
    writer.serving = reader.is_written

    @dataclasses.dataclass
    class Task:
        address = listener.address
        key = b"key"
        stage = "stage"
        timeout_s = SOON_S
        transform: Any

        def reader(self, offsets: Mapping[str, int]) -> FakeReader:
            assert offsets == START.offsets
            return reader

        def stage_writer(self) -> FakeWriter:
            return writer

    interval = sys.getswitchinterval()
    threads = ThreadPoolExecutor(1)
    channels = []

    def begin(transform: Any = lambda batch: batch) -> Story:
        running = threads.submit(run_task, Task(transform), 0, 17)
        driver = accept(listener, b"key", patience_s=SOON_S)
        channels.append(driver)
        registered = driver.receive()
        assert isinstance(registered, Register)
        assert (registered.stage, registered.subtask, registered.attempt) == ("stage", 0, 17)
        driver.send(START)
        ready = driver.receive()
        assert isinstance(ready, Ready)
        assert list(ready.transactional_ids) == ["app.log.3.w.0", "app.log.3.w.1"]
        return Story(driver, running, reader, writer)

    yield begin
    reader.may_close.set()
    for one in channels:
        one.close()
    listener.close()
    threads.shutdown()
    sys.setswitchinterval(interval)


def test_a_barrier_takes_exactly_what_the_positions_count(story):
    one = story()
    one.read.put("in-0", 2, b"a", b"b")
    assert one.next(moved=True) == Moved()
    answer = one.barrier(5)
    assert answer.positions == {"in-0": 2}
    assert answer.committable is not None
    assert one.write.prepared == {5: [b"a", b"b"]}
    assert one.write.offsets == {5: {"in-0": 2}}
    one.read.put("in-0", 3, b"c")  # fills the next one while this one is not decided
    assert one.next(moved=True) == Moved()
    assert one.write.ended == []
    one.commit(5)
    assert one.write.ended == [[b"a", b"b"]]
    assert one.barrier(6).positions == {"in-0": 3}
    assert one.write.prepared[6] == [b"c"]
    assert one.write.begun == [5, 6], "a transaction begins with its first record"


def test_nothing_of_the_next_transaction_overtakes_this_one(story):
    """They are of two producers: what waits in the first one's queue would come behind."""
    one = story()
    overtaken: list[bool] = []

    def flushing() -> None:
        one.read.put("in-0", 2, b"next")
        with one.read.more:
            overtaken.append(one.read.more.wait_for(lambda: one.read.handled >= 2, 0.2))

    one.read.put("in-0", 1, b"this")
    one.read.await_handled(1)
    one.write.flushing = flushing
    one.write.preparing = lambda: one.read.await_handled(2)  # offsets are sent while it fills
    assert one.barrier(5).positions == {"in-0": 1}
    assert overtaken == [False]
    assert one.write.prepared[5] == [b"this"]
    assert one.write.invoked == [b"this", b"next"]
    one.commit(5)
    one.driver.close()


@pytest.fixture
def pauses(monkeypatch):
    """The task's pause, once it is made; none ends by itself, but the one behind a barrier. A
    barrier waits as long as it takes for what came in a pause.
    """
    made: list[ReadPause] = []
    monkeypatch.setattr("connectors.continuous.read_pause._PATIENCE_S", SOON_S)

    def make(*_: float) -> ReadPause:
        long_s = 2 * SOON_S  # longer than anybody waits for what comes after it
        made.append(ReadPause(long_s, long_s))
        return made[0]

    monkeypatch.setattr("connectors.continuous.stage_task.ReadPause", make)
    yield made
    made[0].cut_short()


def test_a_barrier_takes_what_came_while_the_task_paused(story, pauses):
    """What came before the barrier belongs to its checkpoint, however long the pause still is."""
    one = story()
    for number, value in ((5, b"b"), (6, b"c"), (7, b"d")):
        one.read.put("in-0", 2 * number, b"a")  # the pause behind a barrier is short: this ends it
        one.read.await_handled(one.read.puts)
        until(lambda: pauses[0]._pausing)  # the moment that is tested
        one.read.put("in-0", 2 * number + 1, value)
        assert one.barrier(number).positions == {"in-0": 2 * number + 1}
        one.commit(number)
    assert one.write.ended == [[b"a", b"b"], [b"a", b"c"], [b"a", b"d"]]
    assert one.read.waits.count(0.0) == 3, "a barrier waits for what is there, not for more"


@pytest.mark.usefixtures("pauses")
def test_a_task_that_is_behind_does_not_pause(story):
    one = story()
    one.read.lag = 1
    for position in (1, 2, 3):
        one.read.put("in-0", position, b"a")
        one.read.await_handled(position)
    one.driver.close()


def test_a_partition_leaves_with_its_barrier(story):
    """Another task begins at the acknowledged position: what this one has read behind it, and not
    yet written, must never be written, even if the partition comes back meanwhile.
    """
    held, may_go = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("value")[0].as_py() == b"slow":
            held.set()
            assert may_go.wait(SOON_S)
        return batch

    one = story(slow)
    one.read.put("in-0", 2, b"a", b"b")
    one.read.await_handled(1)
    one.read.put("in-0", 3, b"slow")
    assert held.wait(SOON_S)
    assert one.barrier(5, removed=["in-0"]).positions == {"in-0": 2}
    one.commit(5)
    assert one.barrier(6, added={"in-0": 4}).positions == {}
    may_go.set()
    one.read.await_added({"in-0": 4})
    assert one.read.removed == ["in-0"]
    one.read.put("in-0", 5, b"e")
    one.read.await_handled(3)
    assert one.barrier(7).positions == {"in-0": 5}
    assert one.write.prepared == {5: [b"a", b"b"], 6: [], 7: [b"e"]}


def test_what_was_read_beside_a_partition_that_leaves_is_written(story):
    """One read brings records of several partitions, and one of these leaves meanwhile."""
    held, may_go = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        held.set()
        assert may_go.wait(SOON_S)
        return batch

    one = story(slow)
    assert one.barrier(5, added={"also-in-0": 0}).positions == {"in-0": 0}
    one.read.await_added({"also-in-0": 0})
    with one.read.more:  # both in one read
        one.read.put("in-0", 2, b"stays", b"stays too")
        one.read.put("also-in-0", 1, b"leaves")
    assert held.wait(SOON_S)
    assert one.barrier(6, removed=["also-in-0"]).positions == {"in-0": 0, "also-in-0": 0}
    one.commit(6)
    may_go.set()
    one.read.await_handled(2)
    assert one.barrier(7).positions == {"in-0": 2}
    assert one.write.prepared[7] == [b"stays", b"stays too"]
    one.driver.close()


def test_a_position_beside_a_partition_that_leaves_counts(story):
    """It moved over a gap, and only the partition that leaves has brought records."""
    held, may_go = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        held.set()
        assert may_go.wait(SOON_S)
        return batch

    one = story(slow)
    assert one.barrier(5, added={"in-1": 0}).positions == {"in-0": 0}
    one.read.await_added({"in-1": 0})
    with one.read.more:
        one.read.put("in-0", 7)
        one.read.put("in-1", 1, b"leaves")
    assert held.wait(SOON_S)
    one.barrier(6, removed=["in-1"])
    one.commit(6)
    may_go.set()
    one.read.await_handled(2)
    assert one.barrier(7).positions == {"in-0": 7}
    assert one.write.prepared[7] == []
    one.driver.close()


def test_busy_is_what_the_function_takes_and_not_what_the_task_waits_for(story):
    """Whether the function computes, or asks another system; a flush does not count."""
    took_s, took = 0.05, threading.Semaphore(0)
    entered, may_go = threading.Event(), threading.Event()

    def asks_and_computes(batch: pa.RecordBatch) -> pa.RecordBatch:
        entered.set()
        assert may_go.wait(SOON_S)
        time.sleep(took_s)
        end = time.thread_time() + took_s
        while time.thread_time() < end:
            pass
        took.release()
        return batch

    def flushing() -> None:
        may_go.set()
        assert took.acquire(timeout=SOON_S)
        time.sleep(10 * took_s)  # the reading thread waits with its batch

    one = story(asks_and_computes)
    began = time.perf_counter()
    before_s = one.barrier(5).busy_s
    one.read.put("in-0", 1, b"a")
    assert entered.wait(SOON_S)
    one.write.flushing = flushing
    one.barrier(6)
    one.read.await_handled(1)
    one.read.await_another()
    one.write.flushing = lambda: None
    busy_s = one.barrier(7).busy_s - before_s
    assert 2 * took_s <= busy_s <= time.perf_counter() - began - 9 * took_s


def test_a_position_alone_moves_on_too(story):
    one = story()
    one.read.put("in-0", 7)
    assert one.next(moved=True) == Moved()
    assert one.barrier(5).positions == {"in-0": 7}
    assert one.write.offsets == {5: {"in-0": 7}}


def test_an_empty_checkpoint_waits_for_no_decision(story):
    one = story()
    assert one.barrier(5).committable is None
    assert one.barrier(6).committable is None


def test_where_the_driver_ends_what_was_prepared_the_next_message_is_a_barrier(story):
    """It is told of no decision, says nothing of one, and never ends a transaction itself."""
    one = story()
    one.write.ends_transactions = False
    for number, value in ((5, b"a"), (6, b"b")):
        one.read.put("in-0", number, value)
        assert one.next(moved=True) == Moved()
        assert one.barrier(number).committable is not None
    assert one.write.prepared == {5: [b"a"], 6: [b"b"]}
    one.driver.close()
    one.task.exception(SOON_S)
    assert one.write.ended == []


def test_moved_is_said_once_per_barrier(story):
    one = story()
    for position in (1, 2, 3):
        one.read.put("in-0", position)
    one.read.await_handled(3)
    assert one.next(moved=True) == Moved()
    one.driver.send(Barrier(checkpoint_id=5))
    assert isinstance(one.next(moved=True), Acknowledge)


def test_a_new_partition_is_read_from_its_beginning_after_the_barrier(story):
    one = story()
    assert one.barrier(5, added={"in-9": 0}).positions == {"in-0": 0}
    one.read.await_added({"in-9": 0})
    one.read.put("in-9", 1, b"first")
    assert one.next(moved=True) == Moved()
    assert one.write.begins == {"in-9": 0}, "the topic of a partition without records may be gone"
    assert one.barrier(6).positions == {"in-0": 0, "in-9": 1}


def test_an_idle_task_takes_what_waits_for_its_clients(story):
    one = story()
    one.write.served.clear()
    assert one.write.served.wait(SOON_S)


def test_the_task_stays_after_its_last_checkpoint_until_the_driver_closes(story):
    """Its end would look like a death to a driver that still waits for the others."""
    one = story()
    one.read.put("in-0", 1, b"a")
    assert one.next(moved=True) == Moved()
    one.barrier(5, last=True)
    one.commit(5)
    assert not one.task.done()
    one.driver.close()
    assert one.task.exception(SOON_S) is None


def test_after_the_last_barrier_nothing_is_written(story):
    """A batch that was read before it and transformed after it: the next run reads it again."""
    drained = threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch.column("value")[0].as_py() != b"late" or drained.wait(SOON_S)
        return batch

    one = story(slow)
    one.read.put("in-0", 1, b"in time")
    assert one.next(moved=True) == Moved()
    one.read.put("in-0", 2, b"late")
    assert one.barrier(5, last=True).positions == {"in-0": 1}
    drained.set()
    one.commit(5)
    one.read.await_handled(1)
    one.driver.close()
    assert one.task.exception(SOON_S) is None
    assert one.write.invoked == [b"in time"]


def test_what_was_written_in_part_is_in_no_checkpoint(story):
    """Seen in the simulation: the barrier came while the failed task closed its consumer. The
    transaction held a record that no position counted, and the next run wrote it again.
    """
    one = story()
    torn = threading.Event()

    def refuse_c(value: bytes) -> None:
        if value == b"c":
            torn.set()
            raise RecordRefusedError("too large", where="out-0")

    one.write.refuse = refuse_c
    one.read.may_close.clear()
    one.read.put("in-0", 2, b"b", b"c")
    assert torn.wait(SOON_S)
    one.driver.send(Barrier(checkpoint_id=5))
    threading.Timer(0.2, one.read.may_close.set).start()
    answer = one.next()
    assert isinstance(answer, Failed), answer
    assert isinstance(error_in(answer.error), RecordRefusedError)
    assert one.write.prepared == {}


@pytest.mark.parametrize("error", [KeyError("price"), FileNotFoundError("prices.csv"), EOFError()])
def test_an_error_of_the_users_function_is_told_as_what_it_is(story, error):
    """An OSError of theirs was once taken for a driver that is gone, and never told."""

    def failing(_: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    one = story(failing)
    one.read.put("in-0", 1, b"a")
    answer = one.next()
    assert isinstance(answer, Failed)
    assert type(error).__name__ in answer.error.splitlines()[-1]
    assert one.task.exception(SOON_S) is error


def test_a_function_that_returns_nonsense_says_so(story):
    one = story(lambda batch: None)
    one.read.put("in-0", 1, b"a")
    answer = one.next()
    assert isinstance(answer, Failed)
    assert "NoneType" in str(error_in(answer.error))


@pytest.mark.parametrize("when", ["idle", "prepared", "decided"])
def test_a_driver_that_is_gone_ends_the_task(story, when):
    one = story()
    one.read.put("in-0", 1, b"a")
    assert one.next(moved=True) == Moved()
    if when != "idle":
        one.barrier(5)
    if when == "decided":
        one.driver.send(Commit(checkpoint_id=5))
    one.driver.close()
    error = one.task.exception(SOON_S)
    assert isinstance(error, PhaseOneError)
    assert "gone, or has ended the stage" in str(error)
    with pytest.raises(ChannelClosedError):
        one.driver.receive()


def test_a_task_of_an_old_stage_stops(story):
    """Its driver's port may be another driver's now."""
    one = story()

    class Stale:
        address, key, stage, transform, timeout_s = None, b"old", "old", None, SOON_S

    listener = listen("127.0.0.1")
    Stale.address = listener.address
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept, listener, b"key", patience_s=SOON_S)
        with pytest.raises(PhaseOneError, match="does not know it"):
            run_task(Stale, 0, 1)  # type: ignore[arg-type]
        assert accepted.exception(SOON_S) is not None
    listener.close()
    one.driver.close()
