"""``python -m tests.simulation --seeds 1000``, or one of them again: ``--seed 7 --trace``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.runner import digest, run_seed, traced


def main() -> int:
    """Run what was asked for; 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened")
    chosen = parser.parse_args()
    if chosen.seed is not None and chosen.trace:
        world, error = traced(chosen.seed)
        sys.stdout.write("\n".join(world.trace) + f"\n{error or 'every invariant holds'}\n")
        return error is not None
    first, count = (chosen.first, chosen.seeds) if chosen.seed is None else (chosen.seed, 1)
    begun, broken = time.monotonic(), []
    faults: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    drivers = lost = 0
    for seed in range(first, first + count):
        try:
            world = run_seed(seed)
        except AssertionError as error:
            broken.append(seed)
            sys.stdout.write(f"{error}\n")
            continue
        faults.update(world.network.counts)
        reached.update(world.reached)
        ended.update(world.errors)
        drivers += len(world.drivers)
        lost += world.lost_decided
        if count == 1:
            sys.stdout.write(f"digest {digest(world)}\n")
    sys.stdout.write(
        f"{count} seeds from {first}: {len(broken)} broken {broken or ''} "
        f"in {time.monotonic() - begun:.1f} s\n"
        f"drivers {drivers}, decided transactions that the broker aborted {lost}, "
        f"healed {reached['heal_durable']}\n"
        f"faults injected ({faults.total()}): {dict(faults.most_common())}\n"
        f"runs ended by: {dict(ended.most_common())}\n"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
