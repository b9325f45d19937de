"""The decision log of a pipeline that has started before. A tool opens it, and never makes one."""

from __future__ import annotations

from transactions.checkpoint_location import CheckpointLocation
from transactions.errors import ConfigurationError
from transactions.log_backend import LogBackend
from transactions.log_location import LogLocation


def existing_log(
    checkpoint: CheckpointLocation, decision_log: LogLocation | None = None
) -> LogBackend:
    """Return the backend of the decision log of a pipeline that has started before.

    Args:
        checkpoint: where the checkpoint of its driver lies.
        decision_log: the place of its log, if not there.

    Raises:
        ConfigurationError: the checkpoint has no log, or an address is wrong.
        OSError: a store does not answer.
    """
    if decision_log is not None:
        return decision_log.backend()
    # The backend would create the folder, but a misspelt folder must not appear.
    if not checkpoint.has_log():
        raise ConfigurationError(
            "There is no decision log in this checkpoint.",
            where=str(checkpoint),
            cause="the path or address is wrong, no driver has ever started on it, or its job "
            "keeps the log elsewhere ([decision_log])",
            option=f"--checkpoint {checkpoint.address}, or --job JOB.toml",
        )
    return checkpoint.log.backend()
