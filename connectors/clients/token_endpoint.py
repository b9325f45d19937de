"""Asks an identity provider for a token (OIDC, client credentials).

`token_request.ask` imports this module when it needs it: Python's own HTTP client costs each
process of Spark 40 ms, and few pipelines log in like this.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from connectors.clients.token_source import PRINTABLE, Token
from transactions.clock import SYSTEM_CLOCK
from transactions.errors import (
    AuthenticationError,
    ConfigurationError,
    SparkOnceError,
    TokenUnavailableError,
)

if TYPE_CHECKING:
    from connectors.clients.login_oauth import OAuth

_URL: Final = "kafka.sasl.oauthbearer.token.endpoint.url"
_CLIENT: Final = "kafka.sasl.oauthbearer.client.credentials.client.id, and its secret"
_CA: Final = "kafka.https.ca.location"

_MOST_BYTES: Final = 1_000_000
_MOST_SAID: Final = 300
#: Below 500, only these say that the next request may be answered (as in librdkafka's rdhttp.c).
_PASSING: Final = frozenset({408, 425, 429})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would take the client's secret to another place."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: it is an answer like any other."""


def ask_endpoint(oauth: OAuth, timeout_s: float) -> Token:
    """Ask for a new token. For the errors, see `token_request.ask`.

    Args:
        oauth: whom to ask, and as whom.
        timeout_s: how long the endpoint may be silent.
    """
    parameters = {"grant_type": "client_credentials"}
    if oauth.scope:
        parameters["scope"] = oauth.scope
    client = base64.b64encode(f"{oauth.client_id}:{oauth.client_secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked when it was read
        oauth.endpoint,
        urlencode(parameters).encode(),
        {
            "Authorization": f"Basic {client}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    handlers: list[Any] = [_NoRedirect]
    if urlsplit(oauth.endpoint).scheme.lower() == "https":  # the system's certificates take 20 ms
        handlers.append(urllib.request.HTTPSHandler(context=_trusting(oauth)))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            body = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise _status_error(oauth, error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise _refused(oauth, str(reason), _CA) from error
        raise TokenUnavailableError(
            "The token endpoint does not answer.",
            where=oauth.giver,
            cause=str(reason) or type(reason).__name__,
            option=_URL,
        ) from error
    return _token_in(oauth, body)


def _trusting(oauth: OAuth) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=oauth.ca, cadata=oauth.ca_text)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            "The certificates to trust at the token endpoint cannot be used.",
            where=oauth.ca or "the text of the option",
            cause=str(error),
            option=_CA,
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _status_error(oauth: OAuth, error: urllib.error.HTTPError) -> SparkOnceError:
    said = ""
    try:
        answer = json.loads(error.read(_MOST_BYTES))
        said = ": ".join(str(answer[k]) for k in ("error", "error_description") if k in answer)
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        pass  # a proxy answers with a page
    finally:
        error.close()
    said = said.replace(oauth.client_secret, "[hidden]")[:_MOST_SAID]
    said = "".join(one if one.isprintable() else " " for one in said)
    cause = ": ".join(filter(None, (f"HTTP {error.code} {error.reason}", said)))
    if error.code >= 500 or error.code in _PASSING:
        return TokenUnavailableError(
            "The token endpoint gives no token now.", where=oauth.giver, cause=cause, option=_URL
        )
    return _refused(oauth, cause, _URL if 300 <= error.code < 400 else _CLIENT)


def _token_in(oauth: OAuth, body: bytes) -> Token:
    """Read the answer. The end of a token stands in it: librdkafka needs a JWT, too."""
    if len(body) > _MOST_BYTES:
        raise _refused(oauth, "the answer is too long", _URL)
    try:
        answer = json.loads(body)
    except ValueError:
        raise _refused(oauth, "the answer is no JSON", _URL) from None
    value = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(value, str):
        raise _refused(oauth, "the answer has no access_token", _URL)
    parts = value.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError):
        claims = None
    if claims is None or len(parts) != 3 or not PRINTABLE.fullmatch(value):
        raise _refused(oauth, "the access_token is no JWT, which librdkafka needs", _URL)
    claims = claims if isinstance(claims, dict) else {}
    expires_s, subject = claims.get("exp"), claims.get(oauth.subject_claim)
    if not isinstance(expires_s, int | float) or not math.isfinite(expires_s):
        raise _refused(oauth, "the JWT has no claim exp, which says when it expires", _URL)
    if not isinstance(subject, str) or not subject:
        option = f"kafka.sasl.oauthbearer.sub.claim.name={oauth.subject_claim}"
        raise _refused(oauth, f"the JWT has no claim {oauth.subject_claim}", option)
    if expires_s * 1000 <= SYSTEM_CLOCK.now_ms():
        raise _refused(oauth, "the JWT has expired; or the clock of this machine is wrong", _URL)
    return Token(value, int(expires_s * 1000), oauth.extensions)


def _refused(oauth: OAuth, cause: str, option: str) -> AuthenticationError:
    return AuthenticationError(
        "The token endpoint gives no token for this login.",
        where=oauth.giver,
        cause=cause,
        option=option,
    )
