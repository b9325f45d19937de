"""The type of every command line option that is a duration."""

from __future__ import annotations

from typing import Final

import click


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from transactions.duration import seconds_of

        if isinstance(value, float):
            return value
        try:
            seconds = seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} is not longer than zero", param, ctx)
        return seconds


#: ``500ms``, ``10s``, ``1min``; a number alone is in seconds. The command receives seconds.
DURATION: Final = _Duration()
