"""How a person asks a running pipeline for a savepoint: by files in its checkpoint.

A command puts ``<id>.ask`` into ``savepoint-requests`` and waits for ``<id>.answer``; the driver
looks five times a second, between two checkpoints. This needs no port and no signal, only the
rights of the checkpoint. At an address it looks once in ten seconds, on a thread of its own: a
store may take long, and each question costs money. An ask says until when somebody waits. The
driver drops an older ask, so it does not stop a pipeline tomorrow for a person who has given up.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Final

import orjson

from transactions.checkpoint_location import CheckpointLocation
from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import SavepointError, SavepointNotMadeError, SparkOnceError
from transactions.log_backend import LogBackend

logger = logging.getLogger(__name__)

_PART: Final = "savepoint-requests"
_ASK, _ANSWER = ".ask", ".answer"
_LOOK_S: Final = 0.1
LOOK_AT_ADDRESS_S: Final = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRequest:
    """One ask.

    Attributes:
        request_id: random.
        folder: an absolute path, or an address; where the savepoint is to be made.
        stop: stop between two checkpoints first; the run ends with the savepoint.
        until_ms: wall clock; nobody waits for an answer after it.
    """

    request_id: str
    folder: str
    stop: bool
    until_ms: int


class SavepointRequests:
    """The driver's side. It leaves a file alone, with a warning, that it may not or cannot read,
    answer or remove: such a file must not end a pipeline.

    Args:
        checkpoint: of the driver.
    """

    def __init__(self, checkpoint: CheckpointLocation) -> None:
        self._place = checkpoint.part(_PART)
        self._told: set[str] = set()
        self._answered: set[str] = set()
        self._last_found: list[SavepointRequest] = []
        self._looks: RegularLooks | None = None

    def pending(self, *, anew: bool = False) -> list[SavepointRequest]:
        """Return the asks of now, at an address those of the last look; it removes expired asks.

        Args:
            anew: look now at an address, too, and wait for its answer.
        """
        if self._place.folder is not None or anew:
            return self._found()
        self._looks = self._looks or RegularLooks(self._found)
        self._looks.go_on()
        # Much time may have passed since the last look, and the ask may be withdrawn.
        known = (one.request_id for one in self._last_found)
        found = (self._read(one) for one in known if one not in self._answered)
        return [one for one in found if one is not None]

    def answer(self, request: SavepointRequest, made: CheckpointLocation | SparkOnceError) -> None:
        """Answer where the savepoint is, or why there is none."""
        if isinstance(made, CheckpointLocation):
            text = {"place": str(made)}
        else:
            names = ("what", "where", "cause", "option")
            text = {name: getattr(made, name) for name in names}
        try:
            self._files.put_if_absent(request.request_id + _ANSWER, orjson.dumps(text))
            self._files.delete(request.request_id + _ASK)
        except (OSError, SparkOnceError) as error:
            self._tell(request.request_id, error)
        self._answered.add(request.request_id)

    def close(self) -> None:
        """Look no more."""
        if self._looks is not None:
            self._looks.close()
        self._looks = None

    @cached_property
    def _files(self) -> LogBackend:
        return self._place.files()

    def _found(self) -> list[SavepointRequest]:
        folder = self._place.folder
        try:
            if folder is not None and not folder.is_dir():
                return []  # nobody has ever asked, and no folder is made for nothing
            names = self._files.list(durable=False)
        except (OSError, SparkOnceError) as error:
            self._tell("", error)
            return self._last_found
        asked = {name.removesuffix(_ASK) for name in names if name.endswith(_ASK)}
        found = (self._read(one) for one in sorted(asked - self._answered))
        self._last_found = [one for one in found if one is not None]
        return self._last_found

    def _read(self, request_id: str) -> SavepointRequest | None:
        try:
            data = self._files.get(request_id + _ASK)
            if data is None:
                return None  # withdrawn
            fields = orjson.loads(data)
            if not isinstance(fields["folder"], str):
                raise TypeError("the folder is no text")  # noqa: TRY301 - as a missing one
            one = SavepointRequest(
                request_id=request_id,
                folder=fields["folder"],
                stop=fields["stop"] is True,
                until_ms=int(fields["until_ms"]),
            )
            if one.until_ms < SYSTEM_CLOCK.now_ms():
                self._files.delete(request_id + _ASK)
                return None
        except (OSError, SparkOnceError, ValueError, TypeError, KeyError) as error:
            self._tell(request_id, error)
            return None
        return one

    def _tell(self, request_id: str, error: Exception) -> None:
        """Warn once; the next look may find better."""
        if request_id not in self._told:
            logger.warning(
                "the savepoint request %s/%s cannot be served: %r", self._place, request_id, error
            )
        self._told.add(request_id)


class RegularLooks:
    """Looks into a store again and again; nobody waits for an answer of the store.

    Args:
        look: what finds the asks, and keeps them.
        every_s: how long it rests between two looks.
    """

    def __init__(self, look: Callable[[], object], every_s: float = LOOK_AT_ADDRESS_S) -> None:
        self._look = look
        self._every_s = every_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkonce-requests")
        self._now: Future[object] | None = None
        self._due = Deadline(0.0)

    def go_on(self) -> None:
        """Begin the next look when it is due."""
        if self._now is not None and self._now.done():
            done, self._now = self._now, None
            self._due = Deadline(self._every_s)
            done.result()
        if self._now is None and self._due.expired():
            self._now = self._thread.submit(self._look)

    def close(self) -> None:
        """Look no more; it does not wait for a look."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def ask_for_savepoint(
    checkpoint: str | Path | CheckpointLocation,
    folder: str | Path | CheckpointLocation,
    *,
    stop: bool = False,
    timeout_s: float = 600.0,
    while_waiting: Callable[[], None] = lambda: None,
) -> CheckpointLocation:
    """Ask the driver that runs on a checkpoint for a savepoint, and wait for it.

    Args:
        checkpoint: of the driver: its folder, or its address.
        folder: where the savepoint is to be made, a folder on the driver's machine or an address;
            the driver makes it.
        stop: stop the pipeline between two checkpoints; it ends with the savepoint.
        timeout_s: how long to wait. An ask without an answer is withdrawn.
        while_waiting: called ten times a second, at an address once a second; an error that it
            raises withdraws the ask.

    Returns:
        The place of the savepoint.

    Raises:
        SavepointNotMadeError: the driver could not make it, or did not answer.
    """
    checkpoint, folder = CheckpointLocation.of(checkpoint), CheckpointLocation.of(folder)
    backend = checkpoint.part(_PART).files()
    look_s = _LOOK_S if checkpoint.folder is not None else 10 * _LOOK_S
    request = SavepointRequest(
        request_id=secrets.token_hex(8),
        folder=str(folder),
        stop=stop,
        until_ms=SYSTEM_CLOCK.now_ms() + round(timeout_s * 1000),
    )
    ask, answer = request.request_id + _ASK, request.request_id + _ANSWER
    backend.put_if_absent(ask, orjson.dumps(request))
    deadline = Deadline(timeout_s)
    try:
        while (data := _answered(backend, answer)) is None:
            if deadline.expired():
                raise SavepointNotMadeError(
                    "The driver has not made the savepoint in time."
                    + (
                        " The driver may stop later: check, then take a savepoint again."
                        if stop
                        else ""
                    ),
                    where=f"{checkpoint}, for {timeout_s:.0f} s",
                    cause="no driver runs on this folder, a checkpoint takes longer, the driver "
                    "may not write in the folder, or the driver is older than this command",
                    option=f"--timeout {timeout_s:.0f}",
                )
            try:
                while_waiting()
            except SavepointError:
                if _answered(backend, answer) is None:  # a driver that stops answers last
                    raise
            deadline.pause(look_s)
    finally:
        _withdraw(backend, ask, answer)
    fields = orjson.loads(data)
    if "place" in fields:
        return folder.beside(fields["place"])
    raise SavepointNotMadeError(fields.pop("what"), **fields)


def _answered(backend: LogBackend, answer: str) -> bytes | None:
    """Return the answer, None while the store does not say it: the next look may find it."""
    try:
        return backend.get(answer)
    except SparkOnceError as error:
        logger.warning("an answer of the driver could not be looked for: %s", error)
        return None


def _withdraw(backend: LogBackend, ask: str, answer: str) -> None:
    try:
        backend.delete(ask)
        backend.delete(answer)
    except OSError as error:
        logger.warning(
            "the ask could not be withdrawn, so the driver may still serve it until its time is "
            "over: %s",
            error,
        )
