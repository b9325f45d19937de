"""How `sparkonce verify` recognises a record on the other side of a pipeline.

    record        key and value, as bytes: for pipelines that copy (the default)
    key           the key's bytes
    value         the value's bytes
    header:NAME   the last header of that name
    json:FIELD    a field of the value read as JSON; dots go into nested objects

Input and output may use different forms: the same text in a key, a header or a JSON field is one
identity (a JSON number counts as its digits). A record without the named part has no identity, and
the proof reports it instead of leaving it out. So does a JSON integer of more than 64 bits, which
the parser rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from transactions.errors import ConfigurationError

#: From here on orjson reads a JSON integer as a float: two of them can be one number.
_ROUNDED: Final = 2.0**63

Identify = Callable[[Any], "bytes | None"]
"""From a consumed message (key(), value(), headers()) to its identity, None without one."""

#: The identity that leaves nothing of key and value out.
WHOLE_RECORD: Final = "record"
KINDS: Final = "record, key, value, header:NAME, json:FIELD"


def parse_key_id(text: str, *, option: str = "--key-id") -> Identify:
    """Return the function that finds a record's identity.

    Args:
        text: one of the forms in the module's table.
        option: the option it came from, for the error.

    Raises:
        ConfigurationError: the form is unknown, or its name is missing.
    """
    simple: dict[str, Identify] = {WHOLE_RECORD: _record, "key": _key, "value": _value}
    if text in simple:
        return simple[text]
    kind, _, name = text.partition(":")
    if name and kind == "header":
        return _header(name)
    if name and kind == "json":
        return _json(name)
    raise ConfigurationError(
        "The kind of record identity is unknown.",
        where="the command line",
        cause=f"known are {KINDS}",
        option=f"{option}={text}",
    )


def _record(message: Any) -> bytes:
    key, value = message.key(), message.value()
    # Null and empty differ, and the border between key and value is part of the identity.
    frame = b"-" if key is None else b"%d" % len(key)
    return b"%b:%b%b%b" % (frame, key or b"", b"-" if value is None else b"+", value or b"")


def _key(message: Any) -> bytes | None:
    key: bytes | None = message.key()
    return key


def _value(message: Any) -> bytes | None:
    value: bytes | None = message.value()
    return value


def _header(name: str) -> Identify:
    def find(message: Any) -> bytes | None:
        for key, value in reversed(message.headers() or ()):
            if key == name:
                found: bytes | None = value
                return found
        return None

    return find


def _json(field: str) -> Identify:
    path = field.split(".")

    def find(message: Any) -> bytes | None:
        try:
            found = orjson.loads(message.value() or b"null")
        except orjson.JSONDecodeError:
            return None
        for name in path:
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        if found is None or (isinstance(found, float) and abs(found) >= _ROUNDED):
            return None
        if isinstance(found, str):
            return found.encode()
        return orjson.dumps(found, option=orjson.OPT_SORT_KEYS)

    return find
