"""All errors about offsets and their cluster, each with four parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from connectors.kafka.source import offsets
from connectors.options.kafka_source import KafkaSource
from connectors.options.read_place import Place
from transactions.errors import (
    ConfigurationError,
    DataLossError,
    PhaseOneError,
)

GONE: Final = "retention or delete-records removed them, or the topic was created again"
_SHOWN_OFFSETS: Final = 2_000


def data_loss(
    where: str,
    start: Mapping[str, int],
    end: Mapping[str, int],
    option: str,
    cause: str = GONE,
) -> DataLossError:
    """Return the error for records that a pipeline must still read but will never get."""
    return DataLossError(
        "Records that the pipeline still has to read are gone from the source.",
        where=f"{where}; from {_shown(start)} to {_shown(end)}",
        cause=cause,
        option=option,
    )


def refuse_lower_than(ceiling: Mapping[str, int], latest: Mapping[str, int]) -> None:
    """Refuse a topic that now ends before `ceiling`: the run could never end."""
    lower = [key for key, end in ceiling.items() if latest.get(key, 0) < end]
    if lower:
        where = f"{', '.join(sorted(lower))} end before the target offsets of this run"
        raise data_loss(where, ceiling, latest, "trigger=availableNow (in any case)")


def _shown(flat: Mapping[str, int]) -> str:
    text = json.dumps(offsets.nest(flat), separators=(",", ":"))
    return text if len(text) <= _SHOWN_OFFSETS else f"{text[:_SHOWN_OFFSETS]}..."


def while_missing(where: str, cause: str) -> PhaseOneError:
    """Return the error for a deleted topic; the next run may find it, or another one, again."""
    return PhaseOneError(
        "A topic was deleted while it was read; the next run looks for it again.",
        where=where,
        cause=cause,
        option="failOnDataLoss=false",
    )


def there_again(where: str) -> PhaseOneError:
    """Return the error for a topic that was missing meanwhile: only its id identifies it."""
    return PhaseOneError(
        "A topic exists again; the next run decides where to continue reading.",
        where=where,
        cause="it was deleted and created again, or a broker did not know it for a moment",
        option="failOnDataLoss=false",
    )


def backwards(key: str, start: int, end: int, source: KafkaSource) -> ConfigurationError:
    """Return the error for a batch that ends before it begins."""
    return ConfigurationError(
        f"A batch cannot be read backwards: {key} begins at {start} and ends at {end}.",
        where=key,
        cause="the place where the read begins is after the place where it ends",
        option=f"{source.start or 'startingOffsets=earliest'}, {source.end}",
    )


def no_record_since(place: Place, times: Mapping[str, int]) -> ConfigurationError:
    """Return the error for partitions whose last record is older than a timestamp."""
    return ConfigurationError(
        f"{place.option} names a time after the last record of a partition.",
        where=", ".join(f"{key}: no record since {time}" for key, time in sorted(times.items())),
        cause="the partition is empty, or its records are older than the timestamp",
        option=f"{place}, startingOffsetsByTimestampStrategy={place.unmatched}; latest begins at "
        "the end of such a partition",
    )


def other_partitions(
    place: Place, wanted: Iterable[str], there: Iterable[str]
) -> ConfigurationError:
    """Return the error for JSON that does not name the existing partitions."""
    missing = sorted(set(there) - set(wanted))
    extra = sorted(set(wanted) - set(there))
    return ConfigurationError(
        f"{place.option} must name exactly the partitions of the subscribed topics.",
        where=f"not named: {', '.join(missing) or '-'}; not there: {', '.join(extra) or '-'}",
        cause="a partition was added or forgotten"
        + ("; -2 stands for earliest, -1 for latest" if place.is_offsets else ""),
        option=str(place),
    )
