"""`sparkonce kafka up`: what it refuses before it starts a broker."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from connectors.cli.kafka import command
from connectors.cluster import local_cluster


@pytest.mark.parametrize("port", ["-1", "0", "65536", "99999"])
def test_a_port_that_is_none_is_refused(monkeypatch, tmp_path, port: str):
    """A fixed port is that of the first broker; the others take free ones."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(local_cluster, "LocalCluster", cluster := MagicMock())
    done = CliRunner().invoke(command, ["up", "--port", port])
    assert done.exit_code == 2, done.output
    assert "1<=x<=65535" in done.output
    cluster.assert_not_called()
