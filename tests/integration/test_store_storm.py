"""A store that is too busy for a second and a half fails no read of Hadoop's client."""

from __future__ import annotations

import subprocess
import sys

from tests.s3_store import S3Store
from tests.tiers import long

pytestmark = long


def test_a_read_outlives_a_storm_at_the_store(s3: S3Store):
    command = [sys.executable, "-m", "tests.integration.store_storm_main", s3.endpoint]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert seen.returncode == 0, seen.stdout + seen.stderr
    reads, refused = (int(word) for word in seen.stdout.split() if word.isdigit())
    assert refused >= reads, "each read met the storm"
