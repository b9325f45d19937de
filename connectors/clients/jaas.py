"""The login module of `sasl.jaas.config` and its options, as Java reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

OPTION: Final = "sasl.jaas.config"
#: A name, and a value in quotes or of one word.
_PAIR: Final = re.compile(
    r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.$-]+)(?=[\s;]|$))"""
)


def read_jaas(jaas: str, mechanism: str, module: str, needed: Sequence[str] = ()) -> dict[str, str]:
    """Return the options of the login module.

    Args:
        jaas: the value of the option.
        mechanism: whose module it must be.
        module: the class, below `org.apache.kafka.common.security`.
        needed: options that must be there.

    Raises:
        ConfigurationError: it is another module, or an option is missing or cannot be read.
    """
    found = {
        name: re.sub(r"\\(.)", r"\1", double or single or word)
        for name, double, single, word in _PAIR.findall(jaas)
    }
    is_unread = "=" in _PAIR.sub("", jaas)  # an option without effect could be the one that counts
    if module.rpartition(".")[2] not in jaas or not found.keys() >= set(needed) or is_unread:
        options = "".join(f' {name}="..."' for name in needed)
        raise ConfigurationError(
            "sasl.jaas.config cannot be read.",
            cause=f"for {mechanism} it must be: org.apache.kafka.common.security.{module} "
            f"required{options}; each value in quotes",
            option=visible(OPTION, jaas),
        )
    return found
