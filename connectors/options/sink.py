"""What the drivers ask of any sink that a user describes (`transactions.sink.Sink`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

import orjson

from transactions.sink import Sink


class MessageSink(Sink, Protocol):
    """A sink whose rows are Kafka's messages: they have the columns of `SINK_SCHEMA`
    (`connectors.records.message_schema`), and no others.
    """

    takes_messages: bool

    @property
    def topic(self) -> str | None:
        """The topic of all rows; None: each row names its own."""

    @property
    def write_timestamp(self) -> bool:
        """Whether a column `timestamp` of a DataFrame becomes the time of the record."""


def takes_messages(sink: Sink) -> TypeGuard[MessageSink]:
    """Return whether the rows of a sink are Kafka's messages."""
    return getattr(sink, "takes_messages", False)


def folder_on_disk(sink: Sink) -> Path | None:
    """Return the folder of a file system in which a sink keeps decided records until they are
    committed. None: there is none, or the sink does not say so.
    """
    return getattr(sink, "folder_on_disk", None)


def identity_of(sinks: Sequence[Sink]) -> str:
    """Return the sinks as a JSON object; a checkpoint is bound to it."""
    found = {each.name: dict(each.identity()) for each in sinks}
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
