"""The demo's Arrow function: the stateless branch of its job, for continuous mode."""

from __future__ import annotations

import functools
from typing import Any

import orjson
import pyarrow as pa

from connectors.demo.dataset import FLIGHT_ID, carrier_names

_LATE_MIN = 15
_VERY_LATE_MIN = 60


def clean(records: pa.RecordBatch) -> pa.RecordBatch:
    """Add the carrier's name and the delay class of the departure."""
    flights = [_enriched(orjson.loads(value)) for value in records["value"].to_pylist()]
    keys = [b"%d" % flight[FLIGHT_ID] for flight in flights]
    values = [orjson.dumps(flight) for flight in flights]
    columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def _enriched(flight: dict[str, Any]) -> dict[str, Any]:
    name = _carriers().get(flight["carrier"])
    return {**flight, "carrier_name": name, "departure": _departure(flight["dep_delay"])}


def _departure(delay: int | None) -> str:
    if delay is None:
        return "cancelled"
    if delay < _LATE_MIN:
        return "on time"
    return "late" if delay < _VERY_LATE_MIN else "very late"


@functools.cache
def _carriers() -> dict[str, str]:
    """Return the names; each process reads them once."""
    return carrier_names()
