"""One rd_kafka_t: made from a dict of settings, with callbacks into Python, closed exactly once.

An exception of a callback cannot pass through librdkafka. It is kept, and every later call raises
it: an uncounted delivery report could let a transaction commit without its record.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from connectors.clients.client_errors import FATAL
from connectors.clients.weak_callback import weakly
from connectors.native import librdkafka

_TEXT_BYTES: Final = 512
#: Between two waits the main thread handles its signals (confluent-kafka does the same).
_WAIT_MS: Final = 200
#: Settings that confluent-kafka, too, takes out for itself.
CALLBACKS: Final = frozenset({"error_cb", "stats_cb", "on_delivery", "logger"})
_OAUTH: Final = "oauth_cb"
#: Syslog's levels, from emergency to debug, as levels of `logging`; as confluent-kafka maps them.
_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)

#: The client for whose token this thread asks: librdkafka aborts the process if that client is
#: destroyed on the same thread.
_ASKED: Final = threading.local()


class RefusedRecord:
    """A delivery report's part of its record: all that `on_delivery` needs of a message."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def topic(self) -> str:
        """Return the record's topic."""
        return self._topic

    def partition(self) -> int:
        """Return the record's partition, -1 if none was chosen yet."""
        return self._partition


class ClientHandle:
    """A producer's or consumer's handle. Calls that wait release the interpreter.

    Attributes:
        address: of the rd_kafka_t.

    Args:
        kind: librdkafka.PRODUCER or CONSUMER.
        settings: as for confluent-kafka's clients. Values are text, numbers or truth values. It
            takes the callbacks `error_cb`, `stats_cb` and `on_delivery`, and a `logger`, whose
            `log` is called when callbacks are served; and an `oauth_cb`, which librdkafka calls on
            a thread of its own: nobody has to poll for a new token.

    Raises:
        KafkaException: a setting is unknown or its value is wrong.
    """

    def __init__(self, kind: int, settings: Mapping[str, Any]) -> None:
        self.address: int = 0
        self._process = os.getpid()
        self._topics: dict[str, int] = {}
        self._queue: int = 0
        self._raised: BaseException | None = None
        self._lib = librdkafka.library()
        self._on_error = settings.get("error_cb")
        self._on_statistics = settings.get("stats_cb")
        self._on_delivery = settings.get("on_delivery")
        self._logger = settings.get("logger")
        # The library keeps these addresses, so they must live as long as the handle. They do not
        # keep it alive: a dropped client is closed at once, also where no collector runs.
        self._callbacks = (
            librdkafka.REPORT_CALLBACK(weakly(self._reported)),
            librdkafka.ERROR_CALLBACK(weakly(self._failed)),
            librdkafka.STATISTICS_CALLBACK(weakly(self._measured)),
            librdkafka.LOG_CALLBACK(weakly(self._logged)),
        )
        oauth_cb = settings.get(_OAUTH)
        self._on_token = None if oauth_cb is None else _token_callback(self._lib, oauth_cb)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = self._configured(settings, text)
        address = self._lib.rd_kafka_new(kind, conf, text, _TEXT_BYTES)
        if not address:
            code = self._lib.rd_kafka_last_error()
            self._lib.rd_kafka_conf_destroy(conf)
            raise librdkafka.error_of(code, text.value.decode("utf-8", "replace"))
        self.address = address
        if self._logger is not None:  # else librdkafka's own threads would log the lines
            librdkafka.check_code(self._lib.rd_kafka_set_log_queue(address, None))
        if self._on_token is not None:
            librdkafka.check_error(self._lib.rd_kafka_sasl_background_callbacks_enable(address))

    def _configured(self, settings: Mapping[str, Any], text: Any) -> int:
        conf: int = self._lib.rd_kafka_conf_new()
        queued = {"log.queue": True} if self._logger is not None else {}
        for name, value in {**settings, **queued}.items():
            if name in CALLBACKS or name == _OAUTH:
                continue
            written = str(value).lower() if isinstance(value, bool) else str(value)
            if self._lib.rd_kafka_conf_set(
                conf, name.encode(), written.encode(), text, _TEXT_BYTES
            ):
                self._lib.rd_kafka_conf_destroy(conf)
                raise librdkafka.error_of(
                    KafkaError._INVALID_ARG,  # noqa: SLF001 - as in confluent-kafka
                    text.value.decode("utf-8", "replace"),
                )
        report, error, statistics, log = self._callbacks
        if self._on_delivery is not None:
            self._lib.rd_kafka_conf_set_dr_msg_cb(conf, report)
        if self._on_error is not None:
            self._lib.rd_kafka_conf_set_error_cb(conf, error)
        if self._on_statistics is not None:
            self._lib.rd_kafka_conf_set_stats_cb(conf, statistics)
        if self._logger is not None:
            self._lib.rd_kafka_conf_set_log_cb(conf, log)
        if self._on_token is not None:
            self._lib.rd_kafka_conf_set_oauthbearer_token_refresh_cb(conf, self._on_token)
            self._lib.rd_kafka_conf_enable_sasl_queue(conf, 1)
        return conf

    def topic(self, name: str) -> int:
        """Return the handle of a topic; kept as long as the client.

        Raises:
            KafkaException: no topic can have this name.
        """
        if name not in self._topics:
            if "\0" in name:
                raise TypeError(f"a topic's name holds no NUL: {name!r}")
            handle = self._lib.rd_kafka_topic_new(self.address, name.encode(), None)
            if not handle:
                raise librdkafka.error_of(self._lib.rd_kafka_last_error())
            self._topics[name] = handle
        return self._topics[name]

    def consumer_queue(self) -> int:
        """Return a consumer's queue, which then also serves callbacks; call it only once."""
        librdkafka.check_code(self._lib.rd_kafka_poll_set_consumer(self.address))
        self._queue = self._lib.rd_kafka_queue_get_consumer(self.address)
        return self._queue

    def poll(self, timeout: float) -> int:
        """Serve the callbacks; wait at most `timeout` seconds for the first one."""

        def once(milliseconds: int) -> int:
            return int(self._lib.rd_kafka_poll(self.address, milliseconds))

        return self.in_slices(once, timeout, done=bool)

    def in_slices(
        self, call: Callable[[int], int], timeout: float, *, done: Callable[[int], bool]
    ) -> int:
        """Repeat a call, with waits short enough for signals, until it is done or time is over."""
        left = int(timeout * 1000)
        while True:
            wait = min(left, _WAIT_MS)
            answer = call(wait)
            self.check()
            left -= wait
            if done(answer) or left <= 0:
                return answer

    def check(self) -> None:
        """Raise the first exception of a callback; once there is one, every call raises it."""
        if self._raised is not None:
            raise self._raised

    def fatal_error(self) -> tuple[int, str]:
        """Return code and text of the error that made the client useless, or 0."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._lib.rd_kafka_fatal_error(self.address, text, _TEXT_BYTES)
        return int(code), text.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the client; queued records are dropped. Do not call it in a child process."""
        address, self.address = self.address, 0
        if address and os.getpid() == self._process:
            for topic in self._topics.values():
                self._lib.rd_kafka_topic_destroy(topic)
            self._topics.clear()
            if self._queue:
                self._lib.rd_kafka_queue_destroy(self._queue)
            if getattr(_ASKED, "client", 0) == address:  # the collector ran in its own callback
                threading.Thread(target=self._lib.rd_kafka_destroy, args=(address,)).start()
            else:
                self._lib.rd_kafka_destroy(address)

    def __del__(self) -> None:
        self.close()

    def _reported(self, _client: int, message: Any, _opaque: int) -> None:
        try:
            about = message.contents
            if about.err and self._on_delivery is not None:
                topic = self._lib.rd_kafka_topic_name(about.rkt).decode("utf-8", "replace")
                self._on_delivery(KafkaError(about.err), RefusedRecord(topic, about.partition))
        except BaseException as error:  # noqa: BLE001 - see the file's docstring
            self._raised = self._raised or error

    def _failed(self, _client: int, code: int, reason: bytes | None, _opaque: int) -> None:
        try:
            text = (reason or b"").decode("utf-8", "replace")
            fatal = code == FATAL
            if fatal:
                code, text = self.fatal_error()
            if self._on_error is not None:
                self._on_error(KafkaError(code, text, fatal))
        except BaseException as error:  # noqa: BLE001
            self._raised = self._raised or error

    def _measured(self, _client: int, text: int, size: int, _opaque: int) -> int:
        try:
            if self._on_statistics is not None:
                self._on_statistics(ctypes.string_at(text, size))
        except BaseException as error:  # noqa: BLE001
            self._raised = self._raised or error
        return 0

    def _logged(self, client: int, level: int, facility: bytes, line: bytes) -> None:
        try:
            if self._logger is not None:
                name = self._lib.rd_kafka_name(client)
                parts = [one.decode("utf-8", "replace") for one in (facility, name, line)]
                self._logger.log(_LEVELS[level], "%s [%s] %s", *parts)
        except BaseException as error:  # noqa: BLE001
            self._raised = self._raised or error


def _token_callback(lib: Any, oauth_cb: Callable[[str], tuple[str, float, str, Any]]) -> Any:
    """Return librdkafka's callback for a new token. It knows no handle: one that is dropped
    meanwhile would be closed on this thread. Closing waits until the callback is over.
    """

    def ask(client: int, _config: bytes | None, _opaque: int) -> None:
        _ASKED.client = client
        try:
            failure = _set_token(lib, client, oauth_cb(""))
        except BaseException as error:  # noqa: BLE001 - see the file's docstring; it asks again
            failure = str(error) or type(error).__name__
        finally:
            _ASKED.client = 0
        if failure:
            lib.rd_kafka_oauthbearer_set_token_failure(client, failure.encode("utf-8", "replace"))

    return librdkafka.TOKEN_CALLBACK(ask)


def _set_token(lib: Any, client: int, given: tuple[str, float, str, Mapping[str, str]]) -> str:
    """Give a client its token; return why it was not taken, "" if it was."""
    value, expires_s, principal, extensions = given
    pairs = [text.encode() for pair in extensions.items() for text in pair]
    listed = (ctypes.c_char_p * len(pairs))(*pairs)
    token = (value.encode(), int(expires_s * 1000), principal.encode(), listed, len(pairs))
    why = ctypes.create_string_buffer(_TEXT_BYTES)
    code = lib.rd_kafka_oauthbearer_set_token(client, *token, why, _TEXT_BYTES)
    return why.value.decode("utf-8", "replace") if code else ""
