"""The login module of `sasl.jaas.config` and its options, as Java reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from connectors.options.client_options import visible
from transactions.errors import ConfigurationError

OPTION: Final = "sasl.jaas.config"
_PAIR: Final = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")


def read_jaas(jaas: str, mechanism: str, module: str, needed: Sequence[str] = ()) -> dict[str, str]:
    """Return the options of the login module.

    Args:
        jaas: the value of the option.
        mechanism: whose module it must be.
        module: the class, below `org.apache.kafka.common.security`.
        needed: options that must be there.

    Raises:
        ConfigurationError: it is another module, or an option is missing.
    """
    found = {
        name: re.sub(r"\\(.)", r"\1", double or single)
        for name, double, single in _PAIR.findall(jaas)
    }
    if module.rpartition(".")[2] not in jaas or not found.keys() >= set(needed):
        options = "".join(f' {name}="..."' for name in needed)
        raise ConfigurationError(
            "sasl.jaas.config cannot be read.",
            cause=f"for {mechanism} it must be: org.apache.kafka.common.security.{module} "
            f"required{options};",
            option=visible(OPTION, jaas),
        )
    return found
