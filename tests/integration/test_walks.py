"""The walks of docs/design.md are walked: each function that one names is called, in a real run.

A profiler in each process of the pipeline writes down when it saw a function first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.brokers import Broker
from tests.journeys.conftest import CONTINUOUS, MICRO_BATCH, stranger_on
from tests.tiers import long

DESIGN = Path(__file__).parents[2] / "docs/design.md"
TRACER = Path(__file__).parent / "traced"
STEP = re.compile(r"^[0-9]+\. `([\w./]+)` \(((?:`[\w.]+`,? ?)+)\)", re.MULTILINE)

#: A line of the sink: without a query the stage that writes also reads.
QUERY = {"micro-batch": 'sql = "SELECT key, value FROM source"'}

Function = tuple[str, str]
"""Path and qualified name."""


def walks(mode: str) -> dict[str, list[list[Function]]]:
    """Return, per walk, its steps: the functions that stand beside each file. A class stands for
    whatever is called of it.
    """
    section = DESIGN.read_text("utf-8").partition("\n## 7. ")[2].partition("\n## ")[0]
    found = {}
    for walk in section.split("\n### ")[1:]:
        heading, _, text = walk.partition("\n")
        if mode in heading:
            found[heading] = [
                [(path, name) for name in re.findall(r"`([\w.]+)`", names)]
                for path, names in STEP.findall(text)
            ]
    return found


def calls(folder: Path) -> dict[Function, int]:
    """Return when each function was called first, in any process."""
    first: dict[Function, int] = {}
    for file in folder.glob("*.txt"):
        for line in file.read_text("utf-8").splitlines():
            at, path, name = line.split(" ", 2)
            function = (path, name.replace(".<locals>", ""))
            first[function] = min(int(at), first.get(function, int(at)))
    return first


@long
@pytest.mark.parametrize(
    ("mode", "options"),
    [("micro-batch", MICRO_BATCH), ("continuous", CONTINUOUS)],
    ids=["micro-batch", "continuous"],
)
def test_each_function_of_a_walk_is_called(
    mode: str, options: str, kafka_cluster: Broker, tmp_path: Path
):
    create: Callable[..., None] = kafka_cluster.create_topic
    stranger = stranger_on(kafka_cluster.bootstrap_servers, create, tmp_path)
    trace = tmp_path / "trace"
    trace.mkdir()
    traced = {"PYTHONPATH": str(TRACER), "SPARKONCE_TRACE": str(trace)}
    with (
        stranger.busy_topic(),
        stranger.follows_output() as reader,
        stranger.runs(stranger.job(options, sink=QUERY.get(mode, "")), **traced) as pipeline,
    ):
        stranger.more_comes_out(reader, pipeline)
        assert pipeline.sigterm() == 0, pipeline.text
    seen = calls(trace)
    assert len(seen) > 100, "the profiler was not loaded"
    for heading, steps in walks(mode).items():
        assert len(steps) > 8, heading
        for step in steps:
            for path, name in step:
                assert any(
                    at == path and (one == name or one.startswith(f"{name}.")) for at, one in seen
                ), f"{heading}: {name} of {path} was not called"
