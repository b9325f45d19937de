"""The contract suite for sinks: a correct sink passes all of it, and each fault is found."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.unit import broken_sinks
from tests.unit.broken_sinks import CONSEQUENCES, FAULTS, MORE_FAULTS, TESTS
from transactions.testing import TwoPhaseCommitSinkContract
from transactions.testing.requirements import Requirement

ROOT = Path(__file__).parents[2]
QUOTED = "The contract of a sink is broken (transactions/"
EXAMPLE = ROOT / "examples/own_sink"
#: Class -> test, without its parameters -> the texts of its failures; empty when it passed.
Results = Mapping[str, Mapping[str, list[str]]]


def run(target: str, folder: Path) -> Results:
    """Run pytest as a user would, in a process of its own."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", target]
    command.append(f"--junitxml={report}")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    results: dict[str, dict[str, list[str]]] = {}
    for case in ET.parse(report).iter("testcase"):
        of_class = results.setdefault(case.attrib["classname"].rpartition(".")[2], {})
        failures = of_class.setdefault(case.attrib["name"].partition("[")[0], [])
        for child in case:
            assert child.tag in {"failure", "system-out", "system-err"}, (case.attrib, child.tag)
            failures += [child.text or ""] if child.tag == "failure" else []
    return results


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run("examples/own_sink", tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run("tests/unit/broken_sinks.py", tmp_path_factory.mktemp("broken"))


def red(results: Mapping[str, list[str]]) -> set[str]:
    return {name for name, failures in results.items() if failures}


@pytest.mark.long
def test_the_example_passes_everything_and_skips_nothing(example: Results):
    assert set(example) == {"TestFolderSink"}
    assert set(example["TestFolderSink"]) == TESTS
    assert red(example["TestFolderSink"]) == set()


def test_a_fault_is_found_and_quotes_the_contract(tmp_path: Path):
    """One of those below, in a run of its own."""
    of_its_class = run("tests/unit/broken_sinks.py::TestCommitsEmptyOnes", tmp_path)
    results = of_its_class["TestCommitsEmptyOnes"]
    sink = broken_sinks.CommitsEmptyOnes
    assert red(results) == FAULTS[sink] | CONSEQUENCES.get(sink, set())
    for text in itertools.chain.from_iterable(results.values()):
        assert QUOTED in text


@pytest.mark.long
@pytest.mark.parametrize("sink", FAULTS, ids=lambda sink: sink.__name__)
def test_each_fault_is_found_by_the_tests_that_are_about_it(sink: type, broken: Results):
    assert red(broken[f"Test{sink.__name__}"]) == FAULTS[sink] | CONSEQUENCES.get(sink, set())


@pytest.mark.long
@pytest.mark.parametrize("sink", MORE_FAULTS, ids=lambda sink: sink.__name__)
def test_more_faults_are_found(sink: type, broken: Results):
    assert red(broken[f"Test{sink.__name__}"]) == MORE_FAULTS[sink]


def test_every_test_of_the_contract_is_red_for_some_fault():
    assert set().union(*FAULTS.values(), *MORE_FAULTS.values()) == TESTS


@pytest.mark.long
def test_a_failure_quotes_the_contract(broken: Results):
    for sink, results in broken.items():
        for name, failures in results.items():
            for text in failures:
                assert QUOTED in text, (sink, name, text)


@pytest.mark.parametrize("requirement", Requirement, ids=lambda one: one.name)
def test_every_requirement_is_a_sentence_of_its_file(requirement: Requirement):
    text = " ".join((ROOT / requirement.source).read_text("utf-8").split())
    assert requirement.value in text, f"{requirement.source} no longer says it"


def test_pytest_collects_a_users_class_and_none_of_its_bases():
    for base in TwoPhaseCommitSinkContract.__mro__[:-1]:
        assert vars(base)["__test__"] is False, base
    assert vars(type("TestMine", (TwoPhaseCommitSinkContract,), {}))["__test__"] is True
    assert broken_sinks.FolderContract.__test__ is False


def test_the_page_shows_the_files_that_are_tested():
    page = (ROOT / "docs/write_your_own_sink.md").read_text("utf-8")
    for file in ("folder_sink.py", "test_folder_sink.py"):
        code = (EXAMPLE / file).read_text("utf-8")
        assert f"```python\n{code}```" in page, f"docs/write_your_own_sink.md: {file} has changed"
