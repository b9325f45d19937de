"""What must be the same at every restart on one checkpoint: its application, and some options."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transactions.errors import IdentityMismatchError

#: Returns whether a run may change an option. Its arguments are the option's name, and all options
#: before and now. It can raise an error of its own.
MayChange = Callable[[str, Mapping[str, str], Mapping[str, str]], bool]


def check_owner(before: str, now: str, where: str) -> None:
    """Check that a log belongs to the application that opens it.

    Raises:
        IdentityMismatchError: it belongs to another one.
    """
    if before != now:
        raise IdentityMismatchError(
            f"The checkpoint belongs to the application {before!r}.",
            where=where,
            cause="two pipelines use the same checkpoint folder",
            option=f"app_id={now}",
        )


def check_identity(
    before: Mapping[str, str], now: Mapping[str, str], where: str, may_change: MayChange
) -> None:
    """Check the options that a log was written with against those of the run that opens it.

    Args:
        before: the options of the run before.
        now: those of this one.
        where: the log, for the error.
        may_change: see above.

    Raises:
        IdentityMismatchError: an option differs and may not change.
    """
    for name in sorted({*now, *before}):
        was, is_now = before.get(name, ""), now.get(name, "")
        if was != is_now and not may_change(name, before, now):
            raise IdentityMismatchError(
                f"The checkpoint was written with {name}={was or '(absent)'}.",
                where=where,
                cause="an option that must never change was changed",
                option=f"{name}={is_now or '(absent)'}",
            )
