"""The librdkafka inside the confluent-kafka wheel, by its C interface.

It is the file that the client has already loaded, so the process has one library and one version to
trust. This file declares only what the native path calls. Names and layouts are those of rdkafka.h,
which librdkafka keeps over all its versions 1 and 2. If anything is not as expected, `available`
says so and the plain path is used.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import sys
from collections.abc import Iterable
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, KafkaException

PRODUCER, CONSUMER = 0, 1
ANY_PARTITION: Final = -1
COPY: Final = 0x2
PURGE_QUEUE, PURGE_IN_FLIGHT, PURGE_NON_BLOCKING = 0x1, 0x2, 0x4

#: rd_kafka_message_t, for whole arrays.
MESSAGE: Final = np.dtype(
    {
        "names": ["err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "own"],
        "formats": ["i4", "u8", "i4", "u8", "i8", "u8", "i8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)

#: rd_kafka_vu_t: one argument of rd_kafka_produceva; `size` only if `value` is memory.
ARGUMENT: Final = np.dtype(
    {
        "names": ["kind", "value", "size"],
        "formats": ["i4", "i8", "i8"],
        "offsets": [0, 8, 16],
        "itemsize": 72,
    }
)
#: rd_kafka_vtype_t.
TOPIC_HANDLE, PARTITION, VALUE, KEY = 2, 3, 4, 5
FLAGS, TIMESTAMP, HEADERS = 7, 8, 10


class Message(ctypes.Structure):
    """rd_kafka_message_t, for a single one."""

    _fields_ = [
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("own", c_void_p),
    ]


class Position(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("own", c_void_p),
    ]


class PositionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = [
        ("count", c_int),
        ("size", c_int),
        ("elements", ctypes.POINTER(Position)),
    ]


REPORT_CALLBACK: Final = ctypes.CFUNCTYPE(None, c_void_p, ctypes.POINTER(Message), c_void_p)
ERROR_CALLBACK: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
STATISTICS_CALLBACK: Final = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
TOKEN_CALLBACK: Final = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)
LOG_CALLBACK: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)

_LIST: Final = ctypes.POINTER(PositionList)

#: name -> result, arguments. Handles and rd_kafka_error_t are plain addresses.
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_version_str": (c_char_p, ()),
    # handles
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_dr_msg_cb": (None, (c_void_p, REPORT_CALLBACK)),
    "rd_kafka_conf_set_error_cb": (None, (c_void_p, ERROR_CALLBACK)),
    "rd_kafka_conf_set_stats_cb": (None, (c_void_p, STATISTICS_CALLBACK)),
    "rd_kafka_conf_set_log_cb": (None, (c_void_p, LOG_CALLBACK)),
    "rd_kafka_conf_set_oauthbearer_token_refresh_cb": (None, (c_void_p, TOKEN_CALLBACK)),
    "rd_kafka_conf_enable_sasl_queue": (None, (c_void_p, c_int)),
    "rd_kafka_conf_set_events": (None, (c_void_p, c_int)),
    "rd_kafka_set_log_queue": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_name": (c_char_p, (c_void_p,)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_poll": (c_int, (c_void_p, c_int)),
    # tokens of a login
    "rd_kafka_sasl_background_callbacks_enable": (c_void_p, (c_void_p,)),
    "rd_kafka_oauthbearer_set_token": (
        c_int,
        (c_void_p, c_char_p, c_int64, c_char_p, c_void_p, c_size_t, c_char_p, c_size_t),
    ),
    "rd_kafka_oauthbearer_set_token_failure": (c_int, (c_void_p, c_char_p)),
    "rd_kafka_mem_malloc": (c_void_p, (c_void_p, c_size_t)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_name": (c_char_p, (c_void_p,)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    # errors
    "rd_kafka_last_error": (c_int, ()),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "rd_kafka_error_code": (c_int, (c_void_p,)),
    "rd_kafka_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_error_is_fatal": (c_int, (c_void_p,)),
    "rd_kafka_error_is_retriable": (c_int, (c_void_p,)),
    "rd_kafka_error_txn_requires_abort": (c_int, (c_void_p,)),
    "rd_kafka_error_destroy": (None, (c_void_p,)),
    # produce
    "rd_kafka_produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "rd_kafka_produce": (
        c_int,
        (c_void_p, c_int32, c_int, c_void_p, c_size_t, c_char_p, c_size_t, c_void_p),
    ),
    "rd_kafka_produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "rd_kafka_headers_new": (c_void_p, (c_size_t,)),
    "rd_kafka_header_add": (c_int, (c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t)),
    "rd_kafka_headers_destroy": (None, (c_void_p,)),
    "rd_kafka_flush": (c_int, (c_void_p, c_int)),
    "rd_kafka_purge": (c_int, (c_void_p, c_int)),
    "rd_kafka_outq_len": (c_int, (c_void_p,)),
    # transactions
    "rd_kafka_init_transactions": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_begin_transaction": (c_void_p, (c_void_p,)),
    "rd_kafka_commit_transaction": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_abort_transaction": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_send_offsets_to_transaction": (c_void_p, (c_void_p, _LIST, c_void_p, c_int)),
    "rd_kafka_consumer_group_metadata_read": (
        c_void_p,
        (ctypes.POINTER(c_void_p), c_char_p, c_size_t),
    ),
    "rd_kafka_consumer_group_metadata_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_partition_list_new": (_LIST, (c_int,)),
    "rd_kafka_topic_partition_list_add": (
        ctypes.POINTER(Position),
        (_LIST, c_char_p, c_int32),
    ),
    "rd_kafka_topic_partition_list_set_offset": (c_int, (_LIST, c_char_p, c_int32, c_int64)),
    "rd_kafka_topic_partition_list_copy": (_LIST, (_LIST,)),
    "rd_kafka_topic_partition_list_destroy": (None, (_LIST,)),
    # delivery reports as events
    "rd_kafka_queue_get_main": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_event_message_array": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    # consume
    "rd_kafka_poll_set_consumer": (c_int, (c_void_p,)),
    "rd_kafka_queue_get_consumer": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_assign": (c_int, (c_void_p, _LIST)),
    "rd_kafka_incremental_assign": (c_void_p, (c_void_p, _LIST)),
    "rd_kafka_incremental_unassign": (c_void_p, (c_void_p, _LIST)),
    "rd_kafka_consume_batch_queue": (c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    "rd_kafka_consumer_close": (c_int, (c_void_p,)),
    "rd_kafka_query_watermark_offsets": (
        c_int,
        (
            c_void_p,
            c_char_p,
            c_int32,
            ctypes.POINTER(c_int64),
            ctypes.POINTER(c_int64),
            c_int,
        ),
    ),
    "rd_kafka_get_watermark_offsets": (
        c_int,
        (c_void_p, c_char_p, c_int32, ctypes.POINTER(c_int64), ctypes.POINTER(c_int64)),
    ),
    "rd_kafka_message_timestamp": (c_int64, (c_void_p, ctypes.POINTER(c_int))),
    "rd_kafka_message_headers": (c_int, (c_void_p, ctypes.POINTER(c_void_p))),
    "rd_kafka_header_cnt": (c_size_t, (c_void_p,)),
    "rd_kafka_header_get_all": (
        c_int,
        (
            c_void_p,
            c_size_t,
            ctypes.POINTER(c_char_p),
            ctypes.POINTER(c_void_p),
            ctypes.POINTER(c_size_t),
        ),
    ),
}


def available() -> str:
    """Return "" if the native path can be used, else the reason, as half a line."""
    return _load()[1]


def destroy_messages(messages: Iterable[int]) -> None:
    """Give consumed messages back, by their addresses.

    It is the only call per record, so it does not release the interpreter: releasing it and taking
    it back would cost as much again, plus a wait for other threads. It never waits for anything.
    """
    collections.deque(map(_destroyer(), messages), maxlen=0)


@functools.cache
def _destroyer() -> Any:
    destroy = ctypes.PyDLL(library()._name).rd_kafka_message_destroy  # noqa: SLF001 - its path
    destroy.restype = None
    destroy.argtypes = (c_void_p,)
    return destroy


def library() -> ctypes.CDLL:
    """Return the library with its functions declared; only if `available` returns ""."""
    loaded, reason = _load()
    if loaded is None:
        raise OSError(reason)
    return loaded


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    if sys.platform != "linux" or ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return None, f"it needs 64-bit Linux, this is {sys.platform}"
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    found = sorted(folder.glob("librdkafka*.so*"))
    if len(found) != 1:
        return None, f"confluent-kafka's wheel must have one librdkafka, it has {len(found)}"
    try:
        loaded = ctypes.CDLL(str(found[0]))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        return None, str(error)
    version = loaded.rd_kafka_version_str().decode()
    expected = confluent_kafka.libversion()[0]
    if version != expected:
        return None, f"{found[0].name} is {version}, confluent-kafka runs {expected}"
    if version.partition(".")[0] != "2":
        return None, f"it supports librdkafka 2, this is {version}"
    return loaded, ""


def error_of(code: int, reason: str = "") -> KafkaException:
    """Return confluent's exception for a code; without a reason, with librdkafka's own text."""
    return KafkaException(KafkaError(code, reason) if reason else KafkaError(code))


def check_error(error: int | None) -> None:
    """Raise the rd_kafka_error_t that a call returned, and free it.

    Raises:
        KafkaException: it is not NULL.
    """
    if not error:
        return
    lib = library()
    try:
        raise KafkaException(
            KafkaError(
                lib.rd_kafka_error_code(error),
                lib.rd_kafka_error_string(error).decode("utf-8", "replace"),
                bool(lib.rd_kafka_error_is_fatal(error)),
                bool(lib.rd_kafka_error_is_retriable(error)),
                bool(lib.rd_kafka_error_txn_requires_abort(error)),
            )
        )
    finally:
        lib.rd_kafka_error_destroy(error)


def check_code(code: int) -> None:
    """Raise the rd_kafka_resp_err_t that a call returned.

    Raises:
        KafkaException: it is not zero.
    """
    if code:
        raise error_of(code)
