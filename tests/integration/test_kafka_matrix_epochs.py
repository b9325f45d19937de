"""Epochs at their end, timeouts, changed features, withdrawn rights: on a broker of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.producer import EndTxnRequest

from connectors.cluster.local_cluster import LocalCluster
from connectors.kafka.sink import producer_pool
from connectors.wire.wire_client import TRANSACTION, WireClient
from tests.auditor.reader import assert_no_open_transaction, read_committed
from tests.both_halves import KafkaBothHalves
from tests.integration.kafka_matrix import (
    attempt_of,
    commit,
    decide,
    make_sink,
    new_owner,
    prepare,
    raise_epoch,
    rows,
    set_transaction_version,
)
from tests.integration.secure_broker import give_acls
from tests.integration.wire_helpers import eventually, settled, soon
from tests.locked_broker import AUTHORIZER, JAAS, locked_broker, wants_password
from tests.tiers import long, sampled
from transactions.committable import Committable, Outcome
from transactions.errors import AuthenticationError, DeliveryError, PhaseOneError
from transactions.sink import DecidedToken, Owner

pytestmark = long

LAST_EPOCH = 32_766
_NAMES = itertools.count()


class Own:
    """A broker that looks for timeouts twice a second, checks rights, and starts again."""

    def __init__(self, cluster: LocalCluster, login: str) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        self.login = login

    def topic(self) -> str:
        name = f"t{next(_NAMES)}"
        self.cluster.create_topic(name)
        return name

    def values(self, topic: str) -> list[str]:
        assert_no_open_transaction(self.bootstrap, topic)
        return [(record.value or b"").decode() for record in read_committed(self.bootstrap, topic)]


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    made, (_, login) = locked_broker(
        {"LOGIN": "SASL_PLAINTEXT"},
        wants_password("login", alice="right"),
        AUTHORIZER | {"super.users": "User:ANONYMOUS"},
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"},
    )
    with made as cluster:
        yield Own(cluster, login)


@pytest.fixture
def run() -> Owner:
    return new_owner(f"app{next(_NAMES)}")


@pytest.fixture
def make(own: Own):
    sinks: list[KafkaBothHalves] = []

    def sink(topic: str, **options) -> KafkaBothHalves:
        sinks.append(make_sink(own.bootstrap, topic, **options))
        return sinks[-1]

    yield sink
    for one in sinks:
        one.close()


def decided(*committables: Committable) -> dict[str, DecidedToken]:
    return {
        one.transactional_id: DecidedToken(checkpoint_id=one.checkpoint_id, token=one.token)
        for one in committables
    }


# -- K19, X18: the last epoch ----------------------------------------------------------------------


def at_the_last_epoch(own: Own, run: Owner, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the next producer of this process get the epoch 32766, after which the pid changes."""
    slot = 900_000 + next(_NAMES)
    monkeypatch.setattr(producer_pool, "_SLOTS", itertools.count(slot))
    name = f"{run.application_id}.{run.log_id}.{run.run_epoch}.{producer_pool._PROCESS}.{slot}"
    raise_epoch(own.bootstrap, name, LAST_EPOCH - 1)
    return name


def end_with_version_5(own: Own, one: Committable) -> None:
    """Commit as a client of KIP-890 does; ours never sends this."""
    wire = WireClient({"bootstrap.servers": own.bootstrap}, 20.0)
    request = EndTxnRequest(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        committed=True,
        min_version=5,
        max_version=5,
    )

    async def send() -> int:
        nodes = await wire.coordinators(TRANSACTION, [one.transactional_id], soon())
        response = await wire.send(nodes[one.transactional_id], request, soon())
        return int(response.error_code)

    assert wire.run(send, deadline=soon()) == 0
    wire.close()


def test_x18_committed_at_the_last_epoch_is_known_though_the_producer_id_rotated(
    own, make, run, monkeypatch
):
    """FLINK-40689. Each time the driver dies between its EndTxn and its own next step."""
    out = own.topic()
    sink = make(out)
    name = at_the_last_epoch(own, run, monkeypatch)
    (first,) = decide(sink, prepare(sink, attempt_of(run, 0), rows("a")))
    assert (first.transactional_id, first.producer_epoch) == (name, LAST_EPOCH)
    assert first.protocol_version == 1
    assert set(make(out).commit([first], soon()).values()) == {Outcome.COMMITTED}
    settled(sink.wire, name)
    # Version 4 leaves id and epoch as they are: the description is the proof, and the producer
    # goes on with an epoch that has no next one.
    next_driver = make(out)
    assert next_driver.recover_and_commit([first], soon()) == {
        first.token: Outcome.ALREADY_COMMITTED
    }
    attempt = attempt_of(run, 1, last_decided=decided(first))
    (second,) = decide(sink, prepare(sink, attempt, rows("b")))
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, LAST_EPOCH)
    end_with_version_5(own, second)
    settled(sink.wire, name)
    now = sink.wire.describe([name], soon())[name]
    assert now.producer_id != second.producer_id  # rotated by the very commit
    assert next_driver.recover_and_commit([second], soon()) == {
        second.token: Outcome.ALREADY_COMMITTED
    }
    # And by whoever initialises the id afterwards.
    sink.wire.fence(name, 60_000, soon())
    assert next_driver.recover_and_commit([second], soon()) == {
        second.token: Outcome.ALREADY_COMMITTED
    }
    assert own.values(out) == ["a", "b"]


def test_k19_a_timeout_at_the_last_epoch_is_proven_and_written_once_more(
    own, make, run, monkeypatch
):
    """KAFKA-20090: the abort takes the epoch beyond its last, the retry gets another pid."""
    out = own.topic()
    sink = make(out, timeout_ms=1500)
    name = at_the_last_epoch(own, run, monkeypatch)
    (lost,) = decide(sink, prepare(sink, attempt_of(run, 0), rows("a")))
    assert lost.producer_epoch == LAST_EPOCH
    eventually(lambda: sink.wire.describe([name], soon())[name].state, "CompleteAbort")
    now = sink.wire.describe([name], soon())[name]
    # The abort itself gave the id another producer id: only the marker's absence is a proof now.
    assert now.producer_id != lost.producer_id
    assert sink.recover_and_commit([lost], soon()) == {lost.token: Outcome.ABORTED}
    (again,) = decide(sink, prepare(sink, attempt_of(run, 1, retired=sink.retired()), rows("a")))
    assert again.transactional_id != name
    assert sink.commit([again], soon()) == {again.token: Outcome.COMMITTED}
    sink.wire.fence(name, 1500, soon())  # somebody takes the id over
    assert sink.recover_and_commit([lost], soon()) == {lost.token: Outcome.ABORTED}
    assert sink.recover_and_commit([again], soon())[again.token].is_committed
    assert own.values(out) == ["a"]


def test_k19_the_sweep_fences_a_transaction_at_the_last_epoch(own, make, run, monkeypatch):
    out = own.topic()
    sink = make(out)
    name = at_the_last_epoch(own, run, monkeypatch)
    transaction = sink.begin_transaction(attempt_of(run, 0))
    sink.invoke(transaction, rows("zombie"))
    (undecided,) = [one for one in [sink.pre_commit(transaction)] if one]
    assert undecided.producer_epoch == LAST_EPOCH
    assert sink.lingering(run, soon()) == [name]
    sink.recover_and_abort([name], soon())
    assert sink.lingering(run, soon()) == []
    assert sink.commit([undecided], soon()) == {undecided.token: Outcome.UNKNOWN}
    with pytest.raises(PhaseOneError):
        assert transaction.slot is not None
        transaction.slot.producer.resync(soon())
    commit(sink, prepare(sink, attempt_of(run, 1, retired=sink.retired()), rows("a")))
    assert own.values(out) == ["a"]


# -- K17 -------------------------------------------------------------------------------------------


def test_k17_a_transaction_that_timed_out_takes_no_further_record(own, make, run):
    out = own.topic()
    sink = make(out, timeout_ms=1000)
    transaction = sink.begin_transaction(attempt_of(run, 0))
    sink.invoke(transaction, rows("first"))
    assert transaction.slot is not None
    producer = transaction.slot.producer
    producer.flush(soon())
    prepared = prepare(sink, attempt_of(run, 0, 1), rows("prepared"))
    names = [producer.transactional_id, prepared.transactional_id]
    eventually(
        lambda: {one.state for one in sink.wire.describe(names, soon()).values()},
        {"CompleteAbort"},
    )
    with pytest.raises((DeliveryError, PhaseOneError)):
        sink.invoke(transaction, rows("second"))
        sink.pre_commit(transaction)
    sink.abort(transaction)
    with pytest.raises(PhaseOneError, match="transaction has changed"):
        sink.check_prepared([prepared], soon())
    assert own.values(out) == []
    committable = prepare(sink, attempt_of(run, 1), rows("again"))
    assert committable.transactional_id not in names
    commit(sink, committable)
    assert own.values(out) == ["again"]


# -- X17: another transaction version between prepare and commit -----------------------------------


@pytest.mark.parametrize(
    ("before", "after", "restart"),
    sampled([(2, 1, False), (1, 2, False), (2, 0, False), (0, 2, True)], (2, 1, False)),
    ids=["tv2_tv1", "tv1_tv2", "tv2_tv0", "tv0_tv2_and_a_new_broker_process"],
)
def test_x17_the_transaction_version_changes_between_prepare_and_commit(
    own, make, run, before, after, restart
):
    """Decided right in all cases: what the writer and we speak is in the committable."""
    out = own.topic()
    sink = make(out)
    try:
        set_transaction_version(own.bootstrap, before)
        to_commit, to_recover, to_lose = decide(
            sink, *(prepare(sink, attempt_of(run, 0, n), rows(f"{n}")) for n in range(3))
        )
        assert {one.protocol_version for one in (to_commit, to_recover, to_lose)} == {1}
        sink.wire.fence(to_lose.transactional_id, 60_000, soon())
        set_transaction_version(own.bootstrap, after)
        if restart:
            own.cluster.kill_broker(0)
            own.cluster.start_broker(0)
        driver = make(out)
        assert driver.commit([to_commit], soon()) == {to_commit.token: Outcome.COMMITTED}
        name = to_commit.transactional_id
        ended = driver.wire.describe([name], soon())[name]
        # EndTxn above version 4 would have raised it, and fenced the producer that lives on.
        assert ended.producer_epoch == to_commit.producer_epoch
        both = (to_commit, to_recover)
        outcomes = driver.recover_and_commit(both, soon())
        assert outcomes[to_commit.token] is Outcome.ALREADY_COMMITTED
        assert outcomes[to_recover.token].is_committed
        assert driver.recover_and_commit([to_lose], soon()) == {to_lose.token: Outcome.ABORTED}
        # A committed one is known under its new level even after its id went on.
        driver.wire.fence(to_commit.transactional_id, 60_000, soon())
        assert driver.recover_and_commit([to_commit], soon())[to_commit.token].is_committed
        # The producer that lived through it goes on, or is replaced; then the level goes back.
        attempt = attempt_of(run, 1, last_decided=decided(*both), retired=driver.retired())
        (third,) = decide(driver, prepare(sink, attempt, rows("3")))
        set_transaction_version(own.bootstrap, before)
        assert driver.commit([third], soon()) == {third.token: Outcome.COMMITTED}
        assert sorted(own.values(out)) == ["0", "1", "3"]
    finally:
        set_transaction_version(own.bootstrap, 2)


# -- C5: rights ------------------------------------------------------------------------------------


def alice(resource: ResourceType, name: str, *rights: str) -> list[AclBinding]:
    return [
        AclBinding(
            *(resource, name, ResourcePatternType.PREFIXED, "User:alice", "*"),
            *(AclOperation[right], AclPermissionType.ALLOW),
        )
        for right in rights
    ]


def test_c5_transactional_ids_that_the_acls_forbid(own, make, run):
    """A task fails and says which right is missing; the same run goes on when it is given."""
    out = own.topic()
    admin = AdminClient({"bootstrap.servers": own.bootstrap})

    def allow(*bindings: AclBinding) -> None:
        give_acls(admin, bindings)

    ids = alice(ResourceType.TRANSACTIONAL_ID, f"{run.application_id}.", "WRITE", "DESCRIBE")
    allow(*alice(ResourceType.TOPIC, out, "READ", "DESCRIBE", "WRITE"))
    allow(*alice(ResourceType.GROUP, run.application_id, "READ", "DESCRIBE"))
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(user="alice", password="right"),
    }
    sink = make_sink(own.login, out, checkpoint_timeout_s=10.0, kafka=login)
    try:
        deadline = soon()
        with pytest.raises(AuthenticationError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            prepare(sink, attempt_of(run, 0), rows("refused"))
        assert deadline.remaining() > 10.0
        allow(*ids)
        hidden = prepare(sink, attempt_of(run, 0), rows("hidden"))
        with pytest.raises(PhaseOneError, match="DESCRIBE on their topic is not allowed"):
            decide(sink, hidden)
        sink.recover_and_abort([hidden.transactional_id], soon())
        allow(*alice(ResourceType.TOPIC, "__consumer_offsets", "DESCRIBE"))
        (decided_one,) = decide(sink, prepare(sink, attempt_of(run, 0), rows("a")))
        filters = [
            AclBindingFilter(
                one.restype, one.name, one.resource_pattern_type, *(None, None),
                one.operation, one.permission_type,
            )
            for one in ids
        ]  # fmt: skip
        for done in admin.delete_acls(filters).values():
            assert done.result(timeout=20)
        with pytest.raises(AuthenticationError, match="lacks a right"):
            sink.commit([decided_one], soon())
        with pytest.raises(AuthenticationError, match="lacks a right"):
            sink.recover_and_commit([decided_one], soon())
        allow(*ids)
        assert sink.recover_and_commit([decided_one], soon())[decided_one.token].is_committed
        assert own.values(out) == ["a"]
    finally:
        sink.close()
