"""The decision log in an object store: one object per entry, written by conditional put.

`put(mode="create")` is S3's ``If-None-Match: *``, Google's ``x-goog-if-generation-match: 0`` and
Azure's ``If-None-Match: *``. All three are strongly consistent, and an acknowledged object is
replicated: it needs no fsync of ours. A store that answers 200 to such a put of a name that exists
(an old or half compatible one) would let two drivers decide; so a backend tries one before its
first put, and refuses the store. That finds a store without conditional put; it can not find one
whose look and write are two steps, with room for another put between them.

What a network adds is doubt. A put is sent again after an error, and then finds the object of the
first try: "exists" can mean our own. The log tells by the nonce in the entry (see
`decision_log`), so nothing here has to. A put that timed out can be stored after the log has
looked for it: nobody decides on that but the next Fence, which wants the same number.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import ConfigurationError, SparkOnceError

try:
    from obstore import exceptions
    from obstore.store import from_url
except ImportError as missing:
    raise ConfigurationError(
        "A decision log in an object store needs the package obstore.",
        where="the checkpoint's address",
        cause="it is an optional part: pip install 'sparkonce[object-store]'",
        option="checkpoint",
    ) from missing

#: Addresses that are understood; `file` and `memory` are for tests (nothing of them is synced).
SCHEMES: Final = frozenset(
    {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file", "memory"}
)

#: Options of obstore's HTTP client; all others are the store's. It panics when they are mixed up.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate",
        "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout", "root_certificate",
        "user_agent",
    }
)  # fmt: skip
#: HTTP answers that trying again does not change: who we are, what we may, no such bucket.
_REFUSED: Final = frozenset({401, 403, 404})
_STATUS: Final = re.compile(r"status code: (\d{3})")


class ObjectStoreError(SparkOnceError, OSError):
    """The store did not answer a read in time. Nothing is lost; a restart tries again."""


class ObjectStoreBackend:
    """One object per name, under a prefix of a bucket. See `log_backend.LogBackend`.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``; in tests
            ``file:///folder`` and ``memory:///``.
        timeout_s: how long one request may take.
        retry_s: how long a request is tried again after an error. A read ends after the sum of
            both at the latest (a listing: each page), a put after three times that. The first put
            of a backend has a try before it (see above).
        clock: replaced in tests.
        options: of the store and its HTTP client, by obstore's names (``endpoint``, ``region``,
            ``access_key_id``, ``proxy_url``). What is not said is taken from the environment, as
            the command-line tools of the store do it.

    Raises:
        ConfigurationError: the address or an option is wrong. Nothing has been sent yet.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        retry_s: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
        **options: str,
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._clock = clock
        self._is_exclusive = False
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(
                "The address of the decision log is of no store that is known here.",
                where=_without_secrets(url),
                cause=f"known: {', '.join(sorted(SCHEMES))}",
                option=f"checkpoint={_without_secrets(url)}",
            )
        if parts.password or parts.query:
            raise ConfigurationError(
                "The address of the decision log carries credentials or parameters.",
                where=_without_secrets(url),
                cause="addresses are shown in errors and logs; give credentials as options, "
                "or by the environment",
                option=f"checkpoint={_without_secrets(url)}",
            )
        try:
            self._store = from_url(url, **_settings(parts.scheme, options, timeout_s, retry_s))
        except (exceptions.BaseError, OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                "The object store of the decision log cannot be used with these options.",
                where=url,
                cause=_said(error),
                option=f"the store's options: {', '.join(sorted(options)) or 'none'}",
            ) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`; False can mean an earlier try of this very call.

        Raises:
            OSError: unknown, see the module.
            ConfigurationError: at the first put, the store refuses us or does not keep the
                promise of a conditional put; the data was not sent.
        """
        if not self._is_exclusive:
            self._check_exclusive()
        return self._create(name, data)

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`. A bucket that has vanished looks empty; `list` tells.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us.
        """
        with self._answered(f"reading {name}"):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError:
                return None

    def list(self, *, durable: bool = True) -> list[str]:  # noqa: ARG002 - what is seen is durable
        """See `LogBackend.list`; all pages.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us, or there is no such bucket.
        """
        with self._answered("listing"):
            found = [one["path"] for page in self._store.list(chunk_size=1000) for one in page]
        return sorted(name for name in found if "/" not in name and not name.startswith("."))

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us.
        """
        with self._answered(f"deleting {name}"), contextlib.suppress(FileNotFoundError):
            self._store.delete(name)

    def describe(self) -> str:
        """See `LogBackend.describe`; the address has no credentials in it."""
        return self._url

    def _create(self, name: str, data: bytes) -> bool:
        deadline = Deadline(self._retry_s, self._clock)
        while True:
            try:
                self._store.put(name, data, mode="create")
                return True
            except exceptions.AlreadyExistsError as error:
                if self.get(name) is not None:
                    return False
                # 409: S3 could not say, because somebody wrote or deleted at the same moment.
                doubt: Exception = error
            except (exceptions.NotSupportedError, NotImplementedError) as error:
                raise self._not_exclusive(_said(error)) from error
            except (exceptions.BaseError, OSError) as error:
                if _status_of(error) in _REFUSED:
                    raise PermissionError(f"put of {name} was refused: {_said(error)}") from error
                doubt = error
            if deadline.remaining() < self._timeout_s:
                raise OSError(f"put of {name} has no known result: {_said(doubt)}") from doubt
            deadline.pause(0.2)

    def _check_exclusive(self) -> None:
        """Put one object twice: the second put must be refused."""
        name = f".probe-{secrets.token_hex(8)}"
        try:
            self._create(name, b"")
            if self._create(name, b""):
                raise self._not_exclusive("a conditional put overwrote an object")
        except PermissionError as error:
            raise self._refused("writing", error) from error
        finally:
            # Names with a dot are not listed, so one that is left behind harms nobody.
            with contextlib.suppress(SparkOnceError):
                self.delete(name)
        self._is_exclusive = True

    @contextlib.contextmanager
    def _answered(self, doing: str) -> Iterator[None]:
        """Turn what obstore raises in a read into an error that a driver knows."""
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            if _status_of(error) in _REFUSED:
                raise self._refused(doing, error) from error
            raise ObjectStoreError(
                "The object store of the decision log did not answer.",
                where=f"{self._url}, {doing}",
                cause=_said(error),
                option=f"checkpoint={self._url}",
            ) from error

    def _refused(self, doing: str, error: Exception) -> ConfigurationError:
        absent = _status_of(error) == 404
        return ConfigurationError(
            "The bucket or container of the decision log does not exist."
            if absent
            else "The object store of the decision log refused our credentials or our rights.",
            where=f"{self._url}, {doing}",
            cause=_said(error),
            option=f"checkpoint={self._url}"
            if absent
            else "the store's credentials; needed: to put, get, list and delete under the prefix",
        )

    def _not_exclusive(self, cause: str) -> ConfigurationError:
        return ConfigurationError(
            "The object store has no conditional put: two drivers could both decide.",
            where=self._url,
            cause=cause,
            option=f"checkpoint={self._url}: use another store, or a newer version of it",
        )


def _settings(
    scheme: str, options: dict[str, str], timeout_s: float, retry_s: float
) -> dict[str, Any]:
    """Return what `from_url` is called with."""
    if scheme == "memory":
        return dict(options)
    if scheme == "file":
        return {"mkdir": True, **options}
    given = {name.lower(): value for name, value in options.items()}
    if "timeout" in given:
        raise ValueError("timeout is called timeout_s here, in seconds")
    client = {name: given.pop(name) for name in _CLIENT_OPTIONS & given.keys()}
    if any(str(value).startswith("http://") for value in given.values()):
        client.setdefault("allow_http", "true")  # it was asked for
    if scheme in {"s3", "s3a"}:
        given.setdefault("disable_bulk_delete", "true")  # one name a call; not all stores have it
    brief = timedelta(milliseconds=100)
    return {
        "config": given,
        "client_options": {"connect_timeout": "5s", "timeout": f"{timeout_s * 1000:.0f}ms"}
        | client,
        "retry_config": {
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=retry_s),
            "backoff": {"init_backoff": brief, "max_backoff": timedelta(seconds=2), "base": 2},
        },
    }


def _said(error: Exception) -> str:
    """Return obstore's sentence, on one line and without the dump of its internals."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())[:400]


def _status_of(error: Exception) -> int:
    """Return the HTTP status in the text of an error, 0 without one.

    The class does not tell: a listing raises GenericError whatever was answered (obstore 0.12).
    """
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    return parts._replace(netloc=host, query="", fragment="").geturl()
