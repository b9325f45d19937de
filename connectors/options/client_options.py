"""A user's `kafka.*` options: a mapping whose text shows everything except the secrets."""

from __future__ import annotations

import re
from typing import Final

#: Names of secrets, misspelt ones among them (`sasl.passwort`): of Kafka's clients, of object
#: stores, of PostgreSQL. Certificates as text are none, but nobody can read them.
_SECRET: Final = re.compile(
    r"pass|jaas|secret|token(?!\.callback$)|conninfo|credential|signature|[._]key$|\.pem$|keystore\.key"
    r"|certificates$|certificate\.chain$|oauthbearer\.config$",
    re.IGNORECASE,
)


class ClientOptions(dict[str, str]):
    """The options by name, without ``kafka.`` before it. A printed secret is ``[hidden]``: options
    get into logs, notebooks and error reports with the objects that hold them.
    """

    def __repr__(self) -> str:
        return repr({name: without_secret(name, value) for name, value in self.items()})


def servers_of(bootstrap: str) -> frozenset[str]:
    """Return the brokers that a ``bootstrap.servers`` names, so that two texts can be compared:
    order and spaces do not change the cluster.
    """
    return frozenset(one.strip().lower() for one in bootstrap.split(",") if one.strip())


def is_secret(name: str) -> bool:
    """Return whether the value of an option must not be shown, judged by its name."""
    return _SECRET.search(name) is not None


def without_secret(name: str, value: object) -> object:
    """Return the value of an option for error texts and logs, or ``[hidden]``."""
    return "[hidden]" if is_secret(name) else value


def visible(name: str, value: object) -> str:
    """Return ``kafka.name=value`` for error texts and logs, with secrets hidden."""
    return f"kafka.{name}={without_secret(name, value)}"
