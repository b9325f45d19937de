"""The decision log in a real S3 store, through our own client; what Spark writes there by Hadoop's:
`integration/test_crashes_at_addresses.py`.
"""

from __future__ import annotations

import os
import subprocess

from tests.journeys.conftest import SPARKONCE
from tests.s3_store import BUCKET, KEY_ID, REGION, SECRET, S3Store, variables
from tests.unit.test_log_backend import contract_of_a_backend
from transactions.object_store_backend import ObjectStoreBackend


def test_the_contract_of_every_backend(s3: S3Store):
    options = {
        "endpoint": s3.endpoint,
        "region": REGION,
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
    }
    for test in contract_of_a_backend():
        place = f"s3://{BUCKET}/{test.__name__}/log"
        test(lambda place=place: ObjectStoreBackend(place, **options))


def test_doctor_tries_what_a_log_needs_and_leaves_nothing(s3: S3Store):
    seen = subprocess.run(
        [SPARKONCE, "doctor", "--checkpoint", f"s3://{BUCKET}/tried/app"],
        capture_output=True,
        text=True,
        env={**os.environ, **variables(s3.endpoint)},
        timeout=120,
        check=False,
    )
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "raced for 20 names" in seen.stdout
    assert s3.keys("tried") == set()
