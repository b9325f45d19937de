"""The decision log of a pipeline that has started before. A tool opens it, and never makes one."""

from __future__ import annotations

from connectors.machine.user_folders import checkpoint_folder
from transactions.errors import ConfigurationError
from transactions.log_backend import LogBackend
from transactions.log_location import LogLocation


def existing_log(checkpoint: str, decision_log: LogLocation | None = None) -> LogBackend:
    """Return the backend of the decision log of a pipeline that has started before.

    Args:
        checkpoint: the folder of its driver.
        decision_log: the place of its log, if not in the checkpoint folder.

    Raises:
        ConfigurationError: the folder has no log, or an address is wrong.
    """
    if decision_log is not None:
        return decision_log.backend()
    folder = checkpoint_folder(checkpoint) / "decisions"
    # The backend would create the folder, but a misspelt folder must not appear.
    if not folder.is_dir():
        raise ConfigurationError(
            "There is no decision log in this checkpoint.",
            where=str(folder.parent),
            cause="the path is wrong, no driver has ever started on it, or its job keeps the "
            "log elsewhere ([decision_log])",
            option=f"--checkpoint {checkpoint}, or --job JOB.toml",
        )
    return LogLocation(folder).backend()
