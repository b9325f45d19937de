"""Checks which librdkafka writes transactions: only versions tried with this protocol may.

We end a producer's transactions for it, by EndTxn at version 4, which does not change its epoch.
That is right only while librdkafka itself uses that older protocol. Once it has the second part of
KIP-890 (its issue 5423), each end bumps the epoch, and fences the producer for which we committed.
Its interface does not show which protocol it uses, so this file refuses untried versions. In
addition, each checkpoint compares pid and epoch with the broker's before its decision.
"""

from __future__ import annotations

from typing import Final

import confluent_kafka

from transactions.errors import ConfigurationError

#: Minor versions with which the whole suite has passed; pyproject.toml pins the same.
TRIED: Final = ("2.16",)
#: The highest level of the brokers' feature `transaction.version` with which it has passed.
TRIED_TRANSACTION_VERSION: Final = 2


def check_client_version(where: str) -> None:
    """Check this process's library: the driver's, and each worker's.

    Args:
        where: whose process, for the error.

    Raises:
        ConfigurationError: its version was never tried.
    """
    version = confluent_kafka.libversion()[0]
    if ".".join(version.split(".")[:2]) not in TRIED:
        raise ConfigurationError(
            f"Transactions were never tested with librdkafka {version}.",
            where=where,
            cause=f"tested: {', '.join(TRIED)}; a version that ends transactions by the newer "
            "protocol (KIP-890) would lose its producers when the driver commits. Driver and "
            "workers each use their own installation",
            option=f"pip install 'confluent-kafka=={TRIED[-1]}.*' (here: "
            f"{confluent_kafka.version()[0]})",
        )
