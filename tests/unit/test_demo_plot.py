"""The demo's kills come for certain, and its Arrow function does what its query does."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from connectors.demo.dataset import load_flights, messages
from connectors.demo.flight_cleaning import clean
from connectors.demo.plot import PLANS, Kill
from connectors.demo.proof import check_flights
from connectors.demo.supervisor import DemoOptions, Names
from connectors.options.modes import MODES
from connectors.options.table import CONTINUOUS, MICRO_BATCH
from transactions.crash_points import POINTS
from transactions.errors import ConfigurationError


def batch_of(records: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": k, "value": v} for k, v in records])


def test_the_function_keeps_every_flight_and_says_how_late_it_was():
    flights = load_flights(5000)
    made = clean(batch_of(list(messages(flights)))).to_pylist()

    assert check_flights(((row["key"], row["value"]) for row in made), flights).holds
    seen = {orjson.loads(row["value"])["departure"] for row in made}
    assert seen == {"cancelled", "on time", "late", "very late"}


@pytest.mark.parametrize(
    ("delay", "says"),
    [(None, "cancelled"), (14, "on time"), (15, "late"), (59, "late"), (60, "very late")],
)
def test_the_borders_of_lateness(delay: int | None, says: str):
    value = orjson.dumps({"flight_id": 1, "carrier": "UA", "dep_delay": delay})
    (row,) = clean(batch_of([(b"1", value)])).to_pylist()
    flight = orjson.loads(row["value"])
    assert (flight["departure"], flight["carrier_name"]) == (says, "United Air Lines Inc.")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_two_kills_in_both_modes(mode: str):
    assert [kill.point for kill in PLANS[mode]] == ["committables_collected", "decision_durable"]
    assert {kill.point for kill in PLANS[mode]} <= set(POINTS)


def test_a_kill_is_due_after_some_work_or_while_there_is_still_input():
    kill = Kill("decision_durable", "text", loaded=0.5)
    assert not kill.is_due(0.4, 25.0, checkpoints=9)
    assert not kill.is_due(0.5, 25.0, checkpoints=0)
    assert kill.is_due(0.5, 25.0, checkpoints=1)
    assert kill.is_due(0.9, 25.0, checkpoints=0)
    assert kill.is_due(0.0, 0.0, checkpoints=0)
    by_number = Kill("decision_durable", "text", checkpoint=7)
    assert (kill.crash_at, by_number.crash_at) == ("decision_durable", "decision_durable@7")
    assert by_number.is_due(0.0, 1000.0, checkpoints=0)


def test_what_a_mode_owns():
    assert len(Names(mode=MICRO_BATCH).topics) == 3
    assert len(Names(mode=CONTINUOUS).topics) == 2
    with pytest.raises(ConfigurationError, match="no mode"):
        DemoOptions(mode="both").validate()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("ftp://far/away", "known: .*, gs, hdfs, memory, s3"),
        ("~/kept", "begins with ~"),
        (__file__, "A file lies where a folder is needed"),
    ],
)
def test_where_no_checkpoint_can_lie(place: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        DemoOptions(checkpoint=place).validate()
