"""The names of an application's transactional ids, and their owners.

Clusters are shared: another client may use an id that begins like ours. A name without the full
shape was not made here.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final, Self

_REST: Final = re.compile(r"([0-9a-z]{8})\.([0-9]{1,18})\.([0-9a-z]+)\.([0-9]{1,18})")
_OWNER: Final = "owner"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalId:
    """An id of a producer: ``<application>.<log id>.<run epoch>.<process>.<slot>``.

    Attributes:
        log_id: the decision log that says which of its transactions are decided.
        run_epoch: number of the Fence of its run.
        process: random name of the worker process.
        slot: number of the producer in its process.
    """

    log_id: str
    run_epoch: int
    process: str
    slot: int

    @classmethod
    def of(cls, application_id: str, name: str) -> Self | None:
        """Parse an application's id; return None if the name is not one of its producers' ids."""
        prefix = f"{application_id}."
        match = _REST.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match is None:
            return None
        log_id, run_epoch, process, slot = match.groups()
        return cls(log_id=log_id, run_epoch=int(run_epoch), process=process, slot=int(slot))


def owner_id(application_id: str) -> str:
    """Return the id that marks the owning run of an application: see `ownership`."""
    return f"{application_id}.{_OWNER}"


def probe_id(application_id: str) -> str:
    """Return the id with which the driver and the doctor test what a cluster allows."""
    return f"{application_id}.doctor"
