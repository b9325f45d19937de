"""The broker's jars: nothing but a whole, verified set ever stands in the cache."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from connectors.cluster import broker_jars
from connectors.cluster.broker_jars import PIN_FILE, ensure_broker_jars
from connectors.machine.pinned_jars import PinnedJar, _ivy_module, read_pins
from transactions.errors import BrokerUnavailableError, ConfigurationError, SparkOnceError


def content_of(pin: PinnedJar) -> bytes:
    return f"jar of {pin.module}".encode()


def pin(module: str) -> PinnedJar:
    sha256 = hashlib.sha256(f"jar of {module}".encode()).hexdigest()
    return PinnedJar(sha256=sha256, organisation="org", module=module, version="9.0.0")


PINS = (pin("kafka_2.13"), pin("kafka-clients"), pin("slf4j"))


class FakeResolver:
    """Writes the jars; `spoil` may do harm to the folder afterwards."""

    def __init__(self, spoil: Exception | str | None = None) -> None:
        self.spoil = spoil
        self.calls = 0

    def __call__(self, pins: Sequence[PinnedJar], folder: Path) -> None:
        self.calls += 1
        for one in pins:
            (folder / one.file_name).write_bytes(content_of(one))
        last = folder / pins[-1].file_name
        match self.spoil:
            case Exception():
                raise self.spoil
            case "interrupted":
                raise KeyboardInterrupt
            case "missing":
                last.unlink()
            case "cut short":
                last.write_bytes(content_of(pins[-1])[:-1])


def ensure(cache: Path, resolver: FakeResolver) -> tuple[Path, ...]:
    return ensure_broker_jars(
        "/no/java", cache=cache, pins=PINS, resolver=resolver, tell=lambda _text: None
    )


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_download_once_then_use_the_cache(tmp_path: Path) -> None:
    resolver = FakeResolver()
    first = ensure(tmp_path, resolver)
    assert [path.read_bytes() for path in first] == [content_of(one) for one in PINS]
    assert ensure(tmp_path, resolver) == first
    assert resolver.calls == 1


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    """A home that is read-only, as in a pod: who can do without the jars must see this error."""
    (tmp_path / "file").touch()
    with pytest.raises(BrokerUnavailableError, match="could not be stored") as raised:
        ensure(tmp_path / "file" / "cache", FakeResolver())
    assert "NotADirectoryError" in raised.value.cause
    assert "XDG_CACHE_HOME" in raised.value.option


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        ("cut short", ConfigurationError, "checksum of slf4j-9.0.0.jar is wrong"),
        ("missing", BrokerUnavailableError, "slf4j-9.0.0.jar is missing"),
        (OSError("disk is full"), BrokerUnavailableError, "disk is full"),
        ("interrupted", KeyboardInterrupt, "^$"),
    ],
)
def test_a_bad_download_leaves_no_half_cache(
    tmp_path: Path, spoil: Exception | str, error: type[BaseException], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        ensure(tmp_path, FakeResolver(spoil))
    if isinstance(raised.value, SparkOnceError):
        caught = raised.value
        assert all([caught.what, caught.where, caught.cause, caught.option])
    assert folders(tmp_path) == []
    assert len(ensure(tmp_path, FakeResolver())) == len(PINS)


@pytest.mark.parametrize("harm", ["cut short", "deleted", "no marker"])
def test_a_cache_that_was_damaged_later_is_fetched_again(tmp_path: Path, harm: str) -> None:
    jars = ensure(tmp_path, FakeResolver())
    match harm:
        case "cut short":
            jars[1].write_bytes(b"")
        case "deleted":
            jars[1].unlink()
        case _:
            (jars[1].parent / "complete").unlink()
    again = FakeResolver()
    assert ensure(tmp_path, again) == jars
    assert again.calls == 1
    assert jars[1].read_bytes() == content_of(PINS[1])


def test_what_a_killed_download_left_is_removed(tmp_path: Path) -> None:
    name = ensure(tmp_path, FakeResolver())[0].parent.name
    (tmp_path / name / "complete").unlink()
    (tmp_path / f"{name}.tmp-killed").mkdir()
    ensure(tmp_path, FakeResolver())
    assert folders(tmp_path) == [name]


def test_two_at_once_download_once(tmp_path: Path) -> None:
    resolver = FakeResolver()
    results: list[tuple[Path, ...]] = []
    threads = [
        threading.Thread(target=lambda: results.append(ensure(tmp_path, resolver)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(results)) == 1
    assert len(results) == 4
    assert resolver.calls == 1


def test_the_committed_pins_are_whole() -> None:
    pins = read_pins(PIN_FILE)
    assert broker_jars.kafka_version(pins).startswith("4.")
    assert len({one.file_name for one in pins}) == len(pins) > 40
    assert all(len(one.sha256) == 64 for one in pins)


def test_without_a_working_java_the_download_fails_clearly(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"could not be downloaded(?s:.*)/no/java"):
        ensure_broker_jars("/no/java", cache=tmp_path, pins=PINS, tell=lambda _text: None)
    assert folders(tmp_path) == []


def test_a_module_can_have_several_jars(tmp_path: Path) -> None:
    """One of them is named by its classifier; an Ivy that ignored it would fetch another jar."""
    (tmp_path / "pins").write_text("# a comment\n0a  org:one:1.0:whole\n0b  org:two:2.0\n")
    whole, two = read_pins(tmp_path / "pins")
    assert (whole.file_name, two.file_name) == ("one-1.0-whole.jar", "two-2.0.jar")
    module = ET.fromstring(_ivy_module([whole, two]))
    first, second = module.iter("dependency")
    (artifact,) = first
    maven = "{http://ant.apache.org/ivy/maven}"
    assert artifact.attrib == {"name": "one", "type": "jar", f"{maven}classifier": "whole"}
    assert not [*second]
