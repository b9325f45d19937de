"""The product's own sink, wire and log, killed at every crash point and every pair of them.

`test_crash_points.py` does the same around a sink that stands for any two-phase sink; here the
Kafka sink, its producer pool and its requests are inside. No point may be missed: each moment that
a test asks for must have been reached, and `HEALING` names the points that only a lost transaction
leads to, so that a new point cannot be forgotten.
"""

import pytest

from tests.simulation.adversary import Profile
from tests.simulation.runner import run_seed
from tests.simulation.world import TIMEOUT_MS
from tests.tiers import long
from transactions import crash_points

#: Reached only when the broker has aborted what was decided.
HEALING = ("heal_started", "heal_produced", "heal_durable", "heal_committed")
ALWAYS = (
    "batch_started",
    "records_queued",
    "records_flushed",
    "offsets_sent",
    "committables_collected",
    "prepared_checked",
    "decision_durable",
    "one_committed",
    "all_committed",
    "batch_finished",
    "recovery_fenced",
    "recovery_settled",
)
PAST_THE_TIMEOUT_S = TIMEOUT_MS / 1000 + 60.0


def killed_at(*crashes: tuple[str, int], downtime_s: float = 0.0):
    """Run without other faults; every moment must have come."""
    world = run_seed(1, Profile.quiet(), crashes=crashes, first_downtime_s=downtime_s)
    assert world.crashes == [], f"never reached: {world.crashes}"
    assert world.errors["Crash"] == len(crashes)
    return world


def test_the_lists_name_every_point():
    assert {*ALWAYS, *HEALING} == set(crash_points.POINTS)
    assert set(run_seed(1, Profile.quiet()).reached) == set(ALWAYS)
    lost = killed_at(("decision_durable", 2), downtime_s=PAST_THE_TIMEOUT_S)
    assert set(lost.reached) == set(crash_points.POINTS)
    assert lost.lost_decided == 4


@pytest.mark.parametrize("first", ALWAYS)
def test_each_point_and_each_pair(first):
    killed_at((first, 1))
    for second in ALWAYS:
        killed_at((first, 1), (second, 1))


@pytest.mark.parametrize(
    "lost_at", [("decision_durable", 2), pytest.param(("one_committed", 3), marks=long)]
)
@pytest.mark.parametrize("first", [*HEALING, "recovery_fenced", "recovery_settled"])
def test_each_point_of_healing_and_each_pair(first, lost_at):
    """The first run dies after a decision, and nobody comes back before the broker's timeout."""
    killed_at(lost_at, (first, 1), downtime_s=PAST_THE_TIMEOUT_S)
    for second in (*HEALING, *ALWAYS):
        if first == "heal_committed" and second in HEALING:
            continue  # nothing is lost any more
        world = killed_at(lost_at, (first, 1), (second, 1), downtime_s=PAST_THE_TIMEOUT_S)
        assert world.lost_decided > 0
