"""Asks for a token: an identity provider (OIDC, client credentials), or a function of the user."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from connectors.clients.token_source import PRINTABLE, Token
from connectors.records.named_function import named_function
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import (
    ConfigurationError,
    SparkOnceError,
    TokenUnavailableError,
)

if TYPE_CHECKING:
    from connectors.clients.login_oauth import OAuth

CALLBACK: Final = "sasl.oauthbearer.token.callback"

#: No user's function means the year 5138: it gave milliseconds.
_MOST_SECONDS: Final = 1e11
_NAME: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\t\r\n]*")


def ask(oauth: OAuth, timeout_s: float) -> Token:
    """Ask for a new token.

    Args:
        oauth: whom to ask, and as whom.
        timeout_s: how long an endpoint may be silent; a function is not limited.

    Raises:
        TokenUnavailableError: the next question may be answered.
        AuthenticationError: the endpoint refuses the client.
        ConfigurationError: there is no such function, or what came is no token.
    """
    if oauth.callback is not None:
        return _ask_function(oauth)
    from connectors.clients.token_endpoint import ask_endpoint  # noqa: PLC0415 - see there

    return ask_endpoint(oauth, timeout_s)


def unfit_extensions(extensions: Iterable[tuple[object, object]]) -> list[str]:
    """Return the names of the SASL extensions that RFC 7628 does not allow."""
    return [
        str(name)
        for name, value in extensions
        if not (isinstance(name, str) and _NAME.fullmatch(name) and name != "auth")
        or not (isinstance(value, str) and _VALUE.fullmatch(value))
    ]


# -- a function of the user ------------------------------------------------------------------------


def token_function(oauth: OAuth) -> Any:
    """Import the user's function.

    Raises:
        ConfigurationError: there is none.
    """
    what = "The function that gives tokens"
    return named_function(oauth.callback or "", what=what, option=f"kafka.{CALLBACK}")


def _ask_function(oauth: OAuth) -> Token:
    function = token_function(oauth)
    try:
        given = function(oauth.config)
    except SparkOnceError:
        raise
    except BaseException as error:  # SystemExit too: it would end the thread that asks, silently
        raise TokenUnavailableError(
            "The function that gives tokens has failed.",
            where=oauth.giver,
            cause=f"{type(error).__name__}: {error}",
            option=f"kafka.{CALLBACK}={oauth.callback}",
        ) from error
    if not isinstance(given, tuple) or not 2 <= len(given) <= 4:
        size = f" of {len(given)}" if isinstance(given, tuple) else ""
        raise _no_token(oauth, f"it is of the type {type(given).__name__}{size}")
    value, expires_s = given[:2]
    extensions = given[3] if len(given) == 4 else {}
    if not isinstance(value, str):
        raise _no_token(oauth, f"the token is of the type {type(value).__name__}, not str")
    if not PRINTABLE.fullmatch(value):
        raise _no_token(oauth, "the text is no token: printable characters without spaces")
    if not isinstance(expires_s, int | float) or not math.isfinite(expires_s):
        # It may be a token, if the function has them the other way round.
        raise _no_token(oauth, f"the expiry is of the type {type(expires_s).__name__}, and no time")
    if expires_s > _MOST_SECONDS:
        raise _no_token(oauth, "the expiry is in milliseconds, and must be in seconds since 1970")
    if expires_s * 1000 <= SYSTEM_CLOCK.now_ms():
        raise _no_token(oauth, "the token has expired; or the clock of this machine is wrong")
    if not isinstance(extensions, dict) or unfit_extensions(extensions.items()):
        raise _no_token(oauth, "its extensions are no dict of letters to printable texts")
    return Token(value, int(expires_s * 1000), tuple(extensions.items()))


def _no_token(oauth: OAuth, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "The function that gives tokens must return (token, expiry in seconds since 1970), or "
        "what confluent-kafka's oauth_cb returns.",
        where=oauth.giver,
        cause=cause,
        option=f"kafka.{CALLBACK}={oauth.callback}",
    )
