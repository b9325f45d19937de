"""Every code block of README and docs runs in a test, or the table below says why not.

A test takes a block with `block("page", "something that only this block says")`. The calls are read
from the files of the tests, so nobody keeps a list of them.
"""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.pages import FENCE, PAGES, ROOT, Block, blocks_of, find

#: What a block without a language, or with this one, is: a picture, or what a program prints.
SHOWN_ONLY = {"", "mermaid"}
LANGUAGES = {"python", "toml", "console", "sql", "yaml", "dockerfile"}

SAME_TEXT = (
    "tests/unit/test_sink_contract.py::test_the_page_shows_the_files_that_are_tested"
    " compares it with the example, and {} runs that"
)
#: Blocks that no test takes -> why. A name of a test stands for "that test runs it".
DECLARED = {
    ("README.md", "$ make test"): "it is the run that this test belongs to",
    ("docs/benchmarks.md", "$ py-spy record"): "needs py-spy, and the right to trace",
    ("docs/benchmarks.md", "$ jcmd"): "needs a JDK of 21 or newer; a Java 17 is enough for us",
    ("docs/benchmarks.md", "$ asprof"): "needs async-profiler",
    ("docs/kubernetes.md", "$ kubectl create secret"): (
        "needs a cluster; the file: tests/journeys/test_pod.py"
        "::test_a_pod_is_stopped_killed_and_goes_on"
    ),
    ("docs/kubernetes.md", "$ make docker-image"): "CI runs it before the test of the pod",
    ("docs/metrics.md", "scrape_configs:"): "needs Prometheus",
    ("docs/metrics.md", "groups:"): (
        "needs Prometheus; the names of its metrics: tests/unit/test_metrics.py"
        "::test_every_event_and_metric_is_in_the_docs_and_no_other"
    ),
    ("docs/write_your_own_sink.md", "class FolderSink(Folder):"): SAME_TEXT.format(
        "tests/integration/test_examples.py::test_a_sink_of_ones_own_under_a_driver_that_is_killed"
    ),
    ("docs/write_your_own_sink.md", "class TestFolderSink("): SAME_TEXT.format(
        "tests/unit/test_sink_contract.py::test_the_example_passes_everything_and_skips_nothing"
    ),
    ("docs/write_your_own_sink.md", "python pipeline.py"): (
        "tests/integration/test_examples.py::test_a_sink_of_ones_own_under_a_driver_that_is_killed"
    ),
    ("examples/README.md", "$ python examples/flights.py"): (
        "tests/integration/test_demo.py::test_the_example_reads_as_it_runs"
    ),
    ("examples/flights_project/README.md", "python -m pytest"): (
        "tests/integration/test_testing_plugin.py::test_the_example_project_passes_its_own_test; "
        "an installation: tests/journeys/test_clone.py::test_the_first_commands_of_the_pages"
    ),
    ("examples/page_views/README.md", "python -m pytest"): (
        "tests/integration/test_page_views.py::test_the_page_view_example_proves_its_counts; "
        "an installation: tests/journeys/test_clone.py::test_the_first_commands_of_the_pages"
    ),
}
#: Its commands stand in an indented block, which has no language.
NO_FENCE = {"examples/own_sink/README.md"}


@functools.cache
def taken() -> frozenset[Block]:
    """Return the blocks that the tests take."""
    files = [one.read_text("utf-8") for one in sorted((ROOT / "tests").rglob("*.py"))]
    texts = [text for text in files if "from tests.pages import" in text]
    return frozenset(find(*words) for text in texts for words in calls_of_block(text))


def calls_of_block(text: str) -> list[tuple[str, str]]:
    """Return the words of each call, which must stand in it: whoever looks for them finds it."""
    return [
        (ast.literal_eval(node.args[0]), ast.literal_eval(node.args[1]))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "block"
    ]


def declared() -> dict[Block, str]:
    """Return the blocks of the table; one that is on no page any more is an error."""
    return {find(*words): why for words, why in DECLARED.items()}


def nobody_runs(blocks: list[Block]) -> list[str]:
    there = taken() | declared().keys()
    return [
        f"{one.page}:{one.line}, {one.language}"
        for one in blocks
        if one.language not in SHOWN_ONLY and one not in there
    ]


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_taken_by_a_test_or_declared(page: str):
    assert nobody_runs(blocks_of(page)) == []


def test_a_declared_block_is_taken_by_no_test():
    assert taken().isdisjoint(declared()), "take it out of the table"


def test_a_test_that_the_table_names_is_there():
    for why in DECLARED.values():
        for path, name in re.findall(r"(tests/\S+\.py)::(test_\w+)", why):
            assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"


def test_languages_are_few():
    """A block in an unknown language would be a block that nobody thinks of."""
    there = {one.language for page in PAGES for one in blocks_of(page)}
    assert there <= LANGUAGES | SHOWN_ONLY


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NO_FENCE])
def test_code_stands_between_fences(page: str):
    assert re.findall(r"^\n {4}\S.*", FENCE.sub("", (ROOT / page).read_text()), re.MULTILINE) == []


def test_a_new_block_is_found():
    new = Block("README.md", 7, "python", "import connectors\n")
    assert nobody_runs([new, *blocks_of("README.md")]) == ["README.md:7, python"]


def test_a_block_that_is_gone_is_found():
    with pytest.raises(AssertionError, match="is in 0 blocks"):
        find("README.md", "what nobody has written")


def test_words_that_several_blocks_say_are_found():
    with pytest.raises(AssertionError, match="blocks, not in one"):
        find("README.md", "flights")


def test_a_call_without_words_is_found():
    assert calls_of_block('block("a.md", "b")\nunblock(1)') == [("a.md", "b")]
    with pytest.raises(ValueError, match="malformed"):
        calls_of_block('block(page, "b")')
