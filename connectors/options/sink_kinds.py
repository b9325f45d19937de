"""The kinds of sink that a job file can name: `[[sink]] kind = "kafka"`, which is the default.

A kind's module is imported when a job names it: a job without PostgreSQL needs no client for it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from transactions.errors import ConfigurationError, nearest
from transactions.sink import Sink

KAFKA: Final = "kafka"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What reads the options of a kind: ``module:class``, which has `from_options`.

    Attributes:
        options: the class.
        paths: options that are paths, relative to the job file.
    """

    options: str
    paths: tuple[str, ...] = ()

    def load(self) -> Any:
        """Import the class."""
        module, _, name = self.options.partition(":")
        return getattr(importlib.import_module(module), name)


KINDS: Final[Mapping[str, Kind]] = {
    KAFKA: Kind("connectors.kafka.sink.kafka_sink:KafkaSink"),
    "files": Kind("connectors.files.file_sink:FileSink", paths=("path",)),
    "postgres": Kind("connectors.postgres.postgres_sink:PostgresSink"),
}


def sink_from_options(
    options: Mapping[str, str], *, guarantee: str, absolute: Callable[[str], str]
) -> Sink:
    """Read one `[[sink]]`.

    Args:
        options: its keys, with or without `kind`.
        guarantee: of a Kafka sink that does not set its own; the other kinds are exactly-once.
        absolute: makes a path of the job file absolute.

    Raises:
        ConfigurationError: there is no such kind, or an option is unknown or wrong.
    """
    given = dict(options)
    name = given.pop("kind", KAFKA)
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigurationError(
            f"There is no kind of sink {name!r}.",
            where="sink options",
            cause=nearest(name, KINDS),
            option=f"kind={name}",
        )
    if name == KAFKA:
        given = {"guarantee": guarantee, **given}
    for option, path in [*given.items()]:
        if option.lower() in kind.paths and path.strip():  # the sink refuses an empty path
            given[option] = absolute(path)
    sink: Sink = kind.load().from_options(given)
    return sink
