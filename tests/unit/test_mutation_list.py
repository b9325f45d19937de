"""The list of broken rules does not rot: each text stands once, each test exists."""

from pathlib import Path

import pytest

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.rule)
def test_a_mutation_names_one_place_and_a_test(one: Mutation):
    assert (ROOT / one.file).read_text(encoding="utf-8").count(one.old) == 1
    assert one.old != one.new
    path, _, name = one.test.partition("::")
    assert (ROOT / path).exists()
    if name:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_rule_is_broken_at_least_once():
    first = {one.rule.split()[0].rstrip(":") for one in MUTATIONS}
    others = {
        "continuous",
        "fingerprint",
        "log",
        "durable",
        "recovery",
        "healing",
        "order",
        "guarantees",
        "files",
        "postgres",
        "write-ahead",
        "savepoint",
        "source",
        "start",
        "verify",
        "janitor",
        "batch",
        "query",
    }
    assert first == {*map(str, range(1, 15)), *others}
