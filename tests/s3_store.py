"""An S3 store for tests: the server S3Proxy, a process of its own, its objects in a folder.

`make s3` runs it until ctrl-C, to try a pipeline by hand.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

import click

from connectors.cluster.broker_settings import choose_addresses
from connectors.cluster.keeper_client import KeeperClient
from connectors.machine.java import ensure_java_home
from tests.pinned_test_jars import pinned_jars
from tests.waiting import until

BUCKET, KEY_ID, SECRET, REGION = "bucket", "tester", "secret", "us-east-1"
_START_S: Final = 60.0


class S3Store:
    """Runs while its block runs; what it has acknowledged outlives a kill of its process.

    A conditional put of an object that is there is refused while the server writes: it makes a
    link to the whole file, which fails if the name exists.

    Attributes:
        endpoint: ``http://127.0.0.1:PORT``.

    Args:
        folder: for the objects and the log of the server.
        port: a free one by default.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._folder = folder
        self.endpoint = f"http://127.0.0.1:{choose_addresses(1, port)[0].port}"

    def __enter__(self) -> Self:
        (self._folder / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
        (self._folder / "s3proxy.conf").write_text(
            f"s3proxy.authorization=aws-v4\ns3proxy.endpoint={self.endpoint}\n"
            f"s3proxy.identity={KEY_ID}\ns3proxy.credential={SECRET}\n"
            f"jclouds.provider=filesystem\njclouds.filesystem.basedir={self._folder}/objects\n"
        )
        self._keeper = KeeperClient()
        try:
            self.start()
        except BaseException:
            self._keeper.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.close()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = [
            str(Path(ensure_java_home(), "bin/java")),
            *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            *("-jar", str(pinned_jars("s3proxy")[0])),
            *("--properties", str(self._folder / "s3proxy.conf")),
        ]
        log = self._folder / "s3proxy.log"
        self._pid = self._keeper.start(command, log)
        until(self._answers, _START_S, lambda: log.read_text()[-4000:], pause_s=0.1)

    def kill(self) -> None:
        """SIGKILL."""
        self._keeper.signal(self._pid, signal.SIGKILL)
        until(lambda: self._keeper.exit_code(self._pid) is not None, _START_S)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return True  # it wants to be asked with a key
        except OSError:
            return False
        return True

    def keys(self, below: str) -> set[str]:
        """Return the keys of the objects below a prefix, without the prefix."""
        top = self._folder / "objects" / BUCKET / below
        return {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}


def variables(endpoint: str) -> dict[str, str]:
    """Return the environment with which both clients, ours and Hadoop's, find the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def hadoop_settings(endpoint: str) -> dict[str, str]:
    """Return Spark's settings for Hadoop's client of the store, without ``spark.``."""
    return {
        "jars": ",".join(map(str, pinned_jars("hadoop-aws"))),
        "hadoop.fs.s3a.endpoint": endpoint,
        "hadoop.fs.s3a.endpoint.region": REGION,
        "hadoop.fs.s3a.path.style.access": "true",
    }


@click.command()
@click.option("--port", type=int, help="Of the server.  [default: a free one]")
def main(port: int | None) -> None:
    """Run an S3 store until ctrl-C or SIGTERM, and print how to use it; its data ends with it."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="sparkonce-s3-") as folder:
        click.echo("starting S3Proxy", err=True)
        with S3Store(Path(folder), port) as store:
            found = " ".join(f"{key}={value}" for key, value in variables(store.endpoint).items())
            conf = " ".join(
                f"--conf spark.{name}={value}"
                for name, value in hadoop_settings(store.endpoint).items()
            )
            click.echo(f"export {found}")
            click.echo(f'make demo ARGS="--checkpoint s3://{BUCKET}/demo {conf}"')
            stop.wait()


if __name__ == "__main__":
    main()
