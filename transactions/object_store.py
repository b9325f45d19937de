"""One prefix of a bucket, for the decision log and for files: every request, every error.

`put(mode="create")` is S3's ``If-None-Match: *``, Google's ``x-goog-if-generation-match: 0`` and
Azure's ``If-None-Match: *``. All three are strongly consistent, and an acknowledged object is
replicated: it needs no fsync of ours. A store that answers 200 to such a put of an existing name
(an old or half compatible store) would let two drivers decide. So a trial comes before the first
such put, and such a store is refused. The trial finds a store without conditional put. It cannot
find a store that looks and writes in two steps and lets another put in between.

A network adds doubt. A put is sent again after an error, and then finds the object of the first
try: "exists" can mean our own object. The caller must recognise its object (by a nonce in an entry
of the log), or need not know (a commit is the same whoever put it). So nothing here finds out.

Needs obstore, an optional part of the package: the importing module raises an error that says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from obstore import exceptions
from obstore.store import from_url

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import ConfigurationError, SparkOnceError, without_secrets

#: Addresses that are understood; `file` and `memory` are for tests (they sync nothing).
SCHEMES: Final = frozenset(
    {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file", "memory"}
)

#: Options of obstore's HTTP client; all others are the store's. obstore panics if they are mixed.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate",
        "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout", "root_certificate",
        "user_agent",
    }
)  # fmt: skip
#: Variables of the environment that name a store.
_ADDRESSES: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
#: HTTP answers that trying again does not change: who we are, what we may, no such bucket.
_REFUSED: Final = frozenset({401, 403, 404})
_STATUS: Final = re.compile(r"status code: (\d{3})")
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")

#: Parts of an upload: their size, how many are in memory at once, and how many a store takes.
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4
_MOST_PARTS: Final = 10_000


class ObjectStoreError(SparkOnceError, OSError):
    """The store did not answer in time. Nothing is lost; a restart tries again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a store is used for, in the words of its errors.

    Attributes:
        of: whose store it is.
        option: the option that names the address.
        harm: what happens if a put-if-absent overwrites.
        others: kinds of address that are opened by somebody else.
    """

    of: str
    option: str
    harm: str
    others: frozenset[str] = frozenset()


class ObjectStore:
    """Objects under a prefix of a bucket, by names relative to it.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``; in tests
            ``file:///folder`` and ``memory:///``.
        purpose: for the texts of errors.
        options: of the store and its HTTP client, by obstore's names (``endpoint``, ``region``,
            ``access_key_id``, ``proxy_url``). The environment gives the others, as for the
            command-line tools of the store. Two options are ours, in seconds: ``timeout_s`` (10),
            how long one request may take; ``retry_s`` (30), how long it is tried again after an
            error. A call ends after the sum of both at the latest (a listing: each page; an upload:
            each part), a put-if-absent after three times that. The first put-if-absent of an
            `ObjectStore` has a trial before it (see above).
        clock: replaced in tests.

    Raises:
        ConfigurationError: the address or an option is wrong. Nothing has been sent yet.
    """

    def __init__(
        self,
        url: str,
        purpose: Purpose,
        options: Mapping[str, str | float],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url
        self._purpose = purpose
        self._clock = clock
        self._is_exclusive = False
        others: dict[str, Any] = dict(options)
        self._timeout_s = self._seconds("timeout_s", others.pop("timeout_s", 10.0))
        self._retry_s = self._seconds("retry_s", others.pop("retry_s", 30.0))
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(
                f"The address of {purpose.of} names an unknown kind of store.",
                where=without_secrets(url),
                cause=f"known: {', '.join(sorted(SCHEMES | purpose.others))}",
                option=f"{purpose.option}={without_secrets(url)}",
            )
        if parts.password or parts.query:
            raise ConfigurationError(
                f"The address of {purpose.of} carries credentials or parameters.",
                where=without_secrets(url),
                cause="errors and logs show addresses; give credentials as options or in the "
                "environment",
                option=f"{purpose.option}={without_secrets(url)}",
            )
        if "#" in url or _ESCAPED.search(url) or url != url.strip():
            raise ConfigurationError(
                f"The address of {purpose.of} means different places to different clients.",
                where=repr(without_secrets(url)),
                cause="one client takes '#', '%20' or a space at an end as it is, another does not",
                option=f"{purpose.option}: use letters, digits, '-', '_', '.' and '/'",
            )
        try:
            settings = _settings(parts.scheme, others, self._timeout_s, self._retry_s)
            self._store = from_url(url, **settings)
        except (exceptions.BaseError, OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"The object store of {purpose.of} cannot be used with these options.",
                where=url,
                cause=_said(error),
                option=f"the store's options: {', '.join(sorted(others)) or 'none'}",
            ) from error

    # --- writing ----------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store an object under a name that nobody has used.

        Returns:
            True: it is stored. False: the name was taken, maybe by an earlier try of this call.

        Raises:
            OSError: the result is unknown, see the module.
            ConfigurationError: at the first put, the store refuses us or does not keep the
                promise of a conditional put; the data was not sent.
        """
        if not self._is_exclusive:
            self.check_exclusive()
        return self._create(name, data)

    def check_exclusive(self) -> None:
        """Put one object twice: the second put must be refused.

        Raises:
            OSError: no answer in time.
            ConfigurationError: the store refuses us, or overwrites.
        """
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

    def put(self, name: str, data: bytes | BinaryIO) -> None:
        """Store an object, whether its name was taken or not; it appears whole or not at all.

        Args:
            name: of the object.
            data: bytes, or a file: all of it, from its start, in parts; a few are in memory.

        Raises:
            ObjectStoreError: no answer in time; the object may be stored, even later.
            ConfigurationError: the store refuses us.
        """
        size = len(data) if isinstance(data, bytes) else data.seek(0, os.SEEK_END)
        if not isinstance(data, bytes):
            data.seek(0)
        part = max(_PART_BYTES, -(-size // _MOST_PARTS))
        with self._answered(f"writing {name}"):
            self._store.put(name, data, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

    def delete(self, name: str) -> None:
        """Remove an object; an absent one is fine.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us.
        """
        with self._answered(f"deleting {name}"), contextlib.suppress(FileNotFoundError):
            self._store.delete(name)

    # --- reading ----------------------------------------------------------------------------

    def get(self, name: str) -> bytes | None:
        """Return an object, None when it is absent. A vanished bucket looks empty here; only a
        listing raises an error.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us.
        """
        with self._answered(f"reading {name}"):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError:
                return None

    def size_of(self, name: str) -> int | None:
        """Return the bytes of an object, None when it is absent; see `get`."""
        with self._answered(f"looking for {name}"):
            try:
                return self._store.head(name)["size"]
            except FileNotFoundError:
                return None

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted, without those in folders below it; all pages.

        Raises:
            ObjectStoreError: no answer in time.
            ConfigurationError: the store refuses us, or there is no such bucket.
        """
        return sorted(name for page in self._pages(folder) for name in page)

    def has_any(self, folder: str) -> bool:
        """Return whether there is anything in a folder; see `names`. It asks for one page."""
        return any(self._pages(folder))

    def _pages(self, folder: str) -> Iterator[list[str]]:
        prefix = f"{folder}/" if folder else ""
        with self._answered("listing"):
            for page in self._store.list(folder or None, chunk_size=1000):
                names = (one["path"].removeprefix(prefix) for one in page)
                yield [name for name in names if "/" not in name and not name.startswith(".")]

    # --- errors -----------------------------------------------------------------------------

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
                if _is_refusal(error):
                    raise PermissionError(f"put of {name} was refused: {_said(error)}") from error
                doubt = error
            if deadline.remaining() < self._timeout_s:
                raise OSError(f"put of {name} has no known result: {_said(doubt)}") from doubt
            deadline.pause(0.2)

    @contextlib.contextmanager
    def _answered(self, doing: str) -> Iterator[None]:
        """Turn what obstore raises into an error that a driver knows."""
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            if _is_refusal(error):
                raise self._refused(doing, error) from error
            raise ObjectStoreError(
                f"The object store of {self._purpose.of} did not answer.",
                where=f"{self.url}, {doing}",
                cause=_said(error),
                option=f"{self._purpose.option}={self.url}",
            ) from error

    def _refused(self, doing: str, error: Exception) -> ConfigurationError:
        absent = _status_of(error) == 404
        return ConfigurationError(
            f"The bucket or container of {self._purpose.of} does not exist."
            if absent
            else f"The object store of {self._purpose.of} refused our credentials or our rights.",
            where=f"{self.url}, {doing}",
            cause=_said(error),
            option=f"{self._purpose.option}={self.url}"
            if absent
            else "the store's credentials; needed: to put, get, list and delete under the prefix",
        )

    def _seconds(self, name: str, given: str | float) -> float:
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds < float("inf"):
            raise ConfigurationError(
                f"An option of {self._purpose.of}'s object store is not a number of seconds.",
                where=name,
                cause="the value must be above 0",
                option=f"{name}={given}",
            )
        return seconds

    def _not_exclusive(self, cause: str) -> ConfigurationError:
        return ConfigurationError(
            f"The object store has no conditional put: {self._purpose.harm}.",
            where=self.url,
            cause=cause,
            option=f"{self._purpose.option}={self.url}: use another store, or a newer version of "
            "it",
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
    # An address asks for it. obstore itself would look for AWS_ALLOW_HTTP in the environment, but
    # not when it is given other options of its HTTP client, as here.
    addresses = [*given.values(), *(os.environ.get(name, "") for name in _ADDRESSES)]
    if any(str(one).startswith("http://") for one in addresses):
        client.setdefault("allow_http", "true")
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

    The class does not say it: a listing raises GenericError for every answer (obstore 0.12).
    """
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _is_refusal(error: Exception) -> bool:
    """Return whether trying again is in vain. NoSuchUpload is no refusal: the end of an upload was
    sent again because its answer was lost, the upload is gone, and its object may be stored.
    """
    return _status_of(error) in _REFUSED and "NoSuchUpload" not in str(error)
