"""What the broker aborted although it was decided is produced again, whatever dies meanwhile.

A run dies after a decision; the broker aborts some of its transactions, as it does when their
timeout passes; later runs heal. The auditor is a plain list: the input, once.
"""

import itertools
from collections import Counter

import pytest

from tests.simulation.fake_broker import FakeSink
from tests.simulation.pipeline import Crash, Driver, Durable
from tests.simulation.test_crash_points import EXPECTED, TOTAL, Killer, check
from transactions import crash_points
from transactions.errors import TransactionLostError
from transactions.log_entries import ACCEPT_LOSS, REPLAY, Resolved

HEAL_POINTS = crash_points.HEALING_POINTS
#: Where a run can die with everything decided and something still open.
DECIDED_POINTS = ["decision_durable", "one_committed"]


@pytest.fixture
def killer():
    yield lambda *moments: crash_points.install(one := Killer(*moments)) or one
    crash_points.install(None)


def lose(killer, durable, point="decision_durable", which=slice(None)):
    """Kill a run at a point of checkpoint 1, and let the broker abort what is open."""
    killer((point, 2 if point == "decision_durable" else 3))
    with pytest.raises(Crash):
        Driver(durable).run(TOTAL)
    killer()
    lost = durable.broker.open_ids()[which]
    assert lost
    for one in lost:
        durable.broker.abort(one)
    return lost


def run_until_done(durable, most=10):
    for restarts in range(most):
        try:
            Driver(durable).run(TOTAL)
        except Crash:
            continue
        return restarts
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("which", [slice(None), slice(0, 1), slice(1, 3)], ids=["all", "1", "2"])
@pytest.mark.parametrize("point", DECIDED_POINTS)
def test_x9_lost_transactions_are_healed_in_the_replay(killer, point, which):
    durable = Durable()
    lose(killer, durable, point, which)
    driver = Driver(durable)
    driver.run(TOTAL)
    check(durable)
    assert driver.log.state.decision.checkpoint_id == max(durable.commits)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", HEAL_POINTS)
def test_a_crash_at_each_point_of_healing(killer, point, nth):
    durable = Durable()
    lose(killer, durable)
    one = killer((point, nth))
    restarts = run_until_done(durable)
    assert restarts == (0 if one.moments else 1)
    check(durable)


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(HEAL_POINTS, [*HEAL_POINTS, "recovery_settled"]))
)
def test_two_crashes_while_healing(killer, first, second):
    durable = Durable()
    lose(killer, durable)
    one = killer((first, 1), (second, 1))
    run_until_done(durable)
    assert len(one.moments) < 2
    check(durable)


@pytest.mark.parametrize("point", HEAL_POINTS[1:])
def test_what_was_healed_is_lost_again(killer, point):
    """The replacement is open, decided or not, when the next downtime is too long as well."""
    durable = Durable()
    lose(killer, durable)
    killer((point, 1))
    with pytest.raises(Crash):
        Driver(durable).run(TOTAL)
    killer()
    for one in durable.broker.open_ids():
        durable.broker.abort(one)
    Driver(durable).run(TOTAL)
    check(durable)


def test_a_replay_that_takes_longer_than_a_checkpoint_is_committed(killer, monkeypatch):
    """The next run would have as little time for it, so the loss would never be healed."""
    durable = Durable()
    lose(killer, durable)
    driver, left = Driver(durable), []
    write, check_prepared, commit = driver.phase_one, FakeSink.check_prepared, FakeSink.commit

    def slow(number, only=None):
        if only is not None:
            driver.clock.sleep(1000)
        return write(number, only)

    def noted(step):
        def call(sink, committables, deadline):
            left.append(deadline.remaining())
            return step(sink, committables, deadline)

        return call

    monkeypatch.setattr(driver, "phase_one", slow)
    monkeypatch.setattr(FakeSink, "check_prepared", noted(check_prepared))
    monkeypatch.setattr(FakeSink, "commit", noted(commit))
    driver.batch(1)
    assert len(left) == 4
    assert min(left) > 0


def test_a_living_run_heals_what_times_out_before_its_commit(killer):
    durable = Durable()
    driver = Driver(durable)
    aborted = []

    def hook(point, checkpoint):
        if point == "decision_durable" and checkpoint == 1 and not aborted:
            aborted.extend(durable.broker.open_ids())
            for one in aborted:
                durable.broker.abort(one)

    crash_points.install(hook)
    driver.run(TOTAL)
    assert len(aborted) == 4
    check(durable)


def test_a_broker_that_aborts_everything_ends_in_an_error(killer):
    durable = Durable()
    lose(killer, durable)
    driver = Driver(durable)

    def hook(point, _checkpoint):
        if point == "heal_durable":
            for one in durable.broker.open_ids():
                durable.broker.abort(one)

    crash_points.install(hook)
    with pytest.raises(TransactionLostError, match="again and again"):
        driver.run(TOTAL)
    crash_points.install(None)
    Driver(durable).run(TOTAL)
    check(durable)


def other_records(driver):
    """A plan that is not deterministic: one record less in the replay."""
    original = driver.phase_one

    def phase_one(number, only=None):
        if only is None:
            return original(number)
        start, end = driver.durable.offsets[number]
        driver.durable.offsets[number] = (start, end - 2)
        try:
            return original(number, only)
        finally:
            driver.durable.offsets[number] = (start, end)

    driver.phase_one = phase_one
    return driver


def refused(durable):
    driver = other_records(Driver(durable))
    with pytest.raises(TransactionLostError, match=r"records, \d were decided") as raised:
        driver.run(TOTAL)
    return driver, raised.value


def test_a_replay_that_does_not_match_is_refused_and_nothing_of_it_is_visible(killer):
    durable = Durable()
    lost = lose(killer, durable)
    before = list(durable.broker.visible)
    _, error = refused(durable)
    assert "checkpoint 1" in error.where
    assert lost[0] in error.where
    assert "resolve" in error.option
    Driver(durable)  # sweeps what the refused replay had prepared
    assert durable.broker.open_ids() == []
    assert durable.broker.visible == before


def test_without_a_replay_of_the_checkpoint_no_later_one_is_made(killer):
    """Spark's commits/1 exists although checkpoint 1 is lost: somebody copied files."""
    durable = Durable()
    lose(killer, durable)
    durable.commits.add(1)
    with pytest.raises(TransactionLostError, match="went on to checkpoint 2"):
        Driver(durable).run(TOTAL)


@pytest.mark.parametrize("verdict", [ACCEPT_LOSS, REPLAY])
def test_a_person_decides_about_what_cannot_be_healed(killer, verdict):
    durable = Durable()
    lose(killer, durable)
    driver, _ = refused(durable)
    decision = driver.log.state.decision
    tokens = tuple(one.token for one in decision.committables)
    driver.log.resolve(Resolved(checkpoint_id=1, verdict=verdict, tokens=tokens))
    other_records(Driver(durable)).run(TOTAL)
    seen = Counter(durable.broker.visible)
    missing = (
        {"left:4", "left:5", "left:6", "left:7"}
        if verdict == ACCEPT_LOSS
        else {
            "left:6",
            "left:7",
        }
    )
    missing |= {name.replace("left", "right") for name in missing}
    assert seen == EXPECTED - Counter(missing)
    assert durable.broker.open_ids() == []
    Driver(durable)  # and it is over: the next start finds nothing lost
