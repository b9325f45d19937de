"""The one table of broker answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafka import errors as kafka_errors

from connectors.wire import broker_answers
from connectors.wire.broker_answers import TABLE, Meaning, Request, read


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (0, Meaning.DONE),
        (-1, Meaning.DOUBT),
        (7, Meaning.DOUBT),
        (14, Meaning.RETRY),
        (15, Meaning.REFIND),
        (16, Meaning.REFIND),
        (47, Meaning.ASK),
        (48, Meaning.ASK),
        (49, Meaning.ASK),
        (51, Meaning.RETRY),
        (53, Meaning.AUTHORIZATION),
        (90, Meaning.ASK),
        (105, Meaning.ASK),
        (9999, Meaning.ASK),
    ],
)
def test_end_txn(code: int, meaning: Meaning) -> None:
    assert read(Request.END_TXN, code).meaning is meaning


def test_only_none_means_committed() -> None:
    done = {code for code in TABLE if read(Request.END_TXN, code).meaning is Meaning.DONE}
    assert done == {0}


def test_no_answer_to_end_txn_is_a_proof_of_abort() -> None:
    assert {"committed", "aborted"}.isdisjoint(meaning.name.lower() for meaning in Meaning)


@pytest.mark.parametrize(
    ("request_", "code", "meaning"),
    [
        (Request.DESCRIBE_TRANSACTIONS, 105, Meaning.ABSENT),
        (Request.INIT_PRODUCER_ID, 51, Meaning.RETRY),
        (Request.INIT_PRODUCER_ID, 50, Meaning.CONFIGURATION),
        (Request.INIT_PRODUCER_ID, 90, Meaning.RETRY),
        (Request.OFFSET_FETCH, 88, Meaning.RETRY),
        (Request.OFFSET_FETCH, 30, Meaning.AUTHORIZATION),
        (Request.LIST_TRANSACTIONS, 128, Meaning.BUG),
        (Request.FIND_COORDINATOR, 15, Meaning.REFIND),
        (Request.DESCRIBE_CONFIGS, 9999, Meaning.BUG),
    ],
)
def test_other_requests(request_: Request, code: int, meaning: Meaning) -> None:
    assert read(request_, code).meaning is meaning


def test_names_are_kafkas_own() -> None:
    special = {-1: "UNKNOWN", 0: "NO"}  # kafka-python's short forms
    for code, row in TABLE.items():
        if code == 128:
            continue  # newer than kafka-python's list
        theirs = kafka_errors.for_code(code).__name__.removesuffix("Error")
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", theirs).upper()
        known_as = {"INVALID_CONFIGURATION": "INVALID_CONFIG"}.get(snake, snake)
        assert known_as in (row.name, special.get(code)), code


def test_every_row_has_a_sentence() -> None:
    for code, row in TABLE.items():
        assert row.sentence
        assert str(read(Request.END_TXN, code)).startswith(f"{row.name} ({code}): ")


def test_no_other_file_looks_at_error_codes() -> None:
    folder = Path(broker_answers.__file__).parent
    names = "|".join(row.name for code, row in TABLE.items() if code > 0)
    comparison = re.compile(rf"error_code\s*(?:==|!=|in\b)|\bfor_code\(|[\"'](?:{names})[\"']")
    for path in folder.glob("*wire*.py"):
        assert not comparison.search(path.read_text("utf-8")), path.name
