"""The names of librdkafka's settings, and with what it was built: asked of the library, because a
list of ours would grow old.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaException, cimpl

from transactions.errors import probably_meant

_UNKNOWN: Final = "No such configuration property"


def told_with_the_nearest(refusal: str, names: Iterable[str], known: Iterable[str]) -> str:
    """Return librdkafka's refusal; if it knows no such name, with the name that was probably meant.

    Args:
        refusal: its text.
        names: the user's options in it.
        known: further names, beside those of the library.
    """
    if _UNKNOWN not in refusal:
        return refusal
    every = sorted({*known, *library_names()})
    return "; ".join(filter(None, (refusal, *(probably_meant(name, every) for name in names))))


@functools.cache
def library_names() -> frozenset[str]:
    """Return the names of settings with a default; none if the library cannot be asked."""
    try:
        library = ctypes.CDLL(cimpl.__file__)
        return frozenset(
            name for kind in ("conf", "topic_conf") for name in _dumped(library, f"rd_kafka_{kind}")
        )
    except (OSError, AttributeError):
        return frozenset()


@functools.cache
def library_lacks(feature: str) -> str:
    """Return why librdkafka has not a feature of `builtin.features`, "" if it was built with it. A
    client without brokers is made to find out, once in a process.
    """
    try:
        Consumer({"group.id": "-", "builtin.features": feature, "log_level": 0}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


def _dumped(library: ctypes.CDLL, kind: str) -> list[str]:
    """Return every second string of a dump: names and values take turns (rdkafka.h)."""
    texts = ctypes.POINTER(ctypes.c_char_p)
    new, destroy = getattr(library, f"{kind}_new"), getattr(library, f"{kind}_destroy")
    dump, free = getattr(library, f"{kind}_dump"), library.rd_kafka_conf_dump_free
    new.restype, dump.restype = ctypes.c_void_p, texts
    dump.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    destroy.argtypes, free.argtypes = [ctypes.c_void_p], [texts, ctypes.c_size_t]
    settings, count = new(), ctypes.c_size_t()
    found = dump(settings, ctypes.byref(count))
    names = [found[place].decode() for place in range(0, count.value, 2)]
    free(found, count)
    destroy(settings)
    return names
