"""An S3 server for tests: conditional puts, and faults at the moments that matter.

Written by hand for two reasons. The log rests on one winner among puts of the same moment, and a
server that only nearly promises that makes tests that fail now and then: moto 5.2.5 looks for the
object and stores it later without a lock (in 60 rounds of 8 threads there was one winner each; with
a thread switch interval of 1 us, 4 of 120 rounds had not exactly one). And the fault that the log
must survive, an object that is stored while its answer is lost, has to be asked for by name.

It speaks what the product needs of path-style S3: ListObjectsV2 in pages, PUT with
``If-None-Match: *``, GET (also of a range), HEAD, DELETE, and uploads in parts. Objects live in a
dictionary of the test's process; the key id is checked and the signature is not.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections import Counter
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET, KEY_ID = "bucket", "tester"
_PATIENCE_S = 60.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next request of a method.

    Attributes:
        method: GET (an object), HEAD, LIST, PUT, DELETE; POST, PART and END are an upload in parts.
        key: only requests whose key, or a listing's prefix, contains it.
        carried_out: whether the request is carried out before it goes wrong.
        status: what is answered in place of the truth; 0 closes the connection without a word,
            None answers the truth.
        before: waited for before anything else; `met` tells that a request is waiting.
        after: waited for when the request has been carried out and nothing is answered yet.
        times: how many requests it meets.
    """

    method: str
    key: str = ""
    carried_out: bool = False
    status: int | None = 500
    before: threading.Event | None = None
    after: threading.Event | None = None
    met: threading.Event = dataclasses.field(default_factory=threading.Event)
    times: int = 1


class S3Server(ThreadingHTTPServer):
    """Use it as a context manager; it listens on a free port of this machine.

    Attributes:
        bucket: the name of the one that there is.
        objects: key -> bytes, in it.
        stored: every (key, bytes) that was ever stored, in order.
        requests: how many of each method came.
        uploads: id -> number -> part, of uploads that were begun and not ended.
        page: how many names one answer of a listing has.
        delay_s: how long each answer takes.
        is_conditional: False makes it an old store, which overwrites whatever is asked.
        gap_s: above 0 a conditional put looks first and writes so much later, without a lock.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = BUCKET
        self.objects: dict[str, bytes] = {}
        self.stored: list[tuple[str, bytes]] = []
        self.requests: Counter[str] = Counter()
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.page = 1000
        self.delay_s = 0.0
        self.is_conditional = True
        self.gap_s = 0.0
        self.lock = threading.Lock()
        self._in_flight = 0
        self._done = threading.Condition()
        self._faults: list[Fault] = []

    def __enter__(self) -> S3Server:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        for fault in self._faults:
            for event in filter(None, (fault.before, fault.after)):
                event.set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def options(self, **others: str) -> dict[str, str]:
        """Return the options with which a backend finds this server."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": "secret",
            **others,
        }

    def fail(self, fault: Fault) -> Fault:
        """Plan a fault; several of one method are met in this order."""
        with self.lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget the faults that were not met."""
        with self.lock:
            self._faults.clear()

    def wait_idle(self) -> None:
        """Wait until every request that came is finished, also those nobody waits for any more."""
        with self._done:
            assert self._done.wait_for(lambda: self._in_flight == 0, _PATIENCE_S)

    def count(self, change: int) -> None:
        with self._done:
            self._in_flight += change
            self._done.notify_all()

    def fault_of(self, method: str, key: str) -> Fault | None:
        with self.lock:
            self.requests[method] += 1
            for fault in self._faults:
                if fault.method == method and fault.key in key and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: S3Server

    def do_GET(self) -> None:
        self._serve("LIST" if "list-type" in self._query() else "GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_PUT(self) -> None:
        self._serve("PART" if "uploadId" in self._query() else "PUT")

    def do_POST(self) -> None:
        self._serve("END" if "uploadId" in self._query() else "POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _query(self) -> dict[str, str]:
        query = urlsplit(self.path).query
        return {name: values[0] for name, values in parse_qs(query, True).items()}

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _serve(self, method: str) -> None:
        self.server.count(1)
        try:
            self._serve_counted(method)
        finally:
            self.server.count(-1)

    def _serve_counted(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.delay_s:
            time.sleep(self.server.delay_s)
        key = (
            unquote(urlsplit(self.path).path)
            .removeprefix(f"/{self.server.bucket}")
            .removeprefix("/")
        )
        fault = self.server.fault_of(method, key or self._query().get("prefix", ""))
        if fault is None:
            self._answer(*self._carry_out(method, body))
            return
        if fault.before is not None:
            fault.met.set()
            fault.before.wait(_PATIENCE_S)
        truth = None
        if fault.carried_out or fault.status is None:
            truth = self._carry_out(method, body)
        fault.met.set()
        if fault.after is not None:
            fault.after.wait(_PATIENCE_S)
        if fault.status is None:
            assert truth is not None
            self._answer(*truth)
        elif fault.status == 0:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(fault.status, *_error("Injected"))

    def _carry_out(self, method: str, body: bytes) -> tuple[int, bytes, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        if f"Credential={KEY_ID}/" not in self.headers.get("Authorization", ""):
            return 403, *_error("InvalidAccessKeyId")
        if bucket != self.server.bucket:
            return 404, *_error("NoSuchBucket")
        if method == "PUT" and self.server.gap_s and key not in self.server.objects:
            time.sleep(self.server.gap_s)
            del self.headers["If-None-Match"]  # it has looked
        with self.server.lock:
            if method in {"POST", "PART", "END"}:
                return self._upload(method, key, body)
            return {
                "LIST": self._listing,
                "GET": self._get,
                "HEAD": self._get,
                "PUT": self._put,
                "DELETE": self._delete,
            }[method](key, body)

    def _get(self, key: str, _: bytes) -> tuple[int, bytes, str]:
        found = self.server.objects.get(key)
        if found is None:
            return 404, *_error("NoSuchKey")
        if (part := self.headers.get("Range")) and self.command == "GET":
            first, last = part.removeprefix("bytes=").split("-")
            return 206, found[int(first) : int(last) + 1], ""
        return 200, found, ""

    def _delete(self, key: str, _: bytes) -> tuple[int, bytes, str]:
        upload = self._query().get("uploadId")
        if upload is None:
            self.server.objects.pop(key, None)
        else:
            self.server.uploads.pop(upload, None)
        return 204, b"", ""

    def _upload(self, method: str, key: str, body: bytes) -> tuple[int, bytes, str]:
        uploads, query = self.server.uploads, self._query()
        if method == "POST":
            one = f"upload-{self.server.requests['POST']}"
            uploads[one] = {}
            return 200, *_xml(
                f"<InitiateMultipartUploadResult><UploadId>{one}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
        one = query["uploadId"]
        if one not in uploads:
            return 404, *_error("NoSuchUpload")
        if method == "PART":
            uploads[one][int(query["partNumber"])] = body
            return 200, b"", ""
        parts = uploads.pop(one)
        self._put(key, b"".join(parts[number] for number in sorted(parts)))
        return 200, *_xml(
            "<CompleteMultipartUploadResult><ETag>&quot;1&quot;</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def _put(self, key: str, body: bytes) -> tuple[int, bytes, str]:
        server = self.server
        conditional = self.headers.get("If-None-Match") == "*" and server.is_conditional
        if conditional and key in server.objects:
            return 412, *_error("PreconditionFailed")
        server.objects[key] = body
        server.stored.append((key, body))
        return 200, b"", ""

    def _listing(self, _key: str, _body: bytes) -> tuple[int, bytes, str]:
        query = self._query()
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(k for k in self.server.objects if k.startswith(prefix) and k > after)
        shown, more = keys[: self.server.page], len(keys) > self.server.page
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
            "</Contents>"
            for key in shown
        )
        last = escape(shown[-1]) if more else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        return 200, *_xml(
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}"
            "</ListBucketResult>"
        )

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _error(code: str) -> tuple[bytes, str]:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


def _xml(text: str) -> tuple[bytes, str]:
    return text.encode(), "application/xml"
