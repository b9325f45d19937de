"""An SSLContext for kafka-python, from files and from text.

kafka-python takes the names of PEM files, and Python loads a client's key from a file only. A key
that is given as text goes through a file in memory that has no name: nothing of it is on a disk.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from transactions.errors import ConfigurationError

if TYPE_CHECKING:
    from connectors.clients.login_tls import Tls


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return a context that trusts, checks and shows what the login says.

    Raises:
        ConfigurationError: a file or a text cannot be used, or they do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.check_hostname
    try:
        if tls.ca or tls.ca_text:
            context.load_verify_locations(cafile=tls.ca, cadata=tls.ca_text)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        option = "kafka.ssl.truststore." + ("location" if tls.ca else "certificates")
        raise _unusable("certificates to trust", tls.ca, option, error) from error
    if tls.certificate is None and tls.certificate_text is None:
        return context
    try:
        with _named(tls.certificate_text) as certificate, _named(tls.key_text) as key:
            # Without any password OpenSSL would ask the terminal for one.
            context.load_cert_chain(
                certificate or tls.certificate or "", key or tls.key, tls.key_password or ""
            )
    except (OSError, ValueError) as error:
        where = " and ".join(filter(None, (tls.certificate, tls.key)))
        names = "location" if where else "certificate.chain, kafka.ssl.keystore.key"
        option = f"kafka.ssl.keystore.{names}, kafka.ssl.key.password"
        raise _unusable("client's certificate and key", where, option, error) from error
    return context


@contextlib.contextmanager
def _named(text: str | None) -> Iterator[str | None]:
    """Give a text a name for OpenSSL, as long as the block runs."""
    if text is None:
        yield None
        return
    with _without_name() as stream:
        stream.write(text.encode())
        stream.flush()
        stream.seek(0)
        yield f"/dev/fd/{stream.fileno()}"


def _without_name() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # Linux: no disk at all
        return os.fdopen(os.memfd_create("pem"), "w+b")
    return tempfile.TemporaryFile()  # open to this user only, and unlinked while it is empty


def _unusable(what: str, where: str | None, option: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"The {what} of this login cannot be used.",
        where=where or "the text of the option",
        cause=f"{error}: not PEM, not a pair, not readable, or encrypted with another password",
        option=option,
    )
