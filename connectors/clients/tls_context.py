"""An SSLContext for kafka-python, from files and from text.

kafka-python takes the names of PEM files, and Python loads a client's key from a file only. A key
that is given as text, or comes from a PKCS#12 store, goes through a file in memory that has no
name: nothing of it is on a disk.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
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
    if not (tls.certificate or tls.certificate_text or tls.store):
        return context
    where = " and ".join(filter(None, (tls.certificate, tls.key, tls.store)))
    try:
        texts = _of_store(tls) if tls.store else (tls.certificate_text, tls.key_text)
        with _named(texts[0]) as certificate, _named(texts[1]) as key:
            # Without any password OpenSSL would ask the terminal for one.
            context.load_cert_chain(
                certificate or tls.certificate or "", key or tls.key, tls.key_password or ""
            )
    except (OSError, ValueError) as error:
        option = "kafka.ssl.keystore.location" if where else "kafka.ssl.keystore.key"
        password = "kafka.ssl.keystore.password" if tls.store else "kafka.ssl.key.password"
        what = "client's certificate and key"
        raise _unusable(what, where, f"{option}, {password}", error) from error
    return context


def _of_store(tls: Tls) -> tuple[str, str]:
    """Return chain and key of a PKCS#12 store.

    Raises:
        ValueError: the password is another one, or it is no such store.
    """
    try:
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - optional
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        raise ConfigurationError(
            "A PKCS#12 keystore needs the package cryptography on the driver.",
            where=tls.store or "",
            cause="it is an optional part: pip install '.[pkcs12]' in a clone of sparkonce; PEM "
            "needs none",
            option="kafka.ssl.keystore.type=PKCS12",
        ) from error
    password = None if tls.store_password is None else tls.store_password.encode()
    content = Path(tls.store or "").read_bytes()
    key, certificate, others = pkcs12.load_key_and_certificates(content, password)
    if key is None or certificate is None:
        raise ValueError("the store holds no certificate with its key")
    chain = [one.public_bytes(Encoding.PEM).decode() for one in (certificate, *others)]
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return "".join(chain), plain.decode()


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
