"""librdkafka's own mock cluster: brokers inside the process, for what a real one cannot be told.

It answers late on demand, and starts in milliseconds. Transactions do not hide anything there: what
readers see belongs to a real broker.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from types import TracebackType
from typing import Final, Self

from connectors.native import librdkafka

#: Kafka's numbers of requests.
LIST_OFFSETS: Final = 2
INIT_PRODUCER_ID: Final = 22
END_TXN: Final = 26

_TEXT_BYTES: Final = 512
_FUNCTIONS: Final = {
    "rd_kafka_mock_cluster_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (c_void_p,)),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, (c_void_p,)),
    "rd_kafka_mock_topic_create": (c_int, (c_void_p, c_char_p, c_int, c_int)),
}
#: It takes (error, milliseconds) as variable arguments.
_SLOW: Final = (c_void_p, c_int32, c_int16, c_size_t)


class MockCluster:
    """One broker, numbered 1, as long as it is entered."""

    def __init__(self) -> None:
        self._lib = librdkafka.library()
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self._lib.rd_kafka_mock_broker_push_request_error_rtts.argtypes = _SLOW

    def __enter__(self) -> Self:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = self._lib.rd_kafka_conf_new()
        self._lib.rd_kafka_conf_set(conf, b"log_level", b"2", text, _TEXT_BYTES)
        self._client = self._lib.rd_kafka_new(librdkafka.PRODUCER, conf, text, _TEXT_BYTES)
        assert self._client, text.value
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._client, 1)
        assert self._cluster
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._client)

    @property
    def bootstrap(self) -> str:
        return self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def topic(self, name: str, partitions: int = 1) -> str:
        made = self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        librdkafka.check_code(made)
        return name

    def slow(self, request: int, milliseconds: int, times: int = 1) -> None:
        """Hold the next answers to a kind of request back."""
        self._answer(request, 0, milliseconds, times)

    def refuse(self, request: int, error: int, times: int = 1) -> None:
        """Answer the next requests of a kind with an error."""
        self._answer(request, error, 0, times)

    def _answer(self, request: int, error: int, milliseconds: int, times: int) -> None:
        push = self._lib.rd_kafka_mock_broker_push_request_error_rtts
        for _ in range(times):
            made = push(self._cluster, 1, request, 1, c_int(error), c_int(milliseconds))
            librdkafka.check_code(made)
