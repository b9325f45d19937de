"""Tokens of OAUTHBEARER: asked for, kept, renewed before they end, and what is told without one."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.clients import token_source
from connectors.clients.login_oauth import OAuth
from connectors.clients.token_request import ask
from connectors.clients.token_source import Token, TokenSource
from tests.certificates import self_signed
from tests.simulation.virtual_clock import VirtualClock
from tests.token_endpoint import TokenEndpoint, unsigned
from tests.waiting import until
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline, SystemClock
from transactions.errors import (
    AuthenticationError,
    ConfigurationError,
    SparkOnceError,
    TokenUnavailableError,
)

SECRET = "hunter2 &="
PATIENCE_S = 5.0


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as made:
        yield made


def login(url: str, **more: object) -> OAuth:
    made = OAuth(endpoint=url, client_id="flights", client_secret=SECRET)
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


# -- asking the endpoint ---------------------------------------------------------------------------


def test_client_credentials_are_exchanged_for_a_token(endpoint: TokenEndpoint):
    token = ask(login(endpoint.url, scope="kafka read&write"), PATIENCE_S)
    ((path, headers, parameters),) = endpoint.requests
    assert path == endpoint.path
    assert base64.b64decode(headers["Authorization"].split()[1]) == f"flights:{SECRET}".encode()
    assert parameters == {"grant_type": ["client_credentials"], "scope": ["kafka read&write"]}
    assert [token.value] == endpoint.given
    assert token.expires_ms / 1000 == pytest.approx(time.time() + endpoint.lifetime_s, abs=5)


def test_no_scope_is_no_parameter(endpoint: TokenEndpoint):
    ask(login(endpoint.url), PATIENCE_S)
    assert endpoint.requests[0][2] == {"grant_type": ["client_credentials"]}


def failed(oauth: OAuth, kind: type[SparkOnceError]) -> SparkOnceError:
    with pytest.raises(SparkOnceError) as caught:
        ask(oauth, PATIENCE_S)
    error = caught.value
    assert type(error) is kind
    assert error.what
    assert error.where
    assert error.cause
    assert error.option
    assert "hunter2" not in str(error)
    return error


@pytest.mark.parametrize("code", ["invalid_client", "unauthorized_client", "invalid_scope"])
def test_a_refusal_is_permanent_and_says_why(code: str, endpoint: TokenEndpoint):
    endpoint.status = 401
    described = {"error": code, "error_description": f"the secret\n\x1b{SECRET} is over"}
    endpoint.answer = json.dumps(described).encode()
    error = failed(login(f"{endpoint.url}?key=hunter2"), AuthenticationError)
    assert error.where == endpoint.url
    assert f"401 Unauthorized: {code}: the secret  [hidden] is over" in error.cause


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_endpoint_that_is_busy_may_answer_later(status: int, endpoint: TokenEndpoint):
    endpoint.status, endpoint.answer = status, b"<html>"
    assert str(status) in failed(login(endpoint.url), TokenUnavailableError).cause


def test_an_endpoint_that_is_away_may_come_back():
    error = failed(login("http://127.0.0.1:1/token"), TokenUnavailableError)
    assert "refused" in error.cause


def test_an_endpoint_that_hangs_is_not_waited_for(endpoint: TokenEndpoint):
    endpoint.delay_s = 1.0
    with pytest.raises(TokenUnavailableError, match="timed out"):
        ask(login(endpoint.url), 0.05)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_credentials_are_sent_nowhere_else(status: int, endpoint: TokenEndpoint):
    endpoint.status = status
    failed(login(endpoint.url), AuthenticationError)
    assert [path for path, _, _ in endpoint.requests] == [endpoint.path]


def jwt(payload: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode()
    return f"e30.{body}.x"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"hello", "no JSON"),
        (b"[]", "no access_token"),
        (b"{}", "no access_token"),
        (b'{"access_token": 1}', "no access_token"),
        (b'{"access_token": "opaque"}', "no JWT"),
        (json.dumps({"access_token": jwt({"sub": "a"})}).encode(), "exp"),
        (json.dumps({"access_token": jwt([])}).encode(), "exp"),
        (json.dumps({"access_token": jwt({"exp": "soon"})}).encode(), "exp"),
        (json.dumps({"access_token": jwt({"exp": 9e9})}).encode(), "no claim sub"),
        (json.dumps({"access_token": jwt({"exp": 9e9, "sub": ""})}).encode(), "no claim sub"),
        (json.dumps({"access_token": jwt({"exp": 1, "sub": "a"})}).encode(), "has expired"),
        (json.dumps({"access_token": "a\u0001b." + jwt({"exp": 1})}).encode(), "no JWT"),
        (b"x" * 2_000_000, "too long"),
    ],
)
def test_an_answer_without_a_token_that_both_clients_can_use(answer, cause, endpoint):
    endpoint.answer = answer
    assert cause in failed(login(endpoint.url), AuthenticationError).cause


def test_the_endpoint_is_trusted_by_a_certificate_of_its_own(tmp_path: Path):
    there, stranger = self_signed(tmp_path, "issuer"), self_signed(tmp_path, "stranger")
    with TokenEndpoint(certificate=there) as endpoint:
        assert ask(login(endpoint.url, ca=str(there.path)), PATIENCE_S).value
        assert ask(login(endpoint.url, ca_text=there.text), PATIENCE_S).value
        for wrong in ({}, {"ca_text": stranger.text}):
            error = failed(login(endpoint.url, **wrong), AuthenticationError)
            assert "certificate verify failed" in error.cause
            assert "https.ca.location" in error.option
        elsewhere = login(endpoint.url.replace("127.0.0.1", "localhost"), ca=str(there.path))
        assert "mismatch" in failed(elsewhere, AuthenticationError).cause


# -- asking a function of the user -----------------------------------------------------------------

answers: list[object] = []
asked: list[str] = []


def tokens(config: str) -> object:
    asked.append(config)
    answer = answers.pop(0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def callback(*given: object, config: str = "") -> OAuth:
    answers[:], asked[:] = given, []
    return OAuth(callback=f"{tokens.__module__}:tokens", config=config)


def test_a_function_gives_token_and_expiry_as_for_confluent_kafka():
    expires = time.time() + 60
    token = ask(callback(("opaque", expires), config="region=x"), PATIENCE_S)
    assert (token.value, token.expires_ms, token.extensions) == ("opaque", int(expires * 1000), ())
    assert asked == ["region=x"]
    more = callback(("opaque", expires, "me", {"logicalCluster": "lkc-1"}))
    assert ask(more, PATIENCE_S).extensions == (("logicalCluster", "lkc-1"),)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "NoneType"),
        ("token", "str"),
        (("token",), "tuple of 1"),
        ((b"token", 1e10), "bytes"),
        (("", 1e10), "no token"),
        (("a\u0001auth=Bearer b", 1e10), "no token"),
        (("Bearer", "hunter2"), "type str"),
        (("token", {"access_token": "hunter2"}), "type dict"),
        (("token", float("nan")), "type float"),
        (("token", 1.0), "has expired"),
        (("token", 1e13), "milliseconds"),
        (("token", 1e10, "me", [1]), "extensions"),
        (("token", 1e10, "me", {"auth": "x"}), "extensions"),
        (("token", 1e10, "me", {"a\u0001b": "x"}), "extensions"),
    ],
)
def test_what_a_function_may_not_return(answer: object, cause: str):
    error = failed(callback(answer), ConfigurationError)
    assert cause in error.cause
    assert error.where == f"{__name__}:tokens"


@pytest.mark.parametrize("failure", [OSError("no route"), SystemExit("no route")])
def test_a_function_that_fails_may_succeed_later(failure: BaseException):
    error = failed(callback(failure), TokenUnavailableError)
    assert f"{type(failure).__name__}: no route" in error.cause


def test_a_function_can_say_that_it_will_never_succeed():
    refusal = AuthenticationError("No.", where="idp", cause="the account is closed", option="x")
    assert failed(callback(refusal), AuthenticationError) is refusal


def test_a_function_that_is_not_there_is_found_before_anything_connects():
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ask(OAuth(callback="no_such_module:f"), PATIENCE_S)


# -- keeping and renewing --------------------------------------------------------------------------


class Issuer:
    """Gives tokens that are good for 100 seconds of a clock, or fails."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.calls = 0
        self.failure: SparkOnceError | None = None
        self.source = TokenSource(self.ask, self.clock)

    def ask(self, _timeout_s: float) -> Token:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        return Token(f"token {self.calls}", self.clock.now_ms() + 100_000)

    def later(self, seconds: float) -> None:
        self.clock.sleep(seconds)


AWAY = TokenUnavailableError("No token.", where="idp", cause="away", option="url")
REFUSED = AuthenticationError("No.", where="idp", cause="closed", option="id")


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


def value(issuer: Issuer) -> str:
    """What librdkafka's thread gets."""
    return issuer.source("")[0]


def test_all_clients_of_a_process_share_a_token_until_it_is_old(issuer: Issuer):
    assert [value(issuer), value(issuer)] == ["token 1", "token 1"]
    issuer.later(79)
    assert value(issuer) == "token 1"
    issuer.later(2)
    assert value(issuer) == "token 2"


def test_librdkafka_gets_seconds_and_what_it_needs_beside(issuer: Issuer):
    _, expires_s, principal, extensions = issuer.source("")
    assert expires_s == issuer.clock.now_ms() / 1000 + 100
    assert (principal, extensions) == ("", {})


def test_a_failed_renewal_is_told_and_the_old_token_is_still_good(issuer: Issuer):
    value(issuer)
    issuer.later(90)
    issuer.failure = AWAY
    now_s = issuer.clock.now_ms() / 1000
    kept, expires_s, _, _ = issuer.source("")  # a new client can be made with it
    assert kept == "token 1"
    assert expires_s == now_s + 10  # its end
    assert str(issuer.source.failure) == str(AWAY)
    issuer.source.usable(Deadline(1, issuer.clock))  # a new connection can still use it
    assert issuer.source.token() == "token 1"
    issuer.later(11)
    with pytest.raises(TokenUnavailableError):
        issuer.source.usable(Deadline(0, issuer.clock))
    with pytest.raises(TokenUnavailableError):
        issuer.source.token()
    issuer.failure = None
    issuer.source.usable(Deadline(5, issuer.clock))
    assert issuer.source.failure is None


def test_librdkafka_asks_again_soon_after_a_failed_renewal(issuer: Issuer):
    """It asks after 80 % of what it is told to be left."""
    value(issuer)
    issuer.later(81)
    issuer.failure = AWAY
    assert issuer.source("")[1] == issuer.clock.now_ms() / 1000 + 12.5
    issuer.later(11)
    assert issuer.source("")[1] == issuer.clock.now_ms() / 1000 + 8
    issuer.later(9)
    with pytest.raises(TokenUnavailableError):
        issuer.source("")


def test_a_start_waits_for_an_endpoint_that_comes_back(issuer: Issuer):
    issuer.failure = AWAY
    before = issuer.clock.monotonic()
    with pytest.raises(TokenUnavailableError):
        issuer.source.usable(Deadline(5, issuer.clock))
    assert issuer.clock.monotonic() - before == pytest.approx(5, abs=1)
    assert 3 <= issuer.calls <= 7


def test_a_start_does_not_wait_where_it_is_refused(issuer: Issuer):
    issuer.failure = REFUSED
    with pytest.raises(AuthenticationError):
        issuer.source.usable(Deadline(5, issuer.clock))
    assert issuer.calls == 1


def test_a_connection_of_the_wire_never_waits_for_the_endpoint(issuer: Issuer):
    """kafka-python asks on its one thread: waiting there would hold up every request in flight."""
    may_answer, renewed = threading.Event(), threading.Event()
    at_once = issuer.ask

    def slow(timeout_s: float) -> Token:
        assert may_answer.wait(10)
        token = at_once(timeout_s)
        renewed.set()
        return token

    issuer.source = TokenSource(slow, issuer.clock)
    with pytest.raises(TokenUnavailableError, match="not come yet"):
        issuer.source.token()
    may_answer.set()
    assert renewed.wait(10)
    deadline = Deadline(10)
    while not deadline.expired():
        try:
            assert issuer.source.token() == "token 1"
            break
        except TokenUnavailableError:
            deadline.pause(0.001)
    issuer.later(90)
    may_answer.clear(), renewed.clear()
    assert issuer.source.token() == "token 1"  # renewed beside it, by one thread
    assert issuer.source.token() == "token 1"
    may_answer.set()
    assert renewed.wait(10)
    until(lambda: issuer.source.token() == "token 2")
    assert issuer.calls == 2


class Slower(SystemClock):
    """A clock that network time slows down: an event ends its waiting before it is time."""

    def now_ms(self) -> int:
        return int(super().now_ms() * 0.9)


class Brief(Issuer):
    """Gives tokens that are good for half a second of this machine."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self.present = clock
        self.source = TokenSource(self.ask, clock)

    def ask(self, _timeout_s: float) -> Token:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        return Token(f"token {self.calls}", self.present.now_ms() + 500)

    def renewed(self) -> None:
        """Wait until the second question."""
        until(lambda: self.calls >= 2)

    def rest(self, seconds: float) -> None:
        """No event says that nobody asks."""
        Deadline(60).pause(seconds)


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, Slower()], ids=["in time", "slower"])
def test_the_wires_token_is_renewed_before_a_session_ends(clock: Clock):
    """A connection logs in again after 85 % of its session; with the old token it would have less
    than a second then, and the broker refuses a login that comes so soon.
    """
    issuer = Brief(clock)
    began = time.monotonic()
    issuer.source.usable(Deadline(5))
    assert issuer.source.token() == "token 1"
    issuer.renewed()
    assert time.monotonic() - began > 0.3
    until(lambda: issuer.source._keeper is None)
    issuer.rest(0.6)  # longer than the token is good for
    assert issuer.calls == 2  # nobody has logged in since: nobody needs a third one
    issuer.source.usable(Deadline(5))
    assert issuer.source.token() == "token 3"


def test_nobody_asks_again_and_again_where_the_client_is_refused():
    issuer = Brief()
    issuer.source.usable(Deadline(5))
    issuer.source.token()
    issuer.failure = REFUSED
    issuer.renewed()
    issuer.rest(1.0)
    assert issuer.calls == 2
    with pytest.raises(AuthenticationError):
        issuer.source.token()


class Hanging(Issuer):
    """Does not answer before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.source = TokenSource(self.ask, self.clock, where="idp")

    def ask(self, timeout_s: float) -> Token:
        self.asked.set()
        assert self.may_answer.wait(10)
        return super().ask(timeout_s)


def test_whoever_waits_for_a_hanging_function_has_a_deadline_of_his_own():
    hanging = Hanging()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(TokenUnavailableError, match="not answered") as caught:
            hanging.source.usable(Deadline(0.0))
        assert caught.value.where == "idp"
    assert time.monotonic() - began < 5.0
    hanging.may_answer.set()
    hanging.source.usable(Deadline(5.0))
    assert hanging.calls == 1  # a second question beside the first one would hang as well


def test_a_hanging_renewal_does_not_take_the_present_token_away(monkeypatch):
    hanging = Hanging()
    hanging.may_answer.set()
    assert value(hanging) == "token 1"
    monkeypatch.setattr(token_source, "PATIENCE_S", 0.2)
    hanging.may_answer.clear()
    hanging.later(90)
    assert value(hanging) == "token 1"
    hanging.may_answer.set()


def test_the_collector_may_close_a_client_while_another_one_asks_for_the_token(
    issuer: Issuer, monkeypatch
):
    """It runs on any thread, under any lock, and closing waits for the client's callback."""
    monkeypatch.setattr(token_source, "PATIENCE_S", 0.2)
    told: list[Exception] = []

    def callback() -> None:
        try:
            value(issuer)
        except TokenUnavailableError as error:
            told.append(error)

    closed = threading.Thread(target=callback, daemon=True)
    with issuer.source._lock:
        closed.start()
        closed.join(5)
        assert told


def test_one_failure_is_not_asked_for_again_at_once(issuer: Issuer):
    """Each reconnect of each broker asks for a token."""
    issuer.failure = AWAY
    for _ in range(10):
        with pytest.raises(TokenUnavailableError):
            value(issuer)
    assert issuer.calls == 1
    issuer.later(1.1)
    with pytest.raises(TokenUnavailableError):
        value(issuer)
    assert issuer.calls == 2


def test_a_refusal_is_not_asked_for_again_for_minutes(issuer: Issuer):
    """Each client asks every ten seconds, and a wrong secret can lock the account."""
    issuer.failure = REFUSED
    for _ in range(10):
        with pytest.raises(AuthenticationError):
            value(issuer)
        issuer.later(10)
    assert issuer.calls == 1
    issuer.later(300)
    issuer.failure = None
    assert value(issuer) == "token 2"


def test_a_failure_keeps_nothing_of_those_who_met_it_alive(issuer: Issuer):
    """The source lives as long as the process."""

    class Client:
        pass

    def met() -> weakref.ref[Client]:
        client = Client()
        with pytest.raises(TokenUnavailableError):
            value(issuer)
        with pytest.raises(TokenUnavailableError):
            issuer.source.token()
        return weakref.ref(client)

    issuer.failure = AWAY
    assert met()() is None
    assert issuer.source.failure is not None
    assert issuer.source.failure.__traceback__ is None


def test_a_failure_is_logged_once(issuer: Issuer, caplog):
    """confluent-kafka drops the exception of its callback."""
    issuer.failure = AWAY
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            issuer.later(2)
            with pytest.raises(TokenUnavailableError):
                value(issuer)
    assert len(caplog.records) == 1
    assert "away" in caplog.text


def test_no_text_shows_a_token():
    token = Token(unsigned("me", 60), 1)
    assert "eyJ" not in repr(token)
    assert SECRET not in repr(login("http://b/token"))
