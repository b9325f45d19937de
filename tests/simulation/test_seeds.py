"""Random faults by the seed: network, workers, drivers, log, time. See `adversary.py`.

`python -m tests.simulation --seeds 1000` runs more of them.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.adversary import Profile
from tests.simulation.runner import digest, run_seed
from tests.tiers import long, sampled
from transactions import crash_points

SEEDS, GROUP = 200, 25
#: Kinds of fault that some of the seeds must have met, or the test says nothing.
KINDS = set(Profile.__dataclass_fields__) - {"switch"}


@pytest.mark.parametrize("first", sampled(range(0, SEEDS, GROUP), 0))
def test_nothing_is_lost_or_doubled_under_random_faults(first):
    for seed in range(first, first + GROUP):
        run_seed(seed)


@long  # of the seeds, not of the product
def test_random_seeds_reach_every_crash_point_and_every_kind_of_fault():
    reached: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(1_000_000, 1_000_200):
        world = run_seed(seed)
        reached.update(world.reached)
        faults.update(world.network.counts)
        if set(reached) == set(crash_points.POINTS) and set(faults) == KINDS:
            return
    assert set(reached) == set(crash_points.POINTS)
    assert set(faults) == KINDS


def test_without_faults_one_driver_does_it():
    world = run_seed(1, Profile.quiet())
    assert world.network.counts == {}
    assert len(world.drivers) == 2  # the second finds nothing to do
    assert not world.errors


def test_a_seed_is_the_same_run_again():
    assert digest(run_seed(7)) == digest(run_seed(7))
    assert digest(run_seed(7)) != digest(run_seed(8))


def test_a_seed_is_the_same_run_in_another_process():
    """Whatever the order of sets is there: the printed command really replays a failure."""
    out = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "7"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert f"digest {digest(run_seed(7))}" in out
