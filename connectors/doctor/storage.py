"""What a storage must promise before a decision log may lie in it, tried on the storage itself.

The trial puts, reads, lists and deletes names of its own, below the place that is tried, and
removes them. One process finds a store that has no conditional put. A store that looks first and
writes later lets two writers win only if both are at work at the same moment. So two processes race
for each of some names. That finds a wide gap between look and write, and proves nothing about a
narrow one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from connectors.doctor.verdict import Kind, Level, Verdict
from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import ConfigurationError, SparkOnceError
from transactions.log_backend import KeepsFolder, LogBackend

#: Names for which two processes race.
ROUNDS: Final = 20
#: Names that one process puts, reads, lists and deletes.
_NAMES: Final = 5
#: The racers start each round at the same moment of the machine's clock, so long after the call.
_START_S: Final = 0.02
#: How long a racer may take to start: an interpreter, and the connections to the store.
_READY_S: Final = 60.0
_HARM: Final = "two drivers could both decide one checkpoint"


class _BrokenPromiseError(Exception):
    """What was seen, and what it would do to a log."""


def check_storage(
    place: CheckpointLocation, *, timeout_s: float = 30.0, rounds: int = ROUNDS
) -> list[Verdict]:
    """Try each promise; a promise after the first broken one is not tried.

    In the process of the command, and in two more. It needs the rights of a driver: to put, get,
    list and delete.

    Args:
        place: of a checkpoint or a log, with the options of its store.
        timeout_s: how long one put may go without an answer, roughly.
        rounds: see `ROUNDS`.

    Returns:
        A row for each promise that was tried.
    """
    rows: list[Verdict] = []
    with _apart(place, timeout_s) as apart:
        for check, tried in _PROMISES.items():
            try:
                rows.append(Verdict(check, Level.OK, tried(apart, rounds)))
            except (_BrokenPromiseError, OSError, SparkOnceError) as error:
                rows.append(_refusal(check, place, error))
                break
    return rows


def _refusal(check: str, place: CheckpointLocation, error: Exception) -> Verdict:
    option = f"another place than {place}; docs/decision_log.md says which stores keep the promise"
    if isinstance(error, _BrokenPromiseError):
        found, reason = error.args
        return Verdict(check, Level.REFUSE, found, reason, option)
    if isinstance(error, SparkOnceError):
        kind = Kind.SETTING if isinstance(error, ConfigurationError) else Kind.OUTAGE
        found = f"{error.what} {error.where}"
        return Verdict(check, Level.REFUSE, found, error.cause, error.option, kind)
    reason = "the store or the disk does not answer, or is full or read-only"
    return Verdict(check, Level.REFUSE, str(error), reason, str(place), Kind.OUTAGE)


@contextlib.contextmanager
def _apart(place: CheckpointLocation, timeout_s: float) -> Iterator[CheckpointLocation]:
    """Yield a place of our own below the one that is tried; it is empty afterwards."""
    folder = place.folder
    if folder is not None:
        there = next(one for one in (folder, *folder.parents) if one.is_dir())
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there) as made:
            yield CheckpointLocation(Path(made))
        return
    # A put takes three times the sum of both at most.
    brief = {"timeout_s": timeout_s / 6, "retry_s": timeout_s / 6}
    address = f"{str(place.address).rstrip('/')}/doctor-{secrets.token_hex(8)}"
    apart = CheckpointLocation(address, {**brief, **place.options})
    try:
        yield apart
    finally:
        with contextlib.suppress(OSError, SparkOnceError):
            backend = apart.files()
            for name in backend.list():
                backend.delete(name)
            if isinstance(backend, KeepsFolder):
                backend.remove_folder()


# --- the promises ---------------------------------------------------------------------------------


def _put_if_absent(place: CheckpointLocation, _: int) -> str:
    backend = place.files()
    if not backend.put_if_absent("first", b"one"):
        raise _BrokenPromiseError("a name that nobody has used was taken", "no log can begin here")
    if backend.put_if_absent("first", b"two") or backend.get("first") != b"one":
        raise _BrokenPromiseError("a second put of a name was accepted", _HARM)
    return "the second put of a name was refused, and changed nothing"


def _read_after_write(place: CheckpointLocation, _: int) -> str:
    for name, backend in _names(place, "read"):
        backend.put_if_absent(name, name.encode())
        if backend.get(name) != name.encode():
            raise _BrokenPromiseError(
                f"{name} was put, and a read does not find it",
                "a driver would not see a decision, or a newer driver's Fence",
            )
    return f"{_NAMES} names were read as soon as they were put"


def _list_after_put(place: CheckpointLocation, _: int) -> str:
    for name, backend in _names(place, "list"):
        backend.put_if_absent(name, b"")
        if name not in backend.list():
            raise _BrokenPromiseError(
                f"{name} was put, and a list does not show it",
                "a driver would begin before the last decision, and write it again",
            )
    return f"{_NAMES} names were listed as soon as they were put"


def _delete(place: CheckpointLocation, _: int) -> str:
    for name, backend in _names(place, "delete"):
        backend.put_if_absent(name, b"")
        backend.delete(name)
        if backend.get(name) is not None or name in backend.list():
            raise _BrokenPromiseError(
                f"{name} was deleted, and is still there",
                "old entries of a log would come back after its compaction",
            )
    return f"{_NAMES} names were gone as soon as they were deleted"


def _names(place: CheckpointLocation, word: str) -> Iterator[tuple[str, LogBackend]]:
    backend = place.files()
    for number in range(_NAMES):
        yield f"{word}-{number}", backend


def _race(place: CheckpointLocation, rounds: int) -> str:
    backend, slowest_s = place.files(), 0.0
    with _racers(place) as (one, other):
        for number in range(rounds):
            name = f"race-{number}"
            one.start(name)
            other.start(name)
            answers = one.answer(), other.answer()
            slowest_s = max(slowest_s, *(answer.took_s for answer in answers))
            winners = [answer.data for answer in answers if answer.has_won]
            # None has won if both have lost an answer and found their own object afterwards.
            possible = [[answer.data] for answer in answers] if not winners else [winners]
            if [backend.get(name)] not in possible:
                raise _BrokenPromiseError(
                    f"{len(winners)} of two processes won the name {name}, or lost what they "
                    f"put, in round {number + 1} of {rounds}",
                    _HARM,
                )
    return (
        f"two processes raced for {rounds} names, and one of them won each; the slowest put took "
        f"{slowest_s * 1000:.0f} ms"
    )


_PROMISES: Final[Mapping[str, Callable[[CheckpointLocation, int], str]]] = {
    "put if absent": _put_if_absent,
    "read after write": _read_after_write,
    "list after put": _list_after_put,
    "delete": _delete,
    "put if absent, raced": _race,
}


# --- the racers -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """How a racer's put ended.

    Attributes:
        data: what it has put.
        has_won: whether the storage says that it is stored.
        took_s: how long the put took.
    """

    data: bytes
    has_won: bool
    took_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Racer:
    """The command's side of one racing process."""

    link: Connection

    def start(self, name: str) -> None:
        """Let it put a name, soon."""
        self.link.send((name, SYSTEM_CLOCK.monotonic() + _START_S))

    def answer(self) -> _Answer:
        """Return how its put ended.

        Raises:
            OSError, SparkOnceError: of the put; or the process has ended, or does not start.
        """
        try:
            answer = self.link.recv() if self.link.poll(_READY_S) else TimeoutError("no answer")
        except EOFError as ended:
            raise OSError("a racing process has ended without an answer") from ended
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, _Answer)
        return answer


@contextlib.contextmanager
def _racers(place: CheckpointLocation) -> Iterator[tuple[_Racer, _Racer]]:
    """Yield two processes that are ready to put; they end with the block."""
    # Not fork: a store's client has threads, and they would be missing in the child.
    context = multiprocessing.get_context("spawn")
    links, processes = [], []
    try:
        for data in (b"one", b"other"):
            ours, theirs = context.Pipe()
            process = context.Process(target=put_when_told, args=(place, theirs, data), daemon=True)
            process.start()
            theirs.close()
            links.append(ours)
            processes.append(process)
        one, other = map(_Racer, links)
        for racer in (one, other):
            racer.answer()  # ready
        yield one, other
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join(_READY_S)


def put_when_told(place: CheckpointLocation, link: Connection, data: bytes) -> None:
    """Put each name that comes, at the moment that comes with it. In a process of its own, until
    the other end of the link is closed.
    """
    try:
        backend = place.files()
        # Its connection is made, and the trial of the store is done, before the first race.
        backend.put_if_absent(f"ready-{secrets.token_hex(8)}", b"")
        link.send(_Answer(data, has_won=True, took_s=0.0))
        while True:
            name, begin = link.recv()
            while SYSTEM_CLOCK.monotonic() < begin:
                pass  # a sleep would end some milliseconds apart in the two processes
            has_won = backend.put_if_absent(name, data)
            link.send(_Answer(data, has_won, SYSTEM_CLOCK.monotonic() - begin))
    except EOFError:
        return
    except (OSError, SparkOnceError) as error:
        with contextlib.suppress(OSError):
            link.send(error)
