"""Compares the output with the input, id by id."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Audit:
    """Counts the wrong records of an output.

    Attributes:
        lost: ids that no read_committed reader saw.
        dup: how often an id came again.
        foreign: ids that were never produced.
        untransformed: records that did not go through the job's function.
    """

    lost: int = 0
    dup: int = 0
    foreign: int = 0
    untransformed: int = 0

    @property
    def clean(self) -> bool:
        """Tell whether every record came out exactly once, transformed."""
        return self == Audit()
