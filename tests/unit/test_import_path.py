"""Processes that are started with `python -m` find our packages, whatever lies beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.spark.driver_jvm import jvm_environment
from connectors.spark.import_path import check_ours_are_found, hides_ours, ours_first
from tests.unit.jvm import jvm_in
from transactions.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
OURS = [str(ROOT / name / "__init__.py") for name in ("connectors", "transactions")]
PROBE = "import connectors, transactions; print(connectors.__file__, transactions.__file__)"


@pytest.fixture(autouse=True)
def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


@pytest.fixture(params=["transactions.py", "connectors/__init__.py"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a module of a project, with the name of a package of ours."""
    path = tmp_path / "project" / request.param
    path.parent.mkdir(parents=True)
    path.write_text("")
    (tmp_path / "project" / "probe.py").write_text(PROBE)
    return path


def project(other: Path) -> str:
    return str(other.parents[0] if other.name == "transactions.py" else other.parents[1])


def imported(folder: str) -> list[str]:
    """Return what a process imports that is started there, as Spark starts its processes; nothing
    if it cannot.
    """
    command = [sys.executable, "-m", "probe"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    return done.stdout.split()


def test_a_module_of_the_folder_or_of_the_path_hides_ours(other: Path, tmp_path: Path):
    here = project(other)
    elsewhere = str(tmp_path)
    assert hides_ours({}, here) == other
    assert hides_ours({"PYTHONPATH": f"/nowhere{os.pathsep}{here}"}, elsewhere) == other
    assert hides_ours({"PYTHONSAFEPATH": "1", "PYTHONPATH": here}, elsewhere) == other
    assert hides_ours({"PYTHONSAFEPATH": "1"}, here) is None
    assert hides_ours({"PYTHONPATH": here}, str(ROOT)) is None
    assert hides_ours({"PYTHONPATH": str(ROOT)}, elsewhere) is None


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path):
    """Python goes on looking, and so does this."""
    (tmp_path / "connectors").mkdir()
    (tmp_path / "probe.py").write_text(PROBE)
    assert hides_ours({}, str(tmp_path)) is None
    assert imported(str(tmp_path))[0] == str(ROOT / "connectors" / "__init__.py")


def test_a_copy_of_ours_hides_nothing(tmp_path: Path):
    """As it is shipped in a zip, or lies in a clone."""
    for name in ("connectors", "transactions"):
        # Without what another process of the tests compiles at this moment.
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=compiled)
    shipped = shutil.make_archive(str(tmp_path / "shipped"), "zip", tmp_path / "clone")
    assert hides_ours({}, str(tmp_path / "clone")) is None
    assert hides_ours({"PYTHONPATH": shipped}, str(tmp_path)) is None


def test_a_module_in_a_zip_hides_ours(other: Path, tmp_path: Path):
    shipped = shutil.make_archive(str(tmp_path / "shipped"), "zip", project(other))
    found = hides_ours({"PYTHONPATH": shipped}, str(tmp_path))
    assert found == Path(shipped) / other.relative_to(project(other))


@pytest.mark.parametrize("path", [None, "job", "here"])
def test_in_the_block_a_process_finds_ours_and_the_modules_beside_it(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
):
    """The folder of a job file is on PYTHONPATH; often the command is typed there."""
    here = project(other)
    monkeypatch.chdir(here)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", here if path == "here" else str(tmp_path))
    before = dict(os.environ)
    assert imported(here) != OURS  # it can fail
    with jvm_environment(ours_first):
        assert imported(here) == OURS
    assert dict(os.environ) == before


def test_where_nothing_hides_ours_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    with jvm_environment(ours_first):
        assert dict(os.environ) == before


def test_a_session_that_cannot_find_ours_is_refused(other: Path):
    here = project(other)
    with pytest.raises(ConfigurationError, match="another package") as refused:
        check_ours_are_found(jvm_in(here))
    assert refused.value.where == str(other)
    check_ours_are_found(jvm_in(here, PYTHONSAFEPATH="1"))
    check_ours_are_found(jvm_in(here, PYTHONSAFEPATH="1", PYTHONPATH=f"{ROOT}{os.pathsep}{here}"))


def test_the_source_says_what_hides_it(other: Path):
    """PySpark looks for it in such a process, and would say only that there is none."""
    (Path(project(other)) / "asks.py").write_text(
        "from pyspark_sparkonce import DefaultSource\n"
        "print(DefaultSource.name())\n"
        "DefaultSource({})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "asks"],
        cwd=project(other),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "kafka-exactly-once\n"), done.stderr
    assert f"where:  {other}\n" in done.stderr
    assert "look at: the name of that file" in done.stderr


@pytest.mark.parametrize(
    ("lacks", "call"),
    [
        ("msgspec", ""),
        ("confluent_kafka", ".reader(None)"),
        ("confluent_kafka", ".writer(None, False)"),
        ("confluent_kafka", ".streamWriter(None, False)"),
    ],
)
def test_the_source_says_what_its_installation_lacks(tmp_path: Path, lacks: str, call: str):
    (tmp_path / f"{lacks}.py").write_text("raise ImportError('no such library here')\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import pyspark_sparkonce as a; a.DefaultSource({{}}){call}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cause:  no such library here\n" in done.stderr
    assert "look at: the installation of sparkonce" in done.stderr
