"""The OAUTHBEARER part of a login: who gives the tokens.

An identity provider (OIDC, client credentials) or a function of the user does. The options are
Java's; librdkafka's own ask for the same. librdkafka asks an identity provider itself, on a thread
that needs no Python; kafka-python, and a librdkafka that is built without HTTP, have a
`TokenSource`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from connectors.clients import jaas
from connectors.clients.login_tls import check_not_empty, read_pem
from connectors.clients.setting_names import library_lacks
from connectors.clients.token_request import CALLBACK, ask, token_function, unfit_extensions
from connectors.clients.token_source import TokenSource
from connectors.options.client_options import visible
from transactions.errors import ConfigurationError, probably_meant

MECHANISM: Final = "OAUTHBEARER"
_PREFIX: Final = "sasl.oauthbearer."
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CONFIG: Final = "sasl.oauthbearer.config"
_EXTENSIONS: Final = "sasl.oauthbearer.extensions"
_SUBJECT: Final = "sasl.oauthbearer.sub.claim.name"
_HANDLER: Final = "sasl.login.callback.handler.class"
_CA: Final = ("https.ca.location", "https.ca.pem")

#: What must be said -> the options that say it, Java's first; and those of Java's login module.
_SAID: Final = {
    "endpoint": (_URL,),
    "client_id": (
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.id",
    ),
    "client_secret": (
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
    ),
    "scope": ("sasl.oauthbearer.scope",),
}
_IN_MODULE: Final = {"clientId": "client_id", "clientSecret": "client_secret", "scope": "scope"}
_EXTENSION: Final = "extension_"
_PRINTABLE: Final = re.compile(r"[!-~]*")
#: Options that say only what is done anyway -> the values that say it.
_GIVEN: Final = {
    "sasl.oauthbearer.method": ("oidc", "default"),
    "sasl.oauthbearer.header.urlencode": ("false",),
}
#: Of these values, those that are true where no endpoint is asked.
_NO_ENDPOINT: Final = ("default", "false")

#: The options that are read here.
NAMES: Final = frozenset(
    {name for names in _SAID.values() for name in names}
    | {CALLBACK, _CONFIG, _EXTENSIONS, _SUBJECT, _HANDLER, *_CA, *_GIVEN}
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """Who gives the tokens.

    Attributes:
        callback: the user's function, ``module:name``; None: the endpoint does.
        config: the text that the function gets.
        endpoint: URL of the identity provider's token endpoint.
        client_id: who asks there.
        client_secret: its proof.
        scope: what the token is for; "" says nothing about it.
        extensions: SASL extensions, name and value.
        subject_claim: the claim of the token that names its owner.
        ca: PEM file of the certificates to trust at the endpoint; without it and a text: those of
            the machine.
        ca_text: the same as text.
    """

    callback: str | None = None
    config: str = dataclasses.field(default="", repr=False)
    endpoint: str = dataclasses.field(default="", repr=False)
    client_id: str = ""
    client_secret: str = dataclasses.field(default="", repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    subject_claim: str = "sub"
    ca: str | None = None
    ca_text: str | None = dataclasses.field(default=None, repr=False)

    @property
    def giver(self) -> str:
        """Return who gives the tokens, for errors: a query of the URL could hold a secret."""
        return self.callback or self.endpoint.partition("?")[0]

    def for_librdkafka(self) -> dict[str, Any]:
        """See `Login.for_librdkafka`."""
        found: dict[str, Any] = {"sasl.mechanisms": MECHANISM}
        if self.callback is not None or library_lacks("oidc"):
            return found | {"oauth_cb": self.tokens()}
        return found | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.endpoint,
            "sasl.oauthbearer.client.id": self.client_id,
            "sasl.oauthbearer.client.secret": self.client_secret,
            # librdkafka puts it into the request as it is (rdkafka_sasl_oauthbearer_oidc.c).
            "sasl.oauthbearer.scope": quote(self.scope, safe="") or None,
            "sasl.oauthbearer.extensions": ",".join(map("=".join, self.extensions)) or None,
            "sasl.oauthbearer.sub.claim.name": self.subject_claim,
            "https.ca.location": self.ca,
            "https.ca.pem": self.ca_text,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """See `Login.for_kafka_python`."""
        # Imported here: a task needs no kafka-python.
        from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

        AbstractTokenProvider.register(TokenSource)
        return {"sasl_mechanism": MECHANISM, "sasl_oauth_token_provider": self.tokens()}

    def tokens(self) -> TokenSource:
        """Return this process's source of tokens for this login.

        Raises:
            ConfigurationError: there is no such function.
        """
        return _tokens(self)


@functools.lru_cache(maxsize=64)
def _tokens(oauth: OAuth) -> TokenSource:
    if oauth.callback is not None:
        token_function(oauth)  # a name that is wrong is told before anything connects
    return TokenSource(functools.partial(ask, oauth), where=oauth.giver)


def read_oauth(kafka: Mapping[str, str]) -> OAuth:
    """Read who gives the tokens.

    Raises:
        ConfigurationError: an option is unknown, missing, contradictory or cannot be translated.
    """
    _check_names(kafka)
    module = _read_module(kafka)
    said = {what: _one_of(kafka, module, what) for what in _SAID}
    extensions = _read_extensions(kafka, module)
    callback = kafka.get(CALLBACK, "").strip()
    if callback:
        _check_alone(kafka, module, callback)
        return OAuth(callback=callback, config=kafka.get(_CONFIG, ""))
    if kafka.get(_CONFIG):
        raise ConfigurationError(
            f"The Kafka option {_CONFIG!r} is for a function that gives tokens, and there is none.",
            cause=f"the function is {CALLBACK}=module:name",
            option=visible(_CONFIG, ""),
        )
    missing = [_SAID[what][0] for what, value in said.items() if not value and what != "scope"]
    if missing:
        raise ConfigurationError(
            "OAUTHBEARER does not say who gives the tokens.",
            cause=f"an identity provider does (OIDC), and {', '.join(missing)} must name it and "
            f"the client; or a function of yours does: {CALLBACK}=module:name",
            option=", ".join(f"kafka.{name}" for name in missing),
        )
    check_not_empty(kafka, _CA)
    if all(kafka.get(name) for name in _CA):
        raise _twice(_CA)
    return OAuth(
        endpoint=_checked_url(said["endpoint"]),
        client_id=said["client_id"],
        client_secret=said["client_secret"],
        scope=said["scope"],
        extensions=extensions,
        subject_claim=kafka.get(_SUBJECT, "").strip() or "sub",
        ca=kafka.get(_CA[0]) or None,
        ca_text=read_pem(kafka, _CA[1], _CA[0]) if _CA[1] in kafka else None,
    )


def _check_alone(kafka: Mapping[str, str], module: Mapping[str, str], callback: str) -> None:
    """Refuse what else says how to come to a token: the function would know nothing of it."""
    beside = [jaas.OPTION] if module else []
    beside += [name for name in kafka if name in NAMES - {CALLBACK, _CONFIG} and kafka[name]]
    if beside := [name for name in beside if kafka[name].strip().lower() not in _NO_ENDPOINT]:
        raise ConfigurationError(
            "A function gives the tokens, and other options say how to ask for them.",
            cause=f"the function knows only {_CONFIG}; leave out {', '.join(beside)}",
            option=f"kafka.{CALLBACK}={callback}",
        )


def check_none(kafka: Mapping[str, str], mechanism: str) -> None:
    """Refuse options of OAUTHBEARER beside another mechanism: they would have no effect.

    Raises:
        ConfigurationError: there is one.
    """
    for name in kafka:
        if name.startswith(_PREFIX) or name in NAMES:
            raise ConfigurationError(
                f"The Kafka option {name!r} belongs to OAUTHBEARER.",
                cause=f"sasl.mechanism is {mechanism}, and this option would have no effect",
                option=f"kafka.sasl.mechanism={mechanism}, kafka.{name}",
            )


def _check_names(kafka: Mapping[str, str]) -> None:
    for name, value in kafka.items():
        if name.startswith(_PREFIX) and name not in NAMES:
            raise ConfigurationError(
                f"The Kafka option {name!r} is unknown, or not one that both clients have.",
                cause=f"{probably_meant(name, NAMES)} Every other way to a token is a function of "
                f"yours: {CALLBACK}=module:name".strip(),
                option=visible(name, value),
            )
        if name in _GIVEN and value.strip().lower() not in _GIVEN[name]:
            raise ConfigurationError(
                f"The Kafka option {name!r} has a value that not both clients know.",
                cause=f"known: {', '.join(_GIVEN[name])}",
                option=visible(name, value),
            )
    handler = kafka.get(_HANDLER, "").strip()
    if handler and handler.rpartition(".")[2] != "OAuthBearerLoginCallbackHandler":
        raise ConfigurationError(
            "A class of Java cannot give the tokens.",
            cause=f"a function of yours in Python can: {CALLBACK}=module:name",
            option=f"kafka.{_HANDLER}={handler}",
        )


def _read_module(kafka: Mapping[str, str]) -> dict[str, str]:
    if not kafka.get(jaas.OPTION):
        return {}
    module = jaas.read_jaas(
        kafka[jaas.OPTION], MECHANISM, module="oauthbearer.OAuthBearerLoginModule"
    )
    for name in module:
        if name not in _IN_MODULE and not name.startswith(_EXTENSION):
            raise ConfigurationError(
                f"The login module has an option {name!r} that cannot be translated.",
                cause=f"known: {', '.join(_IN_MODULE)}, {_EXTENSION}NAME; the certificates to "
                f"trust at the token endpoint are {_CA[0]}",
                option=visible(jaas.OPTION, ""),
            )
    return module


def _one_of(kafka: Mapping[str, str], module: Mapping[str, str], what: str) -> str:
    given = {name: kafka[name] for name in _SAID[what] if kafka.get(name)}
    given |= {
        f"{jaas.OPTION} ({name})": value
        for name, value in module.items()
        if value and _IN_MODULE.get(name) == what
    }
    if len(given) > 1:
        raise _twice(given)
    return next(iter(given.values()), "")


def _read_extensions(
    kafka: Mapping[str, str], module: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    pairs = [
        (name.removeprefix(_EXTENSION), value)
        for name, value in module.items()
        if name.startswith(_EXTENSION)
    ]
    text = kafka.get(_EXTENSIONS, "")
    if pairs and text:
        raise _twice((_EXTENSIONS, f"{jaas.OPTION} ({_EXTENSION}NAME)"))
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        pairs.append((name.strip(), value.strip() if equals else "\0"))
    wrong = [*unfit_extensions(pairs), *(name for name, value in pairs if "," in value)]
    if wrong:
        raise ConfigurationError(
            f"The SASL extension {wrong[0]!r} cannot be sent.",
            cause="a name has letters only and is not auth; a value is printable, without a comma",
            option=f"kafka.{_EXTENSIONS}=name=value,name=value",
        )
    return tuple(pairs)


def _checked_url(url: str) -> str:
    """Check the endpoint. Its text is not shown, nor an error that quotes it: a wrong one can hold
    a secret.
    """
    if not _PRINTABLE.fullmatch(url):
        raise _wrong_url("it is not of printable characters of ASCII, without a space")
    try:
        parts = urlsplit(url)
        wrong = [] if parts.port != 0 and parts.hostname else ["it names no host"]
    except ValueError:
        raise _wrong_url("its host or its port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        wrong.append("it begins with https:// (or http://, where nobody else can listen)")
    if "@" in parts.netloc:
        wrong.append("it holds a user; the client has options of its own")
    if wrong:
        raise _wrong_url("; ".join(wrong))
    return url


def _wrong_url(cause: str) -> ConfigurationError:
    return ConfigurationError(
        "The URL of the token endpoint cannot be used.", cause=cause, option=visible(_URL, "")
    )


def _twice(names: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        "A part of the OAUTHBEARER login is given twice.",
        cause=f"{' and '.join(names)} say the same thing: leave one of them out",
        option=", ".join(f"kafka.{name}" for name in names),
    )
