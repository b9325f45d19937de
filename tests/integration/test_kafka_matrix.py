"""Kafka's own transaction scenarios, with our sink, source, driver and recovery in them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest

from connectors.kafka.sink.kafka_writer import KafkaTransaction
from connectors.kafka.source.offsets import OffsetRange
from connectors.kafka.source.range_reader import close_idle_consumers, read_range
from connectors.kafka.source.source_planner import SourcePlanner
from connectors.options.kafka_source import KafkaSource
from tests.auditor.reader import (
    Follower,
    assert_no_open_transaction,
    read_committed,
    read_uncommitted,
)
from tests.both_halves import KafkaBothHalves
from tests.integration.kafka_matrix import (
    Copier,
    attempt_of,
    by_partition,
    commit,
    decide,
    make_sink,
    new_owner,
    prepare,
    produce,
    rows,
)
from tests.integration.wire_helpers import open_producer, settled, soon
from transactions.committable import Outcome
from transactions.errors import PhaseOneError

Topic = Callable[..., str]


@pytest.fixture
def make(bootstrap):
    sinks = []

    def sink(topic: str | None) -> KafkaBothHalves:
        sinks.append(make_sink(bootstrap, topic))
        return sinks[-1]

    yield sink
    for one in sinks:
        one.close()
    close_idle_consumers()


def values(bootstrap: str, topic: str) -> list[str]:
    assert_no_open_transaction(bootstrap, topic)
    return sorted((record.value or b"").decode() for record in read_committed(bootstrap, topic))


# -- K8, K13, C3: a copy whose tries fail ----------------------------------------------------------


def after_its_own_abort(sink: KafkaBothHalves, transactions: Sequence[KafkaTransaction]) -> None:
    """A task raised: its own `except` aborts what it has open, as the sink stage does."""
    for one in transactions:
        sink.abort(one)
    raise PhaseOneError("a task failed and aborted its transactions")


def with_all_of_it_left_open(
    sink: KafkaBothHalves, transactions: Sequence[KafkaTransaction]
) -> None:
    """The worker is gone: what it prepared is left to the sweep."""
    raise PhaseOneError("a worker was lost")


def by_an_intruder(sink: KafkaBothHalves, transactions: Sequence[KafkaTransaction]) -> None:
    """C3: somebody fences one of the producers; the driver must see it before it decides."""
    slot = transactions[-1].slot
    assert slot is not None
    sink.wire.fence(slot.producer.transactional_id, 60_000, soon())


FAILURES = (after_its_own_abort, with_all_of_it_left_open, by_an_intruder)


@pytest.mark.parametrize(
    ("seed", "fails"),
    [
        pytest.param(
            13, lambda number, dice: number % 2 == 0, id="k13_every_second", marks=pytest.mark.long
        ),
        pytest.param(8, lambda number, dice: dice.random() < 1 / 3, id="k8_one_in_three"),
    ],
)
def test_k8_k13_c3_a_copy_with_aborts_is_exact_and_in_order(
    bootstrap, topic, application_id, seed, fails
):
    """500 records; a failed try is begun again at the committed offsets, by a new run."""
    source, target = topic(partitions=3), topic(partitions=3)
    dice = random.Random(seed)
    numbers = produce(bootstrap, source, 500, partitions=3)
    expected = {part: numbers[part::3] for part in range(3)}
    aborted = []

    def interfere(
        number: int, sink: KafkaBothHalves, transactions: Sequence[KafkaTransaction]
    ) -> None:
        if fails(number, dice):
            how = FAILURES[len(aborted) % len(FAILURES)]
            aborted.append(how.__name__)
            how(sink, transactions)

    copier = Copier(bootstrap, application_id, source, target, per_batch=100, interfere=interfere)
    with Follower(bootstrap, target) as follower:
        copier.run(seconds=90)
        assert by_partition(follower.drain()) == expected
    assert by_partition(read_committed(bootstrap, target)) == expected
    assert len(read_uncommitted(bootstrap, target)) > 500  # aborted tries did reach the log
    assert set(aborted) == {how.__name__ for how in FAILURES}
    assert len(copier.failures) == len(aborted)


# -- K14, F22: zombies -----------------------------------------------------------------------------


def zombie_commits(sink: KafkaBothHalves, transaction: KafkaTransaction) -> None:
    assert transaction.slot is not None
    transaction.slot.producer.resync(soon())


def zombie_sends_offsets(sink: KafkaBothHalves, transaction: KafkaTransaction) -> None:
    sink.pre_commit(transaction)


def zombie_sends(sink: KafkaBothHalves, transaction: KafkaTransaction) -> None:
    sink.invoke(transaction, rows("zombie", partition=[0]))
    assert transaction.slot is not None
    transaction.slot.producer.flush(soon())


def zombie_adds_partitions(sink: KafkaBothHalves, transaction: KafkaTransaction) -> None:
    sink.invoke(transaction, rows("zombie", partition=[1]))
    assert transaction.slot is not None
    transaction.slot.producer.flush(soon())


ACTIONS = (zombie_commits, zombie_sends_offsets, zombie_sends, zombie_adds_partitions)


def test_k14_f22_a_zombie_is_fenced_in_each_of_its_four_actions(
    make, bootstrap, topic, application_id
):
    """A newer run swept them; none commits, sends, sends offsets or adds a partition any more."""
    out, offsets = topic(partitions=2), topic()
    old_run, new_run = new_owner(application_id), new_owner(application_id)
    zombies = [make(out) for _ in ACTIONS]
    transactions = []
    for subtask, sink in enumerate(zombies):
        attempt = attempt_of(old_run, 1, subtask, source_offsets={f"{offsets}-0": 7})
        transaction = sink.begin_transaction(attempt)
        sink.invoke(transaction, rows("zombie", partition=[0]))
        assert transaction.slot is not None
        transaction.slot.producer.flush(soon())
        transactions.append(transaction)
    mine = make(out)
    names = [one.slot.producer.transactional_id for one in transactions]
    assert mine.lingering(new_run, soon()) == sorted(names)
    mine.recover_and_abort(names, soon())
    committable = prepare(
        mine, attempt_of(new_run, 1, source_offsets={f"{offsets}-0": 9}), rows("new")
    )
    for action, sink, transaction in zip(ACTIONS, zombies, transactions, strict=True):
        with pytest.raises(PhaseOneError, match=r"(?i)fence|epoch|failed"):
            action(sink, transaction)
        sink.abort(transaction)  # F22: no second error; the process goes on with another id
    again = prepare(zombies[0], attempt_of(old_run, 2), rows("not decided"))
    assert again.transactional_id not in names
    commit(mine, committable)
    mine.recover_and_abort([again.transactional_id], soon())
    settled(mine.wire, *names)
    assert values(bootstrap, out) == ["new"]
    found = mine.wire.read_markers(application_id, [f"{offsets}-0"], soon())
    assert found == {f"{offsets}-0": (9, committable.token)}


def test_k14_a_zombie_driver_commits_nothing_that_a_newer_run_swept(
    make, bootstrap, topic, application_id
):
    out = topic()
    older, newer = make(out), make(out)
    old_run, new_run = new_owner(application_id), new_owner(application_id)
    (undecided,) = decide(older, prepare(older, attempt_of(old_run, 1), rows("zombie")))
    newer.recover_and_abort(newer.lingering(new_run, soon()), soon())
    assert older.commit([undecided], soon()) == {undecided.token: Outcome.UNKNOWN}
    assert not older.recover_and_commit([undecided], soon())[undecided.token].is_committed
    commit(newer, prepare(newer, attempt_of(new_run, 1), rows("new")))
    assert values(bootstrap, out) == ["new"]


# -- K12, K18: what our source reads between markers -----------------------------------------------


def test_k12_an_abort_that_lands_while_a_fetch_waits_is_filtered(make, bootstrap, topic):
    """Our reader asks beyond the last stable offset; the answer brings the abort with the data."""
    name = topic()
    aborted = open_producer(bootstrap, f"foreign-{name}")
    aborted.begin_transaction()
    for number in range(10):
        aborted.produce(name, b"aborted %d" % number)
    assert aborted.flush(20) == 0
    committed = open_producer(bootstrap, f"foreign-{name}-2")
    committed.begin_transaction()
    committed.produce(name, b"committed")
    assert committed.flush(20) == 0
    committed.commit_transaction(20)  # offsets: 10 aborted, 1, its marker, then the abort's
    waits = {"fetch.wait.max.ms": "2500", "fetch.min.bytes": "1"}
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=name, kafka=waits)
    found: list[tuple[int, bytes]] = []
    first_wait = threading.Event()

    def read() -> None:
        first_wait.set()
        for batch in read_range(source, OffsetRange(name, 0, 0, 13)):
            found.extend(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    first_wait.wait()
    reader.join(1.0)
    assert reader.is_alive()  # its fetch waits at the broker: nothing is stable yet
    assert found == []
    aborted.abort_transaction(20)
    reader.join(20)
    assert not reader.is_alive()
    assert found == [(10, b"committed")]


def test_k18_10000_aborted_then_1000_committed_on_20_partitions(make, bootstrap, topic):
    one, other = topic(partitions=10), topic(partitions=10)
    producer = open_producer(bootstrap, f"foreign-{one}", **{"linger.ms": 5})

    def write(count: int, text: str) -> None:
        producer.begin_transaction()
        for number in range(count):
            name = (one, other)[number % 2]
            producer.produce(name, f"{text} {number}".encode(), partition=number // 2 % 10)
        assert producer.flush(30) == 0

    write(10_000, "aborted")
    producer.abort_transaction(30)
    write(1_000, "committed")
    producer.commit_transaction(30)
    for name in (one, other):
        assert_no_open_transaction(bootstrap, name)
        assert len(read_uncommitted(bootstrap, name)) == 5_500
    source = KafkaSource(bootstrap_servers=bootstrap, subscribe=f"{one},{other}")
    planner = SourcePlanner(source)
    ranges = planner.plan(planner.earliest_offsets(), planner.latest_offsets())
    assert len(ranges) == 20
    found = [
        value
        for wanted in ranges
        for batch in read_range(source, wanted)
        for value in batch["value"].to_pylist()
    ]
    assert sorted(found) == sorted(b"committed %d" % number for number in range(1_000))


# -- K22 -------------------------------------------------------------------------------------------


def test_k22_an_empty_abort_after_a_commit_is_no_error(make, bootstrap, topic, application_id):
    """A task that wrote nothing aborts on the producer whose last transaction was committed."""
    out = topic()
    sink = make(out)
    run = new_owner(application_id)
    transaction = sink.begin_transaction(attempt_of(run, 0))
    sink.invoke(transaction, rows("a"))
    committable = sink.pre_commit(transaction)
    assert committable is not None
    assert transaction.slot is not None
    commit(sink, committable)
    producer = transaction.slot.producer
    producer.resync(soon())
    producer.begin()
    producer.abort(soon())  # nothing was sent: the broker has nothing open to end
    sink.recover_and_abort([committable.transactional_id], soon())  # and the sweep's own kind
    settled(sink.wire, committable.transactional_id)
    assert sink.recover_and_commit([committable], soon())[committable.token].is_committed
    commit(sink, prepare(sink, attempt_of(run, 1, retired=sink.retired()), rows("b")))
    assert values(bootstrap, out) == ["a", "b"]
