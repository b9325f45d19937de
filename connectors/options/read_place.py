"""Where a read begins or ends, as a user says it. Spark has three options for each; a consumer
group that has read before is another way to say where to begin.
"""

from __future__ import annotations

import dataclasses
from typing import Final

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: What to do when a partition has no record of that time or later.
ERROR: Final = "error"
STRATEGIES: Final = (ERROR, LATEST)

#: The option that names a group.
GROUP: Final = "startingGroupId"
_OFFSETS: Final = ("startingOffsets", "endingOffsets")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The option that counts, out of three: Spark prefers one timestamp for all partitions, then
    timestamps by partition, then offsets.

    Attributes:
        option: its name.
        said: its value: a word or JSON of offsets, a number of milliseconds, or JSON of those.
        unmatched: a strategy, for a partition whose last record is older than the timestamp.
    """

    option: str
    said: str
    unmatched: str = LATEST

    @property
    def is_offsets(self) -> bool:
        """Whether it says offsets and not timestamps."""
        return self.option in _OFFSETS

    @property
    def is_group(self) -> bool:
        """Whether it names a consumer group."""
        return self.option == GROUP

    @property
    def is_end(self) -> bool:
        """Whether a read ends there, and does not begin there."""
        return self.option.startswith("ending")

    @property
    def is_json(self) -> bool:
        """Whether it says a value for each partition."""
        return self.said.lstrip().startswith("{")

    @property
    def told(self) -> str:
        """The place as the decision log keeps it. A log that knows only offsets has them bare."""
        return self.said if self.is_offsets else str(self)

    def __str__(self) -> str:
        """Return ``option=value``, for texts."""
        return f"{self.option}={self.said}"


def first_place(unmatched: str, **options: object) -> Place | None:
    """Return the first place that is given, None when there is none."""
    for option, said in options.items():
        if said is not None:
            return Place(option, str(said), unmatched)
    return None
