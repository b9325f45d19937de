"""The tokens of one login in one process: shared by its clients, and renewed before they end.

A broker ends the session of a client whose token has expired (KIP-368), also in the middle of a
transaction. So a token is renewed after 80 % of its life, and nobody has to poll for it: a task
that writes into an open transaction can be in a user's function for minutes. librdkafka asks on a
background thread (`TokenSource.__call__`). After 90 % of the session each connection logs in again
with the new token while its requests wait; the transaction does not notice. kafka-python does the
same after 85 % at the earliest, and asks on its one I/O thread, which must not wait: so the next
token is there before (`TokenSource.token`).
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import SparkOnceError, TokenUnavailableError

logger = logging.getLogger(__name__)

_RENEWED_AFTER: Final = 0.8  # of its life, as in librdkafka and in Java
#: How long somebody waits for a token.
PATIENCE_S: Final = 10.0
#: After a failure: each reconnect of each broker asks.
_PAUSE_S: Final = 1.0
#: After a permanent one: asked again and again, it could lock the account.
_LONG_PAUSE_S: Final = 300.0
#: Between two tries to renew a token that is still good, as in librdkafka.
_NEXT_TRY_S: Final = 10.0
#: What the text of a token consists of.
PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """What a broker is shown.

    Attributes:
        value: the token.
        expires_ms: milliseconds since 1970.
        extensions: SASL extensions (RFC 7628), name and value.
    """

    value: str = dataclasses.field(repr=False)
    expires_ms: int
    extensions: tuple[tuple[str, str], ...] = ()


class TokenSource:
    """Gives the present token to librdkafka, as an `oauth_cb`, and to kafka-python, as a token
    provider. Thread-safe; one thread asks, however many clients need a token, and each of them
    waits as long as it can.

    Attributes:
        failure: why the last question failed; None if it was answered.

    Args:
        ask: asks for a new token, for some seconds, but may hang; raises `TokenUnavailableError`
            if the next question may be answered.
        clock: whose time decides.
        where: who is asked, for errors.
    """

    def __init__(
        self, ask: Callable[[float], Token], clock: Clock = SYSTEM_CLOCK, *, where: str = ""
    ) -> None:
        self.failure: SparkOnceError | None = None
        self._ask = ask
        self._clock = clock
        self._where = where
        self._lock = threading.Lock()  # of the two threads; nobody is asked under it
        self._asker: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._wake = threading.Event()
        self._used = False
        self._token: Token | None = None
        self._given_ms = 0.0
        self._renew_ms = 0.0
        self._again_ms = 0.0

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return token, expiry in seconds, principal and extensions; see confluent-kafka's
        `oauth_cb`. On a thread of librdkafka, which keeps its token and asks again if this raises.

        While the present token is good, a failed renewal does not raise: confluent-kafka would make
        no new client. The expiry is then one that lets librdkafka ask again soon.

        Raises:
            SparkOnceError: no new token was given.
        """
        soon_s = math.inf
        try:
            token = self._renewed(PATIENCE_S / 2)  # confluent-kafka's constructor waits for 10 s
        except SparkOnceError:
            if self._token is None or not self._is_good():
                raise
            token = self._token
            soon_s = self._clock.now_ms() / 1000 + _NEXT_TRY_S / _RENEWED_AFTER
        return token.value, min(soon_s, token.expires_ms / 1000), "", dict(token.extensions)

    def usable(self, deadline: Deadline, *, newer_than_s: float = math.inf) -> None:
        """Wait until there is a token that is good now.

        Args:
            deadline: when to give up.
            newer_than_s: the age at which a token says no more that its giver still accepts us.

        Raises:
            TokenUnavailableError: there was none before the deadline.
            SparkOnceError: there will be none.
        """
        while not self._is_good(newer_than_s):
            try:
                patience_s = min(PATIENCE_S, max(_PAUSE_S, deadline.remaining()))
                self._renewed(patience_s, newer_than_s)
                return
            except TokenUnavailableError:
                if deadline.expired():
                    raise
                deadline.pause(_PAUSE_S)

    def token(self) -> str:
        """Return the token for a login of kafka-python. It never waits: from now on the token is
        renewed beside it, as long as somebody logs in with it.

        Raises:
            SparkOnceError: no token is good now.
        """
        with self._lock:
            self._used = True
            if self._keeper is None or not self._keeper.is_alive():  # or this is a fork
                self._keeper = threading.Thread(target=self._keep, name="token", daemon=True)
                self._keeper.start()
        if self._clock.now_ms() >= self._renew_ms:
            self._wake.set()
        token = self._token
        if token is not None and self._is_good():
            return token.value
        if self.failure is not None:
            raise copy.copy(self.failure)
        raise self._missing("the last one has expired, and the next one was asked for just now")

    def extensions(self) -> dict[str, str]:
        """Return the extensions of the token; see kafka-python's token providers."""
        return {} if self._token is None else dict(self._token.extensions)

    def _is_good(self, newer_than_s: float = math.inf) -> bool:
        now_ms = self._clock.now_ms()
        is_new = now_ms - self._given_ms < newer_than_s * 1000
        return is_new and self._token is not None and now_ms < self._token.expires_ms

    def _renewed(self, patience_s: float, newer_than_s: float = math.inf) -> Token:
        """Return a token that is not old yet; wait for the thread that asks, if there is none."""
        late = f"who gives the tokens has not answered within {patience_s:g} s"
        # The collector runs under any lock, and can close a client that waits here.
        if not self._lock.acquire(timeout=patience_s):
            raise self._missing(late)
        try:
            is_young = self._is_good(newer_than_s) and self._clock.now_ms() < self._renew_ms
            if self._token is not None and is_young:
                return self._token
            if self.failure is not None and self._clock.now_ms() < self._again_ms:
                raise copy.copy(self.failure)
            asker = self._asker
            if asker is None or not asker.is_alive():  # or this is a fork
                asker = self._asker = threading.Thread(
                    target=self._answer, name="token", daemon=True
                )
                asker.start()
        finally:
            self._lock.release()
        asker.join(patience_s)
        if asker is self._asker:
            raise self._missing(late)
        if (failure := self.failure) is not None:
            raise copy.copy(failure)
        assert self._token is not None
        return self._token

    def _answer(self) -> None:
        """Ask, on a thread of its own: a function of the user can hang, and the collector, which
        runs in it too, can close a client that waits for the answer.
        """
        token, failure = None, None
        try:
            token = self._ask(PATIENCE_S)
        except SparkOnceError as error:
            failure = copy.copy(error)  # its traceback would keep the asking frames for ever
            if str(failure) != str(self.failure):  # confluent-kafka drops it
                logger.warning("a login has no new token: %s", failure)
        with self._lock:
            now_ms = self._clock.now_ms()
            if token is not None:
                self._token, self._given_ms = token, now_ms
                self._renew_ms = now_ms + _RENEWED_AFTER * (token.expires_ms - now_ms)
            pause_s = _LONG_PAUSE_S if failure is not None and failure.permanent else _PAUSE_S
            self._again_ms = now_ms + pause_s * 1000
            self.failure, self._asker = failure, None

    def _missing(self, cause: str) -> TokenUnavailableError:
        return TokenUnavailableError(
            "The token for a login has not come yet.",
            where=self._where,
            cause=cause,
            option="kafka.sasl.mechanism=OAUTHBEARER",
        )

    def _keep(self) -> None:
        """Renew the token when it is old. Nobody is told of a failure here: it is logged, and who
        needs the token next gets it.
        """
        while True:
            self._wake.wait(self._until_renewal_s())
            self._wake.clear()
            if self.failure is None and self._until_renewal_s() > 0:
                continue  # renewed meanwhile, or the clock is slower than the one that `wait` reads
            with self._lock:
                if not self._used:  # no login since the last renewal
                    self._keeper = None
                    return
                self._used = False
            try:
                self._renewed(PATIENCE_S)
            except TokenUnavailableError:
                self._used = True
            except SparkOnceError:
                continue

    def _until_renewal_s(self) -> float:
        if self.failure is not None:
            return _NEXT_TRY_S
        return max(0.0, (self._renew_ms - self._clock.now_ms()) / 1000)


def await_token(settings: Mapping[str, Any]) -> None:
    """Wait until the login of a client has its first token; return at once if it needs none of us.
    confluent-kafka would wait for ten seconds, and say only that none came.

    Args:
        settings: what a client of librdkafka is to be made with.

    Raises:
        SparkOnceError: why there is no token.
    """
    source = settings.get("oauth_cb")
    if isinstance(source, TokenSource):
        source.usable(Deadline(PATIENCE_S))
