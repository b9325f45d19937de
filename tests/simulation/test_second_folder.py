"""One application on two folders: a backup, a copy, and the original, in any order.

A run on an older folder must not write again what is newer, unless a person accepts that; two runs
at once must not sweep each other for ever. The judge is a reader of committed records only.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.simulation.adversary import Profile
from tests.simulation.runner import installed
from tests.simulation.scheduler import Crash
from tests.simulation.world import EXPECTED, DriverRun, Folder, World
from tests.tiers import sampled
from transactions import crash_points
from transactions.decision_log import DecisionLog, read_log
from transactions.errors import FencedError, IdentityMismatchError, OutcomeUnknownError

#: Where a backup can be made; the log says something else at each of them.
MOMENTS = (
    "batch_started",
    "prepared_checked",
    "decision_durable",
    "one_committed",
    "batch_finished",
)
BATCHES = 5


class Story(World):
    """A world without other faults, whose folders are copied by the story."""

    def __init__(self, seed: int = 1, *, carries: bool = True, switch: float = 0.0) -> None:
        super().__init__(seed, dataclasses.replace(Profile.quiet(), switch=switch))
        self.carries = carries
        self.copy_at: tuple[str, int] = ("", 0)
        self.copied: Folder | None = None

    def on_crash_point(self, point: str, checkpoint_id: int) -> None:
        if (point, checkpoint_id) == self.copy_at and self.copied is None:
            self.copied = self.folder.copied()
        super().on_crash_point(point, checkpoint_id)

    def start(self, folder: Folder | None = None, *, accepts: bool = False) -> DriverRun:
        """Start a driver; it runs with the next steps of the scheduler."""
        driver = DriverRun(self, len(self.drivers), folder, accepts=accepts)
        self.drivers.append(driver)
        return driver

    def live(self, folder: Folder | None = None, *, accepts: bool = False) -> BaseException | None:
        """Let a driver run to its end, alone, and return what ended it."""
        driver = self.start(folder, accepts=accepts)
        self.rest()
        return driver.error

    def dies(
        self, point: str, nth: int, folder: Folder | None = None, *, accepts: bool = False
    ) -> None:
        """Let a driver run alone until it comes to a point for the nth time."""
        self.since_crash.clear()
        self.crashes = [(point, nth)]
        assert isinstance(self.live(folder, accepts=accepts), Crash)

    def rest(self) -> None:
        """Let everybody run until nobody does."""
        for _ in range(100_000):
            if not self.scheduler.step():
                return
        raise AssertionError(f"they never end: {self.errors}")

    def twice(self) -> Counter[str]:
        return self.visible() - EXPECTED


@pytest.fixture
def story() -> Iterator[Callable[..., Story]]:
    with ExitStack() as stack:

        def begin(*args: int, **options: float) -> Story:
            one = Story(*args, **options)  # type: ignore[arg-type]
            stack.enter_context(installed(one))
            stack.callback(one.scheduler.kill_all)
            stack.callback(crash_points.install, None)
            crash_points.install(one.on_crash_point)
            return one

        yield begin


@pytest.mark.parametrize("carries", [True, False], ids=["offsets", "markers only"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", range(BATCHES))
def test_a_backup_of_any_age_is_refused(story, number: int, moment: str, carries: bool):
    one = story(carries=carries)
    one.copy_at = (moment, number)
    assert one.live() is None
    assert one.visible() == EXPECTED
    backup = one.copied
    ended = one.live(backup.copied())
    if number == BATCHES - 1 and moment in ("decision_durable", "one_committed", "batch_finished"):
        assert ended is None, "it knows all that was decided"
    else:
        assert isinstance(ended, IdentityMismatchError)
        last = number if moment in MOMENTS[2:] else number - 1
        assert f"last in the log: {f'checkpoint {last}' if last >= 0 else 'none'}" in ended.where
        assert f"checkpoint {BATCHES - 1} in group app" in ended.where
        for name in ("--accept-duplicates", "accept_duplicates=True", "acceptDuplicates=true"):
            assert name in ended.option  # whoever asks finds the name that he can write
    assert one.visible() == EXPECTED


@pytest.mark.parametrize("carries", [True, False], ids=["offsets", "markers only"])
def test_a_backup_is_refused_again_after_a_start_that_left_a_fence(story, carries: bool):
    """A start can be refused behind its Fence, when an older run commits beside it. The next start
    must not take the numbers of its own log for those of the original's runs.
    """
    one = story(carries=carries)
    one.copy_at = ("one_committed", 3)
    assert one.live() is None
    backup = one.copied
    state = read_log(backup.backend)
    DecisionLog.open(backup.backend, application_id="app", identity=state.identity, clock=one.clock)
    for _ in range(2):
        assert isinstance(one.live(backup), IdentityMismatchError)
    assert one.visible() == EXPECTED


def test_an_emptied_folder_is_refused(story):
    one = story()
    assert one.live() is None
    assert isinstance(one.live(Folder(type(one.folder.copied().backend)())), IdentityMismatchError)
    assert one.visible() == EXPECTED


@pytest.mark.parametrize("carries", [True, False], ids=["offsets", "markers only"])
def test_who_accepts_duplicates_is_asked_once(story, carries: bool):
    """The next start knows it, also while older markers of other ids are newer than the log."""
    one = story(carries=carries)
    one.copy_at = ("batch_finished", 1)
    assert one.live() is None
    one.dies("batch_started", 2, one.copied, accepts=True)
    assert one.twice() == {f"{side}:{n}": 1 for side in ("left", "right") for n in range(8, 12)}
    assert one.live(one.copied) is None
    assert set(one.visible()) == set(EXPECTED)
    assert max(one.visible().values()) == 2


def test_the_original_is_refused_after_an_accepted_backup_went_on(story):
    """Its log ends with a higher number than the newest output has: offsets tell."""
    one = story()
    one.copy_at = ("batch_finished", 1)
    one.dies("batch_started", 4)  # up to 2 of 5
    backup = one.copied
    backup.spark.offsets[2] = (8, 20)  # one larger batch to the end
    assert one.live(backup, accepts=True) is None
    seen = one.visible()
    assert isinstance(one.live(), IdentityMismatchError)
    assert one.visible() == seen


@pytest.mark.parametrize("carries", [True, False], ids=["offsets", "markers only"])
@pytest.mark.parametrize("seed", sampled(range(40), *range(10)))
def test_a_copy_beside_the_running_original(story, seed: int, carries: bool):
    """Nothing comes twice, nobody runs for ever, and one of the folders can be used to the end."""
    rng = random.Random(seed)
    one = story(seed, carries=carries, switch=0.2)
    one.copy_at = (rng.choice(MOMENTS), rng.randrange(BATCHES))
    original = one.start()
    while one.copied is None:
        one.scheduler.step()
    for _ in range(rng.randrange(40)):
        one.scheduler.step()
    copy = one.start(one.copied)
    one.rest()
    assert not one.twice()
    for driver in (original, copy):
        assert driver.error is None or isinstance(
            driver.error, IdentityMismatchError | FencedError | OutcomeUnknownError
        ), driver.error
    ends = [one.live(folder) for folder in (one.folder, one.copied)]
    assert not one.twice()
    assert any(end is None for end in ends), ends
    assert one.visible() == EXPECTED
    assert one.cluster.open_ids() == []


@pytest.mark.parametrize("order", ["copy first", "original first"])
def test_a_copy_and_the_original_in_turns(story, order: str):
    """The copy was up to date when the original had stopped; who goes on first, owns it."""
    one = story()
    one.dies("batch_started", 3)
    folders = [one.folder, one.folder.copied()]
    if order == "copy first":
        folders.reverse()
    one.dies("batch_started", 2, folders[0])
    assert isinstance(one.live(folders[1]), IdentityMismatchError)
    assert one.live(folders[0]) is None
    assert isinstance(one.live(folders[1]), IdentityMismatchError)
    assert one.visible() == EXPECTED


def test_what_the_original_left_open_is_swept_by_a_copy_with_older_run_epochs(story):
    """Nobody else would: readers would wait for its timeout."""
    one = story()
    one.dies("batch_started", 3)
    copied = one.folder.copied()
    for _ in range(3):
        one.dies("committables_collected", 1)
    assert one.cluster.open_ids()
    assert one.live(copied) is None
    assert one.cluster.open_ids() == []
    assert one.visible() == EXPECTED
