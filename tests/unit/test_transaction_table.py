"""What `sparkonce transactions list` says of each transaction: log and broker in, a verdict out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.operations.transaction_table import Row, Seen, Standing, join, unsettled
from connectors.wire.wire_requests import TransactionDescription
from transactions.committable import Committable
from transactions.log_entries import Decision
from transactions.log_state import LogState

ID = "app.10gaaaa1.4.p.0"
ONE = Committable(
    sink="out",
    transactional_id=ID,
    producer_id=7,
    producer_epoch=2,
    start_time_ms=1000,
    timeout_ms=60_000,
    checkpoint_id=5,
    subtask=0,
    attempt="4.1",
    token="5.0.aa",
    record_count=3,
    fingerprint="0" * 32,
    marker_group="app",
    marker_partition="in-0",
)
LOG = LogState(
    application_id="app",
    log_id="10gaaaa1",
    tail=9,
    run_epoch=4,
    host="here/1",
    decision=Decision(
        checkpoint_id=5,
        query_id="q",
        generation=0,
        start_offsets=(),
        end_offsets=(),
        committables=(ONE,),
    ),
)
OPEN = TransactionDescription(
    transactional_id=ID,
    state="Ongoing",
    producer_id=7,
    producer_epoch=2,
    start_time_ms=1000,
    timeout_ms=60_000,
)
SEEN = Seen(log=LOG, described={ID: OPEN}, open_ids={"out": [ID]}, now_ms=4000)
LATER = replace(OPEN, start_time_ms=3000)


def only(seen: Seen) -> Row:
    (row,) = join(seen)
    return row


def with_state(**changes: object) -> Seen:
    return replace(SEEN, described={ID: replace(OPEN, **changes)}, open_ids={})


def test_a_decided_transaction_that_is_open_is_pending_and_listed_once():
    row = only(SEEN)
    assert (row.standing, row.age_ms, row.decided) == (Standing.PENDING, 3000, ONE)
    assert "transactions commit" in row.advice


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        ("PrepareCommit", Standing.COMMITTED),
        ("CompleteCommit", Standing.COMMITTED),
        ("PrepareAbort", Standing.ABORTED),
        ("CompleteAbort", Standing.ABORTED),
        ("PrepareEpochFence", Standing.ABORTED),
    ],
)
def test_the_brokers_state_is_a_proof_while_start_and_producer_are_equal(state, standing):
    assert only(with_state(state=state)).standing is standing
    for other in ({"start_time_ms": 2000}, {"producer_id": 8}):
        assert only(with_state(state=state, **other)).standing is Standing.UNKNOWN


def test_an_open_transaction_of_another_epoch_is_not_pending():
    assert only(with_state(producer_epoch=3)).standing is Standing.UNKNOWN


def test_its_token_proves_a_commit_when_the_id_went_on_or_is_forgotten():
    forgotten = TransactionDescription(transactional_id=ID, error="TRANSACTIONAL_ID_NOT_FOUND")
    for now in (replace(OPEN, state="Empty", producer_epoch=4), forgotten):
        seen = replace(SEEN, described={ID: now}, open_ids={})
        assert only(seen).standing is Standing.UNKNOWN
        proven = replace(seen, markers={ONE.token: (12, ONE.token)})
        assert only(proven).standing is Standing.COMMITTED
        foreign = replace(seen, markers={ONE.token: (12, "4.0.bb")})
        assert only(foreign).standing is Standing.UNKNOWN


def test_the_next_transaction_of_a_producer_is_a_row_of_its_own():
    seen = replace(SEEN, described={ID: LATER}, markers={ONE.token: (12, ONE.token)})
    decided, following = join(seen)
    assert (decided.standing, decided.decided) == (Standing.COMMITTED, ONE)
    assert (following.standing, following.decided) == (Standing.OPEN, None)


def test_sparks_own_record_is_a_proof_that_outlives_the_broker():
    forgotten = TransactionDescription(transactional_id=ID, error="TRANSACTIONAL_ID_NOT_FOUND")
    seen = replace(SEEN, described={ID: forgotten}, open_ids={}, finished=5)
    assert only(seen).standing is Standing.COMMITTED
    assert only(replace(seen, finished=4)).standing is Standing.UNKNOWN


def test_what_a_person_resolved_is_said():
    log = replace(LOG, resolved={ONE.token: "accept-loss"})
    row = only(replace(with_state(state="CompleteAbort"), log=log))
    assert (row.standing, row.proof) == (Standing.RESOLVED, "a person decided: accept-loss")


@pytest.mark.parametrize(
    ("name", "alive", "standing"),
    [
        ("app.10gaaaa1.3.p.0", True, Standing.LINGERING),  # an older run is fenced, dead or not
        ("app.10gaaaa1.4.p.1", False, Standing.LINGERING),
        ("app.10gaaaa1.4.p.1", True, Standing.OPEN),
        ("app.10gaaaa1.4.p.1", None, Standing.OPEN),
        ("app.10gaaaa1.5.p.0", False, Standing.OPEN),  # begun after the log was read
        ("app.10gaaaa2.3.p.0", False, Standing.OTHER_LOG),
        ("app.doctor", False, Standing.PROBE),
        ("app.billing", False, Standing.STRANGERS),
        ("app.10gaaaa1.billing", False, Standing.STRANGERS),  # our log's id, by chance
        ("app.10gaaaa1.3.p.0.copy", False, Standing.STRANGERS),
        ("app.10gaaaa1.3.p.x", True, Standing.STRANGERS),
        ("app.doctor.1.p.0", None, Standing.STRANGERS),
    ],
)
def test_an_open_transaction_that_no_checkpoint_owns(name, alive, standing):
    log = replace(LOG, decision=None)
    seen = replace(
        SEEN,
        log=log,
        run_alive=alive,
        described={name: replace(OPEN, transactional_id=name)},
        open_ids={"out": [name], "second": [name]},
    )
    assert only(seen).standing is standing


def test_one_that_ended_between_two_answers_is_not_shown():
    assert join(replace(SEEN, log=replace(LOG, decision=None), described={})) == []


def test_without_a_broker_only_the_log_speaks():
    row = only(Seen(log=LOG, now_ms=4000))
    assert (row.standing, row.proof) == (Standing.UNKNOWN, "no broker was asked")


def test_pending_and_unknown_ones_are_not_to_be_touched():
    assert unsettled(join(SEEN))
    assert unsettled(join(with_state(producer_epoch=3)))
    assert not unsettled(join(with_state(state="CompleteCommit")))
    assert not unsettled(join(with_state(state="CompleteAbort")))


def test_a_committed_transaction_without_its_marker_is_hidden_and_never_aborted():
    seen = replace(with_state(state="CompleteCommit"), hidden={ONE.token: "out-3"})
    row = only(seen)
    assert row.standing is Standing.HIDDEN
    assert "no marker in out-3" in row.proof
    assert "write-markers" in row.advice
    assert unsettled([row]) == []  # its end is proven; what is missing is not the coordinator's
    assert only(replace(SEEN, hidden={ONE.token: "out-3"})).standing is Standing.PENDING
