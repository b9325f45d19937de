"""A committable survives the way from a task through the log to another process."""

import dataclasses

import orjson
import pytest

from tests.unit.samples import committable
from transactions.committable import Committable, Outcome
from transactions.errors import LogVersionError

#: A stored committable of format 1, kept for ever: every later version must read it.
FROZEN_FORMAT_1 = (
    b'{"format":1,"sink":"out","transactional_id":"app.log.1.p.0","producer_id":7,'
    b'"producer_epoch":3,"protocol_version":1,"start_time_ms":1000,"timeout_ms":900000,'
    b'"checkpoint_id":5,"subtask":0,"attempt":"1.0","token":"5.0.t","record_count":10,'
    b'"fingerprint":"00ff","source_offsets":{"in-0":42},"marker_group":"app",'
    b'"marker_partition":"in-0","partitions":["out-0"]}'
)


def test_json_round_trip():
    one = committable(source_offsets={"in-1": 4, "in-0": 3}, partitions=("out-0", "out-1"))
    assert Committable.from_json(one.to_json()) == one


def test_the_frozen_sample_of_format_1_is_read():
    one = Committable.from_json(FROZEN_FORMAT_1)
    assert (one.transactional_id, one.source_offsets) == ("app.log.1.p.0", {"in-0": 42})
    assert one.to_json() == FROZEN_FORMAT_1


def test_a_newer_format_is_refused_by_name():
    data = {**orjson.loads(FROZEN_FORMAT_1), "format": 2}
    with pytest.raises(LogVersionError, match=r"app\.log\.1\.p\.0"):
        Committable.from_json(orjson.dumps(data))


def test_it_is_plain_and_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        committable().token = "x"  # type: ignore[misc]
    assert committable().described(start_time_ms=9).start_time_ms == 9


def test_a_lost_answer_is_not_a_commit():
    assert [o for o in Outcome if o.is_committed] == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]


def test_what_has_no_transaction_needs_no_commit():
    written = committable(transactional_id="", refused=3)
    assert committable().needs_commit
    assert not written.needs_commit
    assert Committable.from_json(written.to_json()).refused == 3
    assert "refused" not in committable().to_dict(), "an older reader would stumble over it"
