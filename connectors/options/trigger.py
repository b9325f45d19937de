"""When the next micro-batch begins."""

from __future__ import annotations

from typing import Final

from transactions.duration import WANTED, seconds_of
from transactions.errors import ConfigurationError

#: The trigger that reads what is there, and then ends.
AVAILABLE_NOW: Final = "available-now"


def trigger_ms(trigger: str) -> int | None:
    """Return the time from batch to batch that a trigger says; None for `AVAILABLE_NOW`.

    Raises:
        ConfigurationError: it is neither a duration nor `AVAILABLE_NOW`.
    """
    if trigger == AVAILABLE_NOW:
        return None
    try:
        return round(seconds_of(trigger) * 1000)
    except ValueError as error:
        raise ConfigurationError(
            "The trigger is neither a duration nor available-now.",
            where="options of the pipeline",
            cause=f'write {WANTED}, or "{AVAILABLE_NOW}"',
            option=f"trigger={trigger}",
        ) from error
