"""The pages for people: links and anchors lead somewhere, job files parse, Python compiles."""

from __future__ import annotations

import re
import textwrap
import tomllib
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from connectors.options.job_file import parse_job
from tests.pages import FENCE

ROOT = Path(__file__).parents[2]
MOST_README_LINES = 150
GLOBS = (
    "*.md",
    "docs/*.md",
    "docker/README.md",
    "benchmarks/README.md",
    "examples/**/README.md",
    "tests/**/README.md",
)
PAGES = sorted({path for glob in GLOBS for path in ROOT.glob(glob)})
#: What a user reads beside the pages: errors, help and comments.
SOURCES = sorted(
    path
    for name in ("connectors", "transactions", "examples")
    for path in ROOT.glob(f"{name}/**/*.py")
)
#: Pages whose Python is shown to users.
SHOWN = [path for path in PAGES if path.parent == ROOT / "docs" or path == ROOT / "README.md"]
JOB_PAGES = [
    ROOT / "README.md",
    ROOT / "docs/getting_started.md",
    ROOT / "docs/continuous.md",
    ROOT / "docs/checkpoint_address.md",
]

_CODE = re.compile(r"(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)", re.DOTALL)  # of one paragraph
_LINK = re.compile(r"\]\(\s*<?([^\s()<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HTML_LINK = re.compile(r"\b(?:src|srcset|href)=\"([^\"\s]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links_in(text: str) -> list[str]:
    """Return what a page links to, pictures too; nothing of its code."""
    prose = _CODE.sub("code", FENCE.sub("", text))
    return _LINK.findall(prose) + _HTML_LINK.findall(prose)


def anchors_in(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings: the second of a name gets ``-1``."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        kept = (c for c in shown if c in " -_" or unicodedata.category(c)[0] in "LN")
        slug = "".join(kept).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_links(page: Path, text: str) -> list[str]:
    """Return the links of a page into this repository that lead nowhere."""
    broken = []
    for link in links_in(text):
        if _ELSEWHERE.match(link):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        if target and not path.exists():
            broken.append(link)
        elif anchor and path.suffix == ".md":
            there = text if path == page else path.read_text("utf-8")
            if anchor not in anchors_in(there):
                broken.append(link)
    return broken


def blocks_in(text: str, language: str) -> list[str]:
    return [textwrap.dedent(code) for _, _, kind, code in FENCE.findall(text) if kind == language]


def installs_from_an_index(text: str) -> list[str]:
    """Return the words that install this project by its name, or name one of its extras by it."""
    return re.findall(r"pip install(?: -\S+)* ['\"]?sparkonce\b|sparkonce\[", text)


def job_files_in(text: str) -> list[str]:
    """Return the TOML of a page that is a whole job file, not a few lines of one."""
    blocks = blocks_in(text, "toml")
    return [block for block in blocks if {"app", "source", "sink"} <= tomllib.loads(block).keys()]


def test_the_readme_is_short():
    lines = len((ROOT / "README.md").read_text("utf-8").splitlines())
    assert lines <= MOST_README_LINES, f"README.md has {lines} lines; move some of them to docs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_into_this_repository_leads_somewhere(page: Path):
    assert broken_links(page, page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", JOB_PAGES, ids=name_of)
def test_job_files_of_the_pages_parse(page: Path):
    jobs = job_files_in(page.read_text("utf-8"))
    assert jobs, f"{name_of(page)} shows no job file"
    for job in jobs:
        parse_job(job, page.with_name("job.toml"), {"S3_SECRET": "secret"})


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_python_of_the_pages_compiles(page: Path):
    for number, code in enumerate(blocks_in(page.read_text("utf-8"), "python"), 1):
        compile(code, f"{name_of(page)}, Python block {number}", "exec")


def test_it_is_installed_from_a_clone():
    """By its name pip finds nothing, or the package of a stranger: it is not on PyPI."""
    found = {
        name_of(path): installs_from_an_index(path.read_text("utf-8")) for path in PAGES + SOURCES
    }
    assert {name for name, words in found.items() if words} == set()


def test_an_installation_by_the_name_is_found():
    for text in ("pip install sparkonce", "pip install -U 'sparkonce==1'", "sparkonce[demo]"):
        assert len(installs_from_an_index(text)) == 1
    assert installs_from_an_index("pip install '.[demo]' in a clone of sparkonce") == []


GOOD = """\
# A page
[home](README.md) [licence](LICENSE "its text") [web](https://example.org/none#no) [here](#a-page)
![picture](docs/two-phases.svg) [folder](docs) [there](docs/limits.md#limits)
[code](#sparkonce-run-job-again) [second](#again-1) [umlaut](#größe-von-x_y)
## `sparkonce run`: *job*, again?
## Again
## [Again](README.md)
## Größe von `x_y`
`[no link](nowhere.md)`

```python
# [no link](nowhere.md), no heading
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page beside which there is all that `GOOD` links to."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "LICENSE", "docs/two-phases.svg"):
        (tmp_path / name).touch()
    (tmp_path / "docs/limits.md").write_text("# Limits\n", "utf-8")
    return tmp_path / "PAGE.md"


def test_good_links_are_found_good(page: Path):
    assert len(links_in(GOOD)) == 11
    assert broken_links(page, GOOD) == []


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "docs/nowhere.md#limits",
        "docs/limits.md#nowhere",
        "docs/limits.md#Limits",
        "#nowhere",
        "#again-2",
        "../nowhere/README.md",
    ],
)
@pytest.mark.parametrize("form", ["[text]({})", '[text]({} "title")', '<img src="{}">'])
def test_a_link_to_nowhere_is_found(page: Path, link: str, form: str):
    text = f"{GOOD}\n| a | {form.format(link)} |\n"
    assert broken_links(page, text) == [link]


def test_a_block_in_a_list_is_a_block_too():
    text = "1. one\n   ```python\n   if True:\n       one = 1\n   ```\n```toml\na = 1\n```\n"
    assert blocks_in(text, "python") == ["if True:\n    one = 1\n"]
    assert blocks_in(text, "toml") == ["a = 1\n"]
    assert job_files_in(text) == []
