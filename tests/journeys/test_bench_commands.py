"""The benchmark's commands of docs/benchmarks.md, with fewer seconds and fewer records."""

# ruff: noqa: F811 - a fixture is imported, and named again by who takes it

from __future__ import annotations

import json
import re

import psutil
import pytest

from connectors.testing.brokers import running_broker
from tests.journeys.terminal import Terminal, terminal  # noqa: F401 - a fixture
from tests.pages import block, commands, replaced
from tests.tiers import long

SHORT = "--seconds 2 --warmup 1"


@long
@pytest.mark.timeout(900)
def test_the_three_benchmarks(terminal: Terminal):
    """Each ends with 0: every record was looked for and found once."""
    latency, throughput, commit = commands(block("docs/benchmarks.md", "bench throughput"))
    terminal.types(f"{latency} {SHORT}")
    with running_broker(brokers=3) as three:
        here = replaced(throughput, {"broker:9092": three.bootstrap_servers})
        terminal.types(f"{here} --records 20000", patience=400)
    terminal.types(f"{commit} {SHORT}", patience=400)
    assert (terminal.folder / "commit.svg").read_text("utf-8").rstrip().endswith("</svg>")


@long
def test_the_line_has_what_the_page_takes_of_it(terminal: Terminal):
    """The page gives the line to jq, which the tests do not ask for."""
    (command,) = commands(block("docs/benchmarks.md", "--json -"))
    bench, _, jq = command.partition(" | ")
    said = terminal.types(f"{bench} {SHORT} 2>/dev/null")
    (line,) = map(json.loads, said.splitlines())
    words = re.findall(r"[.]([\w.]+)", jq)
    assert words == ["subtasks", "commit_ms.p99_ms", "phase_ms.decide.p99_ms"]
    for word in words:
        found = line
        for name in word.split("."):
            found = found[name]
        assert found > 0


@long
def test_the_run_to_look_at_is_found_and_can_record_itself(terminal: Terminal):
    page = block("docs/benchmarks.md", "--seconds 120 &")
    bench, pgrep = commands(page)
    with terminal.starts(bench.removesuffix(" &")) as run:
        run.until_it_says("measuring")
        ours = {one.pid for one in psutil.Process(run.process.pid).children(recursive=True)}
        everybodys = pgrep.removeprefix("driver=$(").removesuffix(" | head -1)")  # runs of others
        found = ours & set(map(int, terminal.types(everybodys).split()))
        assert any("java" in one.name() for pid in found for one in psutil.Process(pid).children())
        assert run.ctrl_c() == 130, run.text

    (record,) = commands(block("docs/benchmarks.md", "StartFlightRecording"))
    place = {"/tmp/": f"{terminal.folder}/"}
    terminal.types(f"{replaced(record, place)} {SHORT}")
    assert (terminal.folder / "spark.jfr").read_bytes().startswith(b"FLR")
