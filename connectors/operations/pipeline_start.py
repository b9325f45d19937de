"""Where a pipeline began to read; its proof begins there, too."""

from __future__ import annotations

from collections.abc import Collection

from connectors.kafka.source.offsets import merged_offsets
from connectors.operations.existing_log import existing_log
from transactions.checkpoint_location import CheckpointLocation
from transactions.decision_log import read_log
from transactions.errors import ConfigurationError
from transactions.log_location import LogLocation


def pipeline_start(
    checkpoint: str | CheckpointLocation,
    topics: Collection[str],
    decision_log: LogLocation | None = None,
) -> dict[str, int]:
    """Return the first offset of each ``topic-partition`` that a pipeline read, from its log.

    The log has them since the pipeline's first start (`transactions.log_entries.Start`). They lack
    a partition that came later: it is read from its beginning.

    Args:
        checkpoint: where the checkpoint of its driver lies; it is only read.
        topics: the input topics of the proof; the pipeline must have begun with at least one of
            them.
        decision_log: where its job keeps the log, if not there.

    Raises:
        ConfigurationError: there is no log, the log does not say where reading began, or it is
            the log of a pipeline that read other topics.
        DecisionLogError: the log cannot be read.
    """
    place = CheckpointLocation.of(checkpoint)
    start = merged_offsets(read_log(existing_log(place, decision_log)).start)
    if not start:
        raise ConfigurationError(
            "The decision log does not say where its pipeline began to read.",
            where=str(place),
            cause="no driver has started on this checkpoint, a savepoint was restored into it, or "
            "an older version made it",
            option=f"--checkpoint {place.address}; without this option the whole input counts",
        )
    read = {name.rpartition("-")[0] for name in start}
    if read.isdisjoint(topics):
        raise ConfigurationError(
            "The checkpoint belongs to another pipeline.",
            where=str(place),
            cause=f"its pipeline began with the topics {', '.join(sorted(read))}",
            option=f"--input {', '.join(topics)}",
        )
    return start
