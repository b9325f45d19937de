"""What a user may say about a PostgreSQL sink, and how rows become COPY's lines."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from connectors.postgres import PostgresSink
from connectors.postgres.commit_marks import CommitMarks
from connectors.postgres.copy_lines import copy_lines, payload, sql_types, takes
from connectors.postgres.postgres_writer import PostgresWriter
from connectors.postgres.prepared_committer import PreparedTransactionCommitter
from connectors.postgres.prepared_id import MOST_BYTES, new_id, owner_of
from connectors.postgres.target_table import TableColumn, TargetTable
from connectors.records.fingerprint import Fingerprint
from transactions.errors import ConfigurationError
from transactions.sink import Owner

URI = "postgresql://writer:s3cret@db.example:5433/shop"
OWNER = Owner(application_id="app", log_id="c0ffee00", run_epoch=3)


def sink(**options: str) -> PostgresSink:
    return PostgresSink(**{"conninfo": URI, "table": "public.orders", **options})


@pytest.mark.parametrize(
    "conninfo", [URI, "host=db.example port=5433 user=writer password=s3cret dbname=shop"]
)
def test_identity_names_the_database_and_never_the_password(conninfo):
    assert sink(conninfo=conninfo).identity() == {
        "kind": "postgres",
        "table": "public.orders",
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
    }


def test_identity_fills_in_what_libpq_would(monkeypatch):
    for name in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGHOST", "from-environment")
    found = sink(conninfo="user=writer").identity()
    assert (found["host"], found["port"], found["dbname"]) == ("from-environment", "5432", "writer")


def test_the_password_is_in_no_text():
    assert "s3cret" not in repr(sink())
    with pytest.raises(ConfigurationError) as raised:
        sink(conninfo="postgresql//writer:s3cret@db.example/shop")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    with pytest.raises(ConfigurationError) as raised:
        PostgresSink.from_options({"coninfo": URI, "table": "t"})
    assert "s3cret" not in str(raised.value)


def test_the_name_comes_from_the_table():
    assert sink().name == "public-orders"
    assert sink(name="orders").name == "orders"


@pytest.mark.parametrize(
    "wrong", [{"conninfo": " "}, {"table": ""}, {"name": "a.b"}, {"conninfo": "host"}]
)
def test_wrong_options_are_refused_in_four_parts(wrong):
    with pytest.raises(ConfigurationError) as raised:
        sink(**wrong)
    assert raised.value.where
    assert raised.value.cause
    assert raised.value.option


def test_options_are_read_by_name_and_travel():
    read = PostgresSink.from_options({"ConnInfo": URI, "TABLE": "public.orders"})
    assert read == sink()
    assert pickle.loads(pickle.dumps(read)) == read


def test_an_unknown_option_is_named_with_its_neighbour():
    with pytest.raises(ConfigurationError, match="did you mean 'table'"):
        PostgresSink.from_options({"conninfo": URI, "tabel": "t"})


SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "t": pa.string(),
        "y": pa.binary(),
        "at": pa.timestamp("us", "UTC"),
        "d": pa.date32(),
        "n": pa.decimal128(12, 2),
    }
)


def test_the_types_of_spark_are_carried():
    sink().check_columns(SCHEMA)


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.list_(pa.int32()),
        pa.struct({"a": pa.int32()}),
        pa.map_(pa.string(), pa.int32()),
        pa.null(),
        pa.time64("us"),
        pa.duration("us"),
        pa.timestamp("ns", "UTC"),
    ],
    ids=str,
)
def test_a_column_that_copy_cannot_carry_is_named(arrow_type):
    with pytest.raises(ConfigurationError, match="'odd'") as raised:
        sink().check_columns(SCHEMA.append(pa.field("odd", arrow_type)))
    assert str(arrow_type) in raised.value.option
    assert "public.orders" in raised.value.where


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(ConfigurationError, match="'i'"):
        sink().check_columns(SCHEMA.append(pa.field("i", pa.int32())))


@pytest.mark.parametrize(
    ("arrow_type", "sql_type", "category", "fits"),
    [
        (pa.int32(), "numeric", "N", True),
        (pa.int64(), "double precision", "N", False),
        (pa.float64(), "numeric", "N", False),
        (pa.float64(), "real", "N", False),
        (pa.string(), "jsonb", "U", True),
        (pa.string(), "bytea", "U", False),
        (pa.string(), "integer", "N", False),
        (pa.binary(), "text", "S", False),
        (pa.timestamp("us", "UTC"), "timestamp without time zone", "D", False),
        (pa.timestamp("us"), "timestamp with time zone", "D", False),
        (pa.timestamp("us", "Asia/Tokyo"), "timestamp with time zone", "D", True),
    ],
)
def test_nothing_is_converted_silently(arrow_type, sql_type, category, fits):
    assert takes(sql_type, category, arrow_type) is fits
    assert sql_types(arrow_type)


def test_both_halves_show_no_password_and_the_writer_travels():
    table = TargetTable("public", "orders", (column("i"),), "orders")
    writer = PostgresWriter(name="orders", conninfo=URI, table=table, checkpoint_timeout_s=30)
    marks = CommitMarks("public")
    committer = PreparedTransactionCommitter(name="orders", conninfo=URI, marks=marks)
    assert "s3cret" not in f"{writer!r} {committer!r}"
    assert pickle.loads(pickle.dumps(writer)) == writer


def column(name: str, **fields: object) -> TableColumn:
    given = {"sql_type": "bigint", "category": "N", "generated": False, "writable": True}
    return TableColumn(name=name, **{**given, "required": False, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([column("j")], "no column 'i'"),
        ([column("i", sql_type="text", category="S")], "'i' cannot be written"),
        ([column("i", generated=True)], "generated"),
        ([column("i", writable=False)], "INSERT"),
        ([column("i"), column("must", required=True)], "needs the column 'must'"),
    ],
)
def test_rows_that_do_not_fit_into_the_table_are_refused(columns, message):
    table = TargetTable("public", "orders", tuple(columns), "orders")
    with pytest.raises(ConfigurationError, match=message) as raised:
        table.check_columns(pa.schema({"i": pa.int64()}), "sink 'orders'")
    assert "public.orders" in raised.value.where


def text_of(batch: pa.RecordBatch) -> bytes:
    return b"".join(bytes(payload(lines)) for lines in copy_lines(batch))


def test_lines_of_every_type():
    row = {
        "i": -5,
        "f": 0.1,
        "b": True,
        "t": "a\tb\\N\r\n",
        "y": b"\x00\xff",
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
        "d": dt.date(1, 1, 1),
        "n": Decimal("-1.50"),
    }
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], SCHEMA)
    expected = (
        rb"-5	0.1	true	a\tb\\N\r\n	\\x00ff	2026-01-02 03:04:05.000006Z	0001-01-01	-1.50"
        b"\n" + b"\t".join([rb"\N"] * 8) + b"\n"
    )
    assert text_of(batch) == expected
    assert text_of(batch.slice(1)) == expected.splitlines(keepends=True)[1]


def test_an_instant_is_the_same_line_in_every_zone():
    instant = pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))
    tokyo = instant.cast(pa.timestamp("us", "Asia/Tokyo"))
    first, second = (text_of(pa.record_batch({"at": one})) for one in (instant, tokyo))
    assert first == second == b"2023-11-14 22:13:20.000000Z\n"


def test_a_large_batch_goes_in_pieces(monkeypatch):
    monkeypatch.setattr("connectors.postgres.copy_lines._PIECE_BYTES", 100)
    batch = pa.record_batch({"y": [b"%03d" % number for number in range(200)]})
    pieces = list(copy_lines(batch))
    assert len(pieces) > 5
    lines = b"".join(bytes(payload(one)) for one in pieces).splitlines()
    assert lines == [b"\\\\x" + (b"%03d" % number).hex().encode() for number in range(200)]


def fingerprint(*batches: pa.RecordBatch) -> str:
    total = Fingerprint()
    for batch in batches:
        for lines in copy_lines(batch):
            total.add(pa.record_batch({"value": lines.cast(pa.binary())}), None)
    return total.hex()


def test_the_fingerprint_forgets_order_and_batches_and_nothing_else():
    batch = pa.record_batch({"a": [1, 2, 3], "b": ["x", None, ""]})
    shuffled = batch.take(pa.array([2, 0, 1]))
    assert fingerprint(batch) == fingerprint(shuffled.slice(0, 1), shuffled.slice(1))
    other = pa.record_batch({"a": [1, 2, 3], "b": ["x", "", None]})
    assert fingerprint(batch) != fingerprint(other)


def test_a_gid_says_whose_it_is():
    gid = new_id(OWNER, 7)
    assert gid.startswith("app.c0ffee00.3.")
    assert gid.endswith(".7")
    assert owner_of(gid) == OWNER
    assert new_id(OWNER, 7) != gid


def test_a_gid_that_postgresql_would_refuse_is_refused():
    longest = Owner(application_id="a" * 100, log_id="c0ffee00", run_epoch=10**19)
    assert len(new_id(longest, 10**6)) <= MOST_BYTES
    too_long = Owner(application_id="a" * 190, log_id="c0ffee00", run_epoch=1)
    with pytest.raises(ConfigurationError, match="bytes"):
        new_id(too_long, 0)
