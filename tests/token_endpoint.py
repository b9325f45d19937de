"""An identity provider for tests: its token endpoint, and the keys that its tokens are signed with.

It speaks OAuth's client credentials (RFC 6749, section 4.4) and signs with RS256 by the openssl of
this machine, so that a real broker can check its tokens.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import itertools
import json
import ssl
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.certificates import Certificate, openssl

KEY_ID, ISSUER, AUDIENCE = "one", "tests", "kafka"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


_numbers = itertools.count(1)
UNSIGNED = encoded(b'{"alg":"none"}')


def unsigned(subject: str, seconds: float, **claims: Any) -> str:
    """Return a token that nobody has signed, good for some seconds; by tests' clock."""
    now = time.time()
    payload = {"sub": subject, "iat": int(now), "exp": now + seconds, **claims}
    return ".".join([UNSIGNED, encoded(json.dumps(payload).encode()), ""])


class TokenEndpoint:
    """Answers on 127.0.0.1 while its block runs.

    Attributes:
        lifetime_s: of the tokens.
        status: of an answer; of the answer to the keys, too.
        answer: in place of the token's answer.
        delay_s: how long an answer takes.
        requests: the path, the headers and the parameters of each request for a token.
        given: the tokens that were given.
        path: of the URL for tokens. No two endpoints of a process share it: a later one can have
            the port of an earlier one, and a process keeps the tokens of a URL.

    Args:
        folder: for its key; without it the tokens are not signed.
        certificate: it speaks https with this one.
    """

    def __init__(self, folder: Path | None = None, certificate: Certificate | None = None) -> None:
        self.lifetime_s = 60.0
        self.status = 200
        self.answer: bytes | None = None
        self.delay_s = 0.0
        self.requests: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.given: list[str] = []
        self.path = f"/{next(_numbers)}/token"
        self._key = None if folder is None else folder / "issuer.key"
        if self._key is not None:
            openssl("genrsa", "-out", self._key, "2048")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.both)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"{self.address}{self.path}"

    @property
    def keys_url(self) -> str:
        return f"{self.address}/keys"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, subject: str) -> str:
        """Return a new token of this issuer."""
        token = unsigned(subject, self.lifetime_s, iss=ISSUER, aud=AUDIENCE, number=len(self.given))
        if self._key is None:
            return f"{token}unsigned"
        header = encoded(json.dumps({"alg": "RS256", "kid": KEY_ID}).encode())
        signed = f"{header}.{token.split('.')[1]}"
        command = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        made = subprocess.run(command, input=signed.encode(), check=True, capture_output=True)
        return f"{signed}.{encoded(made.stdout)}"

    def keys(self) -> bytes:
        """Return the set of its public keys (RFC 7517)."""
        assert self._key is not None
        modulus = openssl("rsa", "-in", self._key, "-noout", "-modulus").partition("=")[2]
        n, e = encoded(bytes.fromhex(modulus.strip())), encoded(b"\x01\x00\x01")
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, "n": n, "e": e}
        return json.dumps({"keys": [key]}).encode()


def _handler(endpoint: TokenEndpoint) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(endpoint.keys())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            parameters = urllib.parse.parse_qs(body, strict_parsing=True)
            endpoint.requests.append((self.path, dict(self.headers), parameters))
            time.sleep(endpoint.delay_s)
            answer = endpoint.answer
            if answer is None:
                login = self.headers["Authorization"].removeprefix("Basic ")
                token = endpoint.token(base64.b64decode(login).decode().partition(":")[0])
                endpoint.given.append(token)
                answer = json.dumps({"access_token": token, "token_type": "bearer"}).encode()
            self._answer(answer)

        def _answer(self, body: bytes) -> None:
            with contextlib.suppress(OSError):
                self.send_response(endpoint.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if endpoint.status // 100 == 3:
                    self.send_header("Location", f"{endpoint.address}/elsewhere")
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    return Handler
