"""Where a pipeline began to read: its proof begins there, too."""

from __future__ import annotations

from connectors.kafka.source.offsets import merged_offsets
from connectors.user_folders import checkpoint_folder
from transactions.decision_log import read_log
from transactions.errors import ConfigurationError
from transactions.log_location import LogLocation


def pipeline_start(checkpoint: str) -> dict[str, int]:
    """Return the first offset of each ``topic-partition`` that a pipeline read, from its log.

    The log has them since the pipeline's first start (`transactions.log_entries.Start`). A
    partition that came later is not among them: it is read from its beginning.

    Args:
        checkpoint: the folder of its driver; it is only read.

    Raises:
        ConfigurationError: there is no log in this folder, or the log does not say it.
        DecisionLogError: the log cannot be read.
    """
    log = checkpoint_folder(checkpoint) / "decisions"
    # Making the backend would make the folder: a misspelt one must stay absent.
    start = merged_offsets(read_log(LogLocation(log).backend()).start) if log.is_dir() else {}
    if not start:
        raise ConfigurationError(
            "The checkpoint does not say where its pipeline began to read.",
            where=str(log),
            cause="the path is wrong, no driver has started on it, its job keeps the log elsewhere "
            "([decision_log]), or it was restored from a savepoint or made by an older version",
            option=f"--checkpoint {checkpoint}",
        )
    return start
