"""Which addresses of a checkpoint are folders of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.machine.user_folders import checkpoint_folder
from transactions.errors import ConfigurationError


@pytest.mark.parametrize("address", ["s3a://b/x", "hdfs://name/x", "dbfs:/x", " dbfs:/x", "://b/x"])
def test_another_file_system_is_refused(address: str) -> None:
    """Also with one slash: it would be a folder ``dbfs:`` below the working directory."""
    with pytest.raises(
        ConfigurationError, match="must be a folder of a local file system"
    ) as refused:
        checkpoint_folder(address)
    error = refused.value
    assert all((error.what, error.where, error.cause, error.option))


@pytest.mark.parametrize("address", ["/data/a b:c", "file:///data/a b:c", "file:/data/a b:c"])
def test_a_path_and_a_file_url_are_folders(address: str) -> None:
    assert checkpoint_folder(address) == Path("/data/a b:c")
