"""How a person asks a running pipeline for a savepoint: by files in its checkpoint folder.

A command puts ``<id>.ask`` into ``savepoint-requests`` and waits for ``<id>.answer``; the driver
looks five times a second, between two checkpoints. This needs no port and no signal, only the
rights of the folder. An ask says until when somebody waits. The driver drops an older ask, so it
does not stop a pipeline tomorrow for a person who has given up.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from transactions.clock import SYSTEM_CLOCK, Deadline
from transactions.errors import SavepointError, SavepointNotMadeError, SparkOnceError
from transactions.log_backend import LocalFileBackend

logger = logging.getLogger(__name__)

_FOLDER: Final = "savepoint-requests"
_ASK, _ANSWER = ".ask", ".answer"
_LOOK_S: Final = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRequest:
    """One ask.

    Attributes:
        request_id: random.
        folder: absolute; where the savepoint is to be made.
        stop: stop between two checkpoints first; the run ends with the savepoint.
        until_ms: wall clock; nobody waits for an answer after it.
    """

    request_id: str
    folder: str
    stop: bool
    until_ms: int


class SavepointRequests:
    """The driver's side. On one thread at a time. It leaves a file alone, with a warning, that it
    cannot read, answer or remove: such a file must not end a pipeline.

    Args:
        checkpoint: folder of the driver; None: its checkpoint is at an address, and nobody can
            ask.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self._folder = None if checkpoint is None else checkpoint / _FOLDER
        self._ignored: set[str] = set()

    def pending(self) -> list[SavepointRequest]:
        """Return the asks of now; it removes expired asks."""
        if self._folder is None:
            return []
        try:
            paths = sorted(self._folder.glob(f"*{_ASK}"))
        except OSError as error:
            self._ignore("", error)
            return []
        found = (self._read(path) for path in paths if path.stem not in self._ignored)
        return [one for one in found if one is not None]

    def answer(self, request: SavepointRequest, made: Path | SparkOnceError) -> None:
        """Answer where the savepoint is, or why there is none."""
        assert self._folder is not None, "nobody has asked"
        if isinstance(made, Path):
            text = {"place": str(made)}
        else:
            names = ("what", "where", "cause", "option")
            text = {name: getattr(made, name) for name in names}
        try:
            backend = LocalFileBackend(self._folder)
            backend.put_if_absent(request.request_id + _ANSWER, orjson.dumps(text))
            backend.delete(request.request_id + _ASK)
        except OSError as error:
            self._ignore(request.request_id, error)

    def _read(self, path: Path) -> SavepointRequest | None:
        try:
            fields = orjson.loads(path.read_bytes())
            one = SavepointRequest(
                request_id=path.stem,
                folder=str(Path(fields["folder"])),
                stop=fields["stop"] is True,
                until_ms=int(fields["until_ms"]),
            )
            if one.until_ms < SYSTEM_CLOCK.now_ms():
                path.unlink(missing_ok=True)
                return None
        except FileNotFoundError:
            return None  # withdrawn
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._ignore(path.stem, error)
            return None
        return one

    def _ignore(self, request_id: str, error: Exception) -> None:
        if request_id not in self._ignored:
            logger.warning(
                "the savepoint request %s/%s cannot be served: %r",
                self._folder,
                request_id,
                error,
            )
        self._ignored.add(request_id)


def ask_for_savepoint(
    checkpoint: Path,
    folder: Path,
    *,
    stop: bool = False,
    timeout_s: float = 600.0,
    while_waiting: Callable[[], None] = lambda: None,
) -> Path:
    """Ask the driver that runs on a checkpoint folder for a savepoint, and wait for it.

    Args:
        checkpoint: folder of the driver.
        folder: where the savepoint is to be made; the driver makes it.
        stop: stop the pipeline between two checkpoints; it ends with the savepoint.
        timeout_s: how long to wait. An ask without an answer is withdrawn.
        while_waiting: called ten times a second; an error that it raises withdraws the ask.

    Returns:
        The place of the savepoint.

    Raises:
        SavepointNotMadeError: the driver could not make it, or did not answer.
    """
    backend = LocalFileBackend(checkpoint / _FOLDER)
    request = SavepointRequest(
        request_id=secrets.token_hex(8),
        folder=str(folder.absolute()),
        stop=stop,
        until_ms=SYSTEM_CLOCK.now_ms() + round(timeout_s * 1000),
    )
    ask, answer = request.request_id + _ASK, request.request_id + _ANSWER
    backend.put_if_absent(ask, orjson.dumps(request))
    deadline = Deadline(timeout_s)
    try:
        while (data := backend.get(answer)) is None:
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
                if backend.get(answer) is None:  # a driver that stops answers last
                    raise
            deadline.pause(_LOOK_S)
    finally:
        backend.delete(ask)
        backend.delete(answer)
    fields = orjson.loads(data)
    if "place" in fields:
        return Path(fields["place"])
    raise SavepointNotMadeError(fields.pop("what"), **fields)
