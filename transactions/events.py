"""Events: each fault, and what was done about it, as one structured log line.

    sparkonce event=recommitted app=flights checkpoint=17 transactions=4

A line is for people and for `parse_event`. A plain word or a number stands bare; any other value
stands in JSON's quotes. The line is ASCII, without a line break. Listeners (the metrics) get the
same event as an object. Publishing never fails: no protocol step may fail because of its event.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

Value = str | int | float

#: Kind -> level. What happens at every checkpoint is DEBUG; what deserves a look is a warning.
KINDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "recovering": logging.INFO,  # a new run begins to settle the last decision
        "recovered": logging.INFO,  # it is settled and nothing lingers
        "recommitted": logging.WARNING,  # transactions of an earlier attempt were committed now
        "aging": logging.WARNING,  # decided transactions have used up half of their timeout
        "lost": logging.WARNING,  # decided transactions were aborted by the broker; to be healed
        "healed": logging.WARNING,  # a lost transaction was produced again
        "heal_refused": logging.ERROR,  # it could not be produced again: a person must decide
        "hidden_commit": logging.ERROR,  # committed, and kept from readers by a broker's fault
        "fenced": logging.WARNING,  # a newer run owns the log, this one stops
        "swept": logging.WARNING,  # open transactions without an owner were aborted
        "refused": logging.WARNING,  # records that a sink without a guarantee lost at the broker
        "retried": logging.WARNING,  # a step is tried again
        "restarted": logging.WARNING,  # the query is started again by the restart strategy
        "rescaled": logging.INFO,  # partitions move: fewer or more tasks read from now on
        "savepoint": logging.INFO,  # a savepoint was made
        "restored": logging.INFO,  # a checkpoint folder was begun from a savepoint
        "decided": logging.DEBUG,  # the point of no return of a checkpoint
        "checkpoint_completed": logging.DEBUG,
        "checkpoint_failed": logging.WARNING,
    }
)

_PREFIX: Final = "sparkonce event="
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.,:/@+-]*")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"-?[0-9.]+(?:e[+-]?[0-9]+)?|-?inf|nan")
_PAIR: Final = re.compile(r" ([A-Za-z0-9_]+)=(\"(?:[^\"\\]|\\.)*\"|[^\s\"]+)")
_KIND: Final = re.compile(r"[A-Za-z0-9_]+")
_NO_KEY: Final = re.compile(r"[^A-Za-z0-9_]")

logger = logging.getLogger("sparkonce.events")


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What happened.

    Attributes:
        kind: one of `KINDS`.
        fields: text or numbers; names of durations and of times since 1970 end in ``_ms``.
    """

    kind: str
    fields: Mapping[str, Value] = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """Return the text of the event's log line; `parse_event` reads it back."""
        pairs = [f" {_NO_KEY.sub('_', key)}={_text(value)}" for key, value in self.fields.items()]
        return f"{_PREFIX}{_NO_KEY.sub('_', self.kind)}{''.join(pairs)}"


Listener = Callable[[Event], None]

_lock = threading.Lock()
_listeners: Mapping[object, Listener] = {}


def publish(kind: str, /, **fields: Value) -> None:
    """Write one log line and call every listener, on the caller's thread. Never raises.

    Args:
        kind: one of `KINDS`; an unknown kind is logged as a warning.
        fields: see `Event`; ``app`` says whose event it is.
    """
    try:
        event = Event(kind, {key: _plain(value) for key, value in fields.items()})
    except Exception:  # noqa: BLE001 - a value may refuse to be text; see the module
        event = Event(kind)
    try:
        level = KINDS.get(kind, logging.WARNING)
        if logger.isEnabledFor(level):  # a checkpoint comes 80 times a second in continuous mode
            logger.log(level, "%s", event.line())
    except Exception:  # noqa: BLE001 - a log handler may raise anything
        _complain("the log refused an event", kind)
    for listener in _listeners.values():
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - a listener is foreign code
            _complain("a listener failed at an event", kind)


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every event from now on; the returned function ends that.

    The listener runs on the thread that publishes, in the middle of a protocol step: it must be
    quick and must not wait. An error that it raises is only logged.
    """
    global _listeners  # noqa: PLW0603 - replaced whole, so that publish needs no lock
    key = object()  # the same listener may be given twice
    with _lock:
        _listeners = {**_listeners, key: listener}

    def unsubscribe() -> None:
        global _listeners  # noqa: PLW0603
        with _lock:
            _listeners = {other: one for other, one in _listeners.items() if other is not key}

    return unsubscribe


def parse_event(line: str) -> Event | None:
    """Return the event in a log line, whatever a formatter wrote before it; None without one.

    Numbers come back as numbers, text as text. A line that was cut short gives its complete fields.
    """
    _, found, rest = line.partition(_PREFIX)
    kind = _KIND.match(rest) if found else None
    if kind is None:
        return None
    fields: dict[str, Value] = {}
    at = kind.end()
    while pair := _PAIR.match(rest, at):
        fields[pair[1]] = _value(pair[2])
        at = pair.end()
    return Event(kind[0], fields)


def _plain(value: object) -> Value:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str | int | float):
        return value
    return str(value)


def _text(value: Value) -> str:
    if not isinstance(value, str):
        return repr(value)
    bare = _WORD.fullmatch(value) and not _NUMBER.fullmatch(value)
    return value if bare else json.dumps(value)


def _value(text: str) -> Value:
    if text.startswith('"'):
        return str(json.loads(text))
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text) if _NUMBER.fullmatch(text) else text
    except ValueError:
        return text


def _complain(what: str, kind: str) -> None:
    with contextlib.suppress(Exception):  # the log fails too: nothing more can be done
        logger.exception("%s of the kind %s", what, kind)
