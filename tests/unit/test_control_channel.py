"""The control channel over real sockets: what arrives is what was sent, or an error of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.continuous.control_channel import (
    Acknowledge,
    Barrier,
    ChannelClosedError,
    Commit,
    Committed,
    ControlChannel,
    Failed,
    Message,
    Moved,
    Ready,
    Register,
    Start,
    accept,
    connect,
    listen,
    wake,
)
from transactions.errors import PhaseOneError

KEY = b"the key of this stage"

names = st.text(max_size=40)
offsets = st.dictionaries(names, st.integers(0, 2**63 - 1), max_size=5)
numbers = st.integers(0, 2**31)
texts = st.text(max_size=200)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Register, stage=names, subtask=numbers, attempt=numbers, host=names),
    st.builds(
        Start,
        application_id=names,
        log_id=names,
        run_epoch=numbers,
        checkpoint_id=numbers,
        offsets=offsets,
    ),
    st.builds(Ready, transactional_ids=st.lists(names, max_size=4).map(tuple)),
    st.just(Moved()),
    st.builds(Barrier, checkpoint_id=numbers, last=st.booleans(), added=offsets),
    st.builds(
        Acknowledge,
        checkpoint_id=numbers,
        committable=st.none() | st.dictionaries(names, texts, max_size=3),
        positions=offsets,
        lag=numbers,
        busy_s=st.floats(0, 2**31),
    ),
    st.builds(Commit, checkpoint_id=numbers),
    st.builds(Committed, checkpoint_id=numbers),
    st.builds(Failed, error=texts),
)


@pytest.fixture(scope="module")
def pair():
    """Both ends of a channel."""
    listener = listen("127.0.0.1")
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept, listener, KEY, patience_s=5)
        task = connect(listener.address, KEY, patience_s=5.0)
        driver = accepted.result(5)
    yield driver, task
    driver.close()
    task.close()
    listener.close()


@given(message=messages)
@settings(max_examples=200, deadline=None)
def test_every_message_arrives_as_it_was_sent(pair, message):
    for sender, receiver in (pair, pair[::-1]):
        sender.send(message)
        assert receiver.receive() == message  # in one go: nothing is left for the next message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95pickle",
        b"{}",
        b"17",
        b'["Barrier", {"checkpoint_id": 1}]',
        b'{"type":"Barrier"}',
        b'{"type":"Barrier","checkpoint_id":"1"}',
        b'{"type":"Barrier","checkpoint_id":1,"no_such_field":1}',
        b'["eval", {}]',
        b'[["Barrier"], {}]',
    ],
)
def test_what_is_no_message_is_an_error_of_ours(pair, data):
    driver, task = pair
    task.connection.send_bytes(data)
    with pytest.raises(PhaseOneError, match="different versions"):
        driver.receive()


def opened() -> tuple[ControlChannel, ControlChannel]:
    listener = listen("127.0.0.1")
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept, listener, KEY, patience_s=5)
        task = connect(listener.address, KEY, patience_s=5.0)
        driver = accepted.result(5)
    listener.close()
    return driver, task


def test_messages_of_several_threads_do_not_mix():
    """A message that does not fit into the socket's buffer is written in several steps."""
    driver, task = opened()
    long, short = Failed(error="x" * 1_000_000), Commit(checkpoint_id=7)
    sent: list[list[Message]] = [[long] * 10, [short] * 99]
    kinds = []

    def receive() -> None:
        with contextlib.suppress(ChannelClosedError, PhaseOneError):
            kinds.extend(type(driver.receive()) for _ in range(109))
        driver.close()

    def send(messages: list[Message]) -> None:
        with contextlib.suppress(ChannelClosedError):
            for one in messages:
                task.send(one)

    receiving = threading.Thread(target=receive)
    receiving.start()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(send, sent))
    task.close()
    receiving.join(20)
    assert sorted(one.__name__ for one in kinds) == ["Commit"] * 99 + ["Failed"] * 10


def test_a_channel_that_was_closed_says_so_on_both_ends():
    driver, task = opened()
    task.close()
    task.close()
    with pytest.raises(ChannelClosedError):
        driver.receive()
    for use in (task.receive, lambda: task.send(Moved())):
        with pytest.raises(ChannelClosedError):
            use()
    driver.close()


def test_closing_wakes_the_thread_that_receives():
    """Closing a descriptor alone leaves a thread in read() for ever, and its number is reused."""
    driver, task = opened()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(task.receive)
        task.close()
        assert isinstance(waiting.exception(5), ChannelClosedError)
    driver.close()


@pytest.mark.parametrize("call", ["recv_bytes", "send_bytes"])
def test_the_descriptor_stays_until_the_last_thread_has_left_it(monkeypatch, call):
    """Its number would be another socket's, and that socket's bytes be taken or mixed."""
    driver, task = opened()
    entered, go_on = threading.Event(), threading.Event()
    numbers = []

    def on_its_way(*_data: bytes) -> bytes:
        numbers.append(task.connection.fileno())
        entered.set()
        assert go_on.wait(20)
        numbers.append(task.connection.fileno())
        raise OSError("the other end is gone")

    monkeypatch.setattr(task.connection, call, on_its_way)
    use = task.receive if call == "recv_bytes" else lambda: task.send(Moved())
    with ThreadPoolExecutor(2) as threads:
        using = threads.submit(use)
        assert entered.wait(20)
        closing = threads.submit(task.close)
        with pytest.raises(ChannelClosedError):
            driver.receive()  # the end is told at once
        with pytest.raises(TimeoutError):
            closing.exception(0.2)
        go_on.set()
        assert isinstance(using.exception(20), ChannelClosedError)
        assert closing.exception(20) is None
    assert numbers[0] == numbers[1]
    assert task.connection.closed
    driver.close()


def test_the_last_word_is_read_after_the_other_end_has_closed():
    driver, task = opened()
    driver.send(Commit(checkpoint_id=1))  # never read: the end of the connection is a hard one
    task.send(Failed(error="the reason"))
    task.close()
    assert driver.receive() == Failed(error="the reason")
    with pytest.raises(ChannelClosedError):
        driver.receive()
    driver.close()


def test_a_wrong_key_is_refused_on_both_ends():
    listener = listen("127.0.0.1")
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept, listener, KEY, patience_s=5)
        with pytest.raises(AuthenticationError):
            connect(listener.address, b"another stage's", patience_s=5.0)
        assert isinstance(accepted.exception(5), AuthenticationError)
    listener.close()


def test_a_stranger_that_says_nothing_is_not_waited_for():
    listener = listen("127.0.0.1")
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept, listener, KEY, patience_s=0.05)
        with socket.create_connection(listener.address):
            assert isinstance(accepted.exception(5), OSError)
    listener.close()


def test_a_driver_that_says_nothing_is_not_waited_for():
    """So it looks to a task that came while the listener was closing (seen: a wait for ever)."""
    listener = listen("127.0.0.1")  # connections are made, and nobody accepts them
    with pytest.raises(OSError, match="temporarily unavailable"):
        connect(listener.address, KEY, patience_s=0.05)
    listener.close()


def test_a_driver_that_is_silent_later_is_waited_for_as_long_as_asked():
    driver, task = opened()
    task.patience(0.05)
    with pytest.raises(ChannelClosedError, match="temporarily unavailable"):
        task.receive()
    task.close()
    driver.close()


def test_a_thread_that_accepts_is_woken():
    listener = listen("127.0.0.1")
    failures: list[BaseException] = []

    def accepting() -> None:
        try:
            accept(listener, KEY, patience_s=5)
        except (OSError, EOFError) as error:
            failures.append(error)

    thread = threading.Thread(target=accepting)
    thread.start()
    wake(listener)
    thread.join(5)
    assert len(failures) == 1
    listener.close()
