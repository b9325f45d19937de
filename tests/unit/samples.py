"""Values that several unit tests need."""

from typing import Any

from transactions.committable import Committable
from transactions.log_entries import Decision


def committable(**fields: Any) -> Committable:
    """Return a prepared transaction of sink `out`."""
    defaults: dict[str, Any] = {
        "sink": "out",
        "transactional_id": "app.log.1.p.0",
        "producer_id": 7,
        "producer_epoch": 3,
        "start_time_ms": 1000,
        "timeout_ms": 900_000,
        "checkpoint_id": 5,
        "subtask": 0,
        "attempt": "1.0",
        "token": "5.0.t",
        "record_count": 10,
        "fingerprint": "00ff",
        "source_offsets": {"in-0": 42},
        "marker_group": "app",
        "marker_partition": "in-0",
    }
    return Committable(**{**defaults, **fields})


def decision(checkpoint_id: int, **fields: Any) -> Decision:
    """Return a decision with one committable."""
    defaults: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "query_id": "q",
        "generation": 0,
        "start_offsets": (f"s{checkpoint_id - 1}",),
        "end_offsets": (f"s{checkpoint_id}",),
        "committables": (committable(checkpoint_id=checkpoint_id, token=f"{checkpoint_id}.0.t"),),
    }
    return Decision(**{**defaults, **fields})
