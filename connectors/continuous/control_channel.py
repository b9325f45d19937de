"""The control channel between the driver and its tasks: a few small messages per checkpoint.

`multiprocessing.connection` carries them: framed bytes over TCP. Both ends prove that they know the
key of the stage (HMAC) before anything else. Messages are JSON, never pickle: what arrives can only
be data. TCP_NODELAY is set; without it Nagle and delayed acknowledgements cost 40 ms a checkpoint
(measured).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any, TypeAlias

import msgspec

from transactions.errors import PhaseOneError


class _Message(msgspec.Struct, tag=True, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with its fields, and its class's name as ``type``."""


class Register(_Message, frozen=True):
    """Task to driver, first: here I am.

    Attributes:
        stage: random name of the stage, from the task's closure; a task of an old stage is refused.
        subtask: its number, from 0.
        attempt: Spark's task attempt id.
        host: where it runs, for error texts.
    """

    stage: str
    subtask: int
    attempt: int
    host: str


class Start(_Message, frozen=True):
    """Driver to task: the owner of the transactions, and where to read. They are never in the
    closure, because a task that Spark starts again would go back to its first offsets.

    Attributes:
        application_id: see `transactions.sink.Owner`.
        log_id: see there.
        run_epoch: see there.
        checkpoint_id: the first checkpoint that the task's records belong to.
        offsets: next offset to read per ``topic-partition`` of this subtask.
    """

    application_id: str
    log_id: str
    run_epoch: int
    checkpoint_id: int
    offsets: Mapping[str, int]


class Ready(_Message, frozen=True):
    """Task to driver: the producers are made; these ids are live and must not be swept."""

    transactional_ids: tuple[str, ...]


class Moved(_Message, frozen=True):
    """Task to driver, once after each barrier: there are records for the next checkpoint."""


class Barrier(_Message, frozen=True):
    """Driver to task: what was read up to now belongs to this checkpoint; prepare it.

    It also permits the task to begin again on the producer of the checkpoint before: that
    checkpoint is settled, and the log has no newer Fence: rule 5 (docs/design.md).

    Attributes:
        checkpoint_id: N.
        last: the task reads no more; the stage ends after this checkpoint.
        added: partitions that this subtask reads from now on, with the offset to begin at.
        removed: partitions that it reads no more; another subtask continues at the acknowledged
            position.
    """

    checkpoint_id: int
    last: bool = False
    added: Mapping[str, int] = {}
    removed: tuple[str, ...] = ()


class Acknowledge(_Message, frozen=True):
    """Task to driver: the checkpoint is prepared.

    Attributes:
        checkpoint_id: N.
        committable: `Committable.to_dict`; None when nothing was written.
        positions: next offset to read of every partition of this subtask, at the barrier.
        lag: see `PartitionReader.lag`.
        busy_s: how long the task has worked since its start: the CPU time of its reading thread,
            and what the user's function waited for.
    """

    checkpoint_id: int
    committable: Mapping[str, Any] | None
    positions: Mapping[str, int]
    lag: int
    busy_s: float


class Commit(_Message, frozen=True):
    """Driver to task: N is decided; the task must end its transaction."""

    checkpoint_id: int


class Committed(_Message, frozen=True):
    """Task to driver: the transaction ended, with a clear answer of the broker."""

    checkpoint_id: int


class Failed(_Message, frozen=True):
    """Task to driver, last: the text of the error that ends it."""

    error: str


Message: TypeAlias = (
    Register | Start | Ready | Moved | Barrier | Acknowledge | Commit | Committed | Failed
)
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class ChannelClosedError(ConnectionError):
    """The other end of a control channel is gone, or this one was closed."""


class ControlChannel:
    """One end of a connection. One thread receives; any thread may send."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self.connection = connection
        self._sending = threading.Lock()  # a long message is written in two steps
        self._receiving = threading.Lock()
        with _socket_of(connection) as options:
            options.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChannelClosedError: the other end is gone.
        """
        data = msgspec.json.encode(message)
        try:
            with self._sending:
                self.connection.send_bytes(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            ChannelClosedError: the other end is gone.
            PhaseOneError: what came is not a message of ours.
        """
        try:
            with self._receiving:
                data = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise ChannelClosedError(f"{type(error).__name__}: {error}") from error
        try:
            return _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise PhaseOneError(
                "A message on the control channel cannot be read.",
                where=repr(data[:200]),
                cause="driver and workers run different versions of sparkonce",
            ) from error

    def close(self) -> None:
        """Close this end, and wake the threads that use it; a second call is harmless.

        The descriptor is closed when they have left it. Its number is given to the next socket of
        the process at once, and a thread on its way into read() would take that socket's bytes.
        """
        with contextlib.suppress(OSError), _socket_of(self.connection) as ending:
            ending.shutdown(socket.SHUT_RDWR)
        with self._sending, self._receiving, contextlib.suppress(OSError):
            self.connection.close()

    def patience(self, seconds: float) -> None:
        """Set how long `receive` waits for the other end; 0 is for ever, which is the default."""
        _set_patience(self.connection, seconds)


def _socket_of(connection: Connection[bytes, bytes]) -> socket.socket:
    """Return a duplicate: options, and a shutdown, belong to the socket itself."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def connect(address: tuple[str, int], key: bytes, *, patience_s: float) -> ControlChannel:
    """Connect a task to its driver.

    If a listener closes while the connection is made, this end can wait for ever: Linux drops the
    last packet of the handshake and answers nothing (seen: 1 in 100 of those that came in that
    moment). The same happens if the driver's machine is lost. So there is a patience; it stays set.

    Args:
        address: the address of the driver's listener.
        key: the key of the stage.
        patience_s: how long the driver may be silent, here and in `receive` until it is changed.

    Raises:
        OSError: nobody listens or answers, or the network is in the way.
        multiprocessing.AuthenticationError: another stage listens there.
    """
    with socket.create_connection(address, timeout=patience_s) as made:
        made.settimeout(None)
        connection: Connection[bytes, bytes] = Connection(made.detach())
    with _closed_on_error(connection):
        _set_patience(connection, patience_s)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    return ControlChannel(connection)


def listen(host: str) -> Listener:
    """Listen on a free port of a host's address; made on the driver, once per stage."""
    return Listener((host, 0), backlog=128)


def accept(listener: Listener, key: bytes, *, patience_s: float) -> ControlChannel:
    """Wait for the next connection, and let it prove that it knows the key.

    The patience stays set, as in `connect`.

    Args:
        listener: from `listen`.
        key: of the stage.
        patience_s: how long the other end may be silent; a silent stranger would keep everybody
            else out for ever.

    Raises:
        OSError, EOFError: the other end is gone or was silent too long, or the listener is closed.
        multiprocessing.AuthenticationError: the other end does not know the key.
    """
    connection = listener.accept()
    with _closed_on_error(connection):
        _set_patience(connection, patience_s)
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
    return ControlChannel(connection)


def wake(listener: Listener) -> None:
    """Wake the thread that waits in `accept`: closing the listener does not wake it (seen)."""
    with contextlib.suppress(OSError):
        socket.create_connection(listener.address[:2], timeout=1.0).close()


@contextlib.contextmanager
def _closed_on_error(connection: Connection[bytes, bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _set_patience(connection: Connection[bytes, bytes], seconds: float) -> None:
    time = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket_of(connection) as options:
        options.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
