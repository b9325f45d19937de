"""What is read and written where a checkpoint lies: in a folder, or in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.s3_server import S3Server
from transactions.checkpoint_location import BOUND_TO, CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.log_backend import LocalFileBackend

URL = "s3://bucket/app"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as one:
        yield one


@pytest.mark.parametrize("address", ["/data/a b:c", "file:///data/a b:c", "file:/data/a b:c"])
def test_a_path_and_a_file_url_are_one_folder(address: str):
    location = CheckpointLocation.of(address)
    assert location.folder == Path("/data/a b:c")
    assert location.log.address == Path("/data/a b:c/decisions")
    assert str(location) == "/data/a b:c"


def test_a_relative_path_is_made_absolute():
    assert CheckpointLocation.of(Path("state")).folder == Path.cwd() / "state"


@pytest.mark.parametrize("address", [URL, f"{URL}/", f"{URL}//"])
def test_an_address_has_its_log_below_it(server: S3Server, address: str):
    location = CheckpointLocation(address, server.options())
    assert location.folder is None
    assert location.log.address == f"{URL}/decisions"
    assert location.log.options == server.options()
    assert "secret" not in repr(location) + str(location)


def test_what_is_written_at_an_address_lies_below_it(server: S3Server):
    location = CheckpointLocation(URL, server.options())
    assert location.read(BOUND_TO) is None
    assert not location.has_log()
    assert location.files().put_if_absent(BOUND_TO, b"0123abcd")
    assert not location.has_log()
    assert location.log.backend().put_if_absent("1", b"")
    assert sorted(server.objects) == ["app/decisions/1", "app/log-id"]
    again = CheckpointLocation(f"{URL}/", server.options())
    assert again.has_log()
    assert again.read(BOUND_TO) == b"0123abcd"


def test_a_question_makes_no_folder(tmp_path: Path):
    location = CheckpointLocation(tmp_path / "misspelt")
    assert location.read(BOUND_TO) is None
    assert not location.has_log()
    assert [*tmp_path.iterdir()] == []


def test_a_folder_costs_no_more_syncs_than_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    LocalFileBackend(tmp_path / "a").put_if_absent(BOUND_TO, b"")
    before = len(synced)
    CheckpointLocation(tmp_path / "b").files().put_if_absent(BOUND_TO, b"")
    assert len(synced) == 2 * before


@pytest.mark.parametrize(
    ("address", "options", "says"),
    [
        ("/data/app", {"region": "hidden"}, "no options of a store"),
        ("memory:///", {}, "cannot lie in memory"),
        ("wasbs://name/app", {}, "unknown kind of store"),
        ("hdfs://name", {}, "an address has a folder"),
        ("dbfs:/app", {}, "unknown kind of store"),
        ("s3://key:hidden@bucket/app", {}, "carries credentials"),
        ("s3://bucket/app#1", {}, "different places to different clients"),
        ("s3://bucket/a%20b", {}, "different places to different clients"),
        ("s3://bucket/app ", {}, "different places to different clients"),
        (URL, {"nonsense": "hidden"}, "nonsense"),
    ],
)
def test_a_wrong_address_is_refused_in_four_parts(address: str, options: dict[str, str], says: str):
    with pytest.raises(ConfigurationError, match=says) as raised:
        CheckpointLocation(address, options).files()
    error = raised.value
    assert all((error.what, error.where, error.cause, error.option))
    assert "hidden" not in str(error)
    assert "hidden" not in str(CheckpointLocation(address))


@pytest.mark.parametrize("path", ["~/app", Path("~/app"), "~somebody"])
def test_a_home_folder_that_no_shell_has_put_in_is_refused(path: str | Path):
    with pytest.raises(ConfigurationError, match="begins with ~") as raised:
        CheckpointLocation(path)
    error = raised.value
    assert all((error.what, error.where, error.cause, error.option))
    assert CheckpointLocation("/data/~app").folder == Path("/data/~app")
