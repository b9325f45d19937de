"""Which librdkafka writes transactions here: one of the versions that this protocol was tried with.

We end a producer's transactions for it, by EndTxn at version 4, which leaves its epoch alone. That
is right only while librdkafka itself speaks that older protocol. When it learns the second part of
KIP-890 (its issue 5423), each end bumps the epoch, and the producer that we committed for is
fenced. Nothing in its interface tells which protocol it speaks, so what was never tried is refused;
and each checkpoint compares pid and epoch with the broker's before it is decided.
"""

from __future__ import annotations

from typing import Final

import confluent_kafka

from transactions.errors import ConfigurationError

#: Minor versions that the whole suite has passed with; pyproject.toml pins the same.
TRIED: Final = ("2.16",)
#: The highest level of the brokers' feature `transaction.version` that it has passed with.
TRIED_TRANSACTION_VERSION: Final = 2


def check_client_version(where: str) -> None:
    """Check the library of this process: the driver's, and each worker's.

    Args:
        where: whose, for the error.

    Raises:
        ConfigurationError: it is of a version that was never tried.
    """
    version = confluent_kafka.libversion()[0]
    if ".".join(version.split(".")[:2]) not in TRIED:
        raise ConfigurationError(
            f"Transactions were never tried with librdkafka {version}.",
            where=where,
            cause=f"known are {', '.join(TRIED)}; one that ends transactions by the newer protocol "
            "(KIP-890) would lose its producers to the driver's commits. Driver and workers each "
            "use what is installed with them",
            option=f"pip install 'confluent-kafka=={TRIED[-1]}.*' (here: "
            f"{confluent_kafka.version()[0]})",
        )
