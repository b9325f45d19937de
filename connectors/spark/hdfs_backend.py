"""The decision log in HDFS: one file per entry, renamed into place without overwriting.

An entry is written aside and closed. The flag SYNC_BLOCK makes each data node sync the file and
its folders before it acknowledges the end of the file. (`hsync` alone would not do: the file is
moved to another folder when it is closed, and without the flag nobody syncs that.) Then the entry
is renamed to its name by `FileContext.rename` without the option OVERWRITE. The name node does such
a rename as one step, and refuses it if the name exists (`FSDirRenameOp.renameTo`).

What a name node shows may still be lost with it: it shows a rename before its edit log is synced,
and answers a repeated rename from its retry cache, perhaps before that, too. A later change that it
acknowledges *is* synced, and so is everything before it. So each put, and each list that somebody
acts on, makes such a change afterwards: it sets the time of the folder. If another name node has
taken over between, it acknowledges that change without having the rename, and another driver may
have taken the name there. So the backend then reads what it has put, or lists again.

Hadoop's own client does the work, in the JVM of the driver: failover between name nodes, Kerberos,
encryption and replaced data nodes are as in every query of Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from connectors.spark.hadoop_jvm import (
    ABSENT,
    JVM_ERRORS,
    first_line_of,
    forget_own_jvm,
    hadoop_jvm,
    java_class_of,
    with_authority,
)
from transactions.clock import SYSTEM_CLOCK, Clock, Deadline
from transactions.errors import ConfigurationError, SparkOnceError, without_secrets

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: `FileStatus.toString` in a list of them: the last part of the path, and whether it is a folder.
_FILE_STATUS: Final = r"[^{]*\{path=[^{}]*?/([^/{}]+); isDirectory=(true|false);[^}]*\}\]?"
#: Between two tries of one call.
_PAUSE_S: Final = 0.5
_TAKEN: Final = "org.apache.hadoop.fs.FileAlreadyExistsException"
_FORBIDDEN: Final = "org.apache.hadoop.security.AccessControlException"
#: What Hadoop says when an address can never work; no later start is better.
_NEVER: Final = (
    "java.lang.IllegalArgumentException",
    "java.lang.NumberFormatException",
    "java.net.URISyntaxException",
    "org.apache.hadoop.HadoopIllegalArgumentException",
)
#: A name server that is away, in the pod's first seconds too, is told as a wrong argument.
_UNKNOWN_HOST: Final = "UnknownHostException"


class HdfsError(SparkOnceError, OSError):
    """HDFS did not answer, or refused for now. Nothing is lost; a restart tries again."""


class HdfsBackend:
    """One file per name, in a folder of HDFS. See `transactions.log_backend.LogBackend`.

    On the driver or in a command; nothing is sent, and no JVM is started, before the first call.

    Args:
        url: ``hdfs://namenode:8020/folder``, ``hdfs://nameservice/folder``, or ``hdfs:///folder``
            of the default file system.
        options: Hadoop's properties (``dfs.client.use.datanode.hostname``), which win over those of
            the session and of ``HADOOP_CONF_DIR``. Two options are ours, in seconds: ``timeout_s``
            (20), how long one answer may take; ``retry_s`` (60), how long a call is repeated while
            HDFS does not answer, or answers that it cannot now (safe mode). One try can take some
            times ``timeout_s``: with several name nodes the client asks each of them.
        clock: replaced in tests.

    Raises:
        ConfigurationError: the address or an option is wrong.
    """

    #: The name node shows a rename before its edit log is synced.
    reads_are_durable: Final = False

    def __init__(
        self, url: str, options: Mapping[str, str | float], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        parts = urlsplit(url)
        if not url.lower().startswith("hdfs://") or parts.path.strip("/") == "":
            raise self._refused(url, "an address has a folder: hdfs://namenode:8020/folder")
        if parts.password or parts.query:
            raise self._refused(url, "it carries credentials or parameters; Hadoop has settings")
        self._url = url.rstrip("/")
        others = {name: str(value) for name, value in options.items()}
        timeout_s = self._seconds("timeout_s", others.pop("timeout_s", "20"))
        self._retry_s = self._seconds("retry_s", others.pop("retry_s", "60"))
        self._clock = clock
        unknown = [name for name in others if "." not in name]
        if unknown:
            option = f"options: {', '.join(sorted(unknown))}"
            raise self._refused(url, "Hadoop has no such property", option)
        self._options = _patience(timeout_s) | others

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `LogBackend.put_if_absent`; False can mean an earlier try of this very call.

        Raises:
            HdfsError: it is not known whether the data is stored.
            ConfigurationError: the user may not write there.
        """
        return self._tried(name, lambda: self._put(name, data))

    def _put(self, name: str, data: bytes) -> bool:
        while True:
            is_new = self._renamed(name, data)
            self._make_durable()
            # Else another name node has taken over, and acknowledged that change without this one.
            found = self._read(name)
            if found is not None:
                return is_new and found == data

    def _renamed(self, name: str, data: bytes) -> bool:
        aside = self._path(f".{name}.{secrets.token_hex(8)}.tmp")
        try:
            self._write(aside, data)
            self._files.rename(aside, self._path(name), self._java.rename_options)
        except BaseException as error:
            with contextlib.suppress(*JVM_ERRORS):
                self._files.delete(aside, False)
            if java_class_of(error) != _TAKEN:
                raise
            return False
        return True

    def get(self, name: str) -> bytes | None:
        """See `LogBackend.get`.

        Raises:
            HdfsError, ConfigurationError: it cannot be read.
        """
        return self._tried(name, lambda: self._read_if_there(name))

    def _read_if_there(self, name: str) -> bytes | None:
        # An absent file is the usual answer, and an exception costs PySpark many questions.
        return self._read(name) if self._java.util.exists(self._path(name)) else None

    def _read(self, name: str) -> bytes | None:
        try:
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except JVM_ERRORS as error:
            if java_class_of(error) == ABSENT:
                return None
            raise

    def list(self, *, durable: bool = True) -> list[str]:
        """See `LogBackend.list`. To list durably needs the right to write.

        Raises:
            HdfsError, ConfigurationError: it cannot be listed, or not made durable.
        """
        return [*self._tried("", lambda: self._durable_names() if durable else self._names())]

    def _durable_names(self) -> Sequence[str]:
        names = self._names()
        while names:
            self._make_durable()
            still = self._names()
            if {*names} <= {*still}:
                break
            names = still
        return names

    def _names(self) -> Sequence[str]:
        java = self._java
        try:
            found = java.iterators.toList(self._files.listStatus(self._path("")))
        except JVM_ERRORS as error:
            if java_class_of(error) == ABSENT:
                return []
            raise
        # One short text: three questions per file would take longer than HDFS does, and py4j sends
        # an answer above 8 kB in two parts, 40 ms apart (Nagle's algorithm).
        text = java.file_status.matcher(java.text().append(found)).replaceAll("$1/$2/")
        parts = str(text).split("/")[:-1]
        if len(parts) != 2 * found.size():
            raise self._unanswered("", f"a FileStatus of Hadoop has another text: {text}")
        names = itertools.compress(parts[::2], (is_folder == "false" for is_folder in parts[1::2]))
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        """See `LogBackend.delete`.

        Raises:
            HdfsError, ConfigurationError: it is not known whether it is removed.
        """
        self._tried(name, lambda: self._files.delete(self._path(name), False))

    def remove_folder(self) -> None:
        """See `KeepsFolder.remove_folder`.

        Raises:
            HdfsError, ConfigurationError: it is not empty, or not known to be removed.
        """
        self._tried("", lambda: self._files.delete(self._path(""), False))

    def describe(self) -> str:
        """See `LogBackend.describe`."""
        return self._url

    # --- Hadoop -----------------------------------------------------------------------------

    def _write(self, place: Any, data: bytes) -> None:
        stream = self._files.create(place, self._java.create_flags, self._java.create_options)
        try:
            stream.write(data)
        finally:
            stream.close()

    def _make_durable(self) -> None:
        """Make a change: when it is acknowledged, all changes before it are in the edit log. It has
        no place in the retry cache: each try of it is a change.
        """
        self._files.setTimes(self._path(""), self._clock.now_ms(), -1)

    @cached_property
    def _java(self) -> _Java:
        return _Java(self._url, self._options)

    @property
    def _files(self) -> Any:
        return self._java.files

    def _path(self, name: str) -> Any:
        return self._java.path(f"{self._java.address}/{name}".rstrip("/"))

    def _tried(self, name: str, call: Callable[[], T]) -> T:
        """Call until HDFS has answered or time is up."""
        deadline, say = Deadline(self._retry_s, self._clock), logger.warning
        while True:
            try:
                return call()
            except JVM_ERRORS as error:
                kind = java_class_of(error)
                failed = self._failed(name, kind, first_line_of(error))
                if not kind:  # no exception of Java: the JVM has ended
                    self.__dict__.pop("_java", None)
                has_jvm = bool(kind) or forget_own_jvm()
                if not has_jvm or deadline.expired() or not isinstance(failed, HdfsError):
                    raise failed from error
                say("asking HDFS again for %.0f s: %s", deadline.remaining(), failed)
                say = logger.debug
                deadline.pause(min(_PAUSE_S, deadline.remaining()))

    def _failed(self, name: str, kind: str, cause: str) -> SparkOnceError:
        if kind == _FORBIDDEN:
            return ConfigurationError(
                "HDFS forbids what a decision log needs.",
                where=f"{self._url}/{name}",
                cause=cause,
                option="the rights to read and write in this folder, for the user of this process "
                "(HADOOP_USER_NAME, or kinit)",
            )
        if kind in _NEVER and _UNKNOWN_HOST not in cause:
            return self._refused(self._url, cause)
        return self._unanswered(name, cause)

    def _unanswered(self, name: str, cause: str) -> HdfsError:
        return HdfsError(
            "HDFS does not answer, or not yet.",
            where=f"{self._url}/{name}",
            cause=cause,
            option=f"checkpoint={self._url}; HADOOP_CONF_DIR, or [spark] hadoop.*",
        )

    def _seconds(self, name: str, value: str) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf:
            raise self._refused(value, f"{name} is a number of seconds above 0", f"{name}={value}")
        return seconds

    def _refused(self, where: str, cause: str, option: str = "") -> ConfigurationError:
        return ConfigurationError(
            "The address of HDFS or an option for it cannot be used.",
            where=without_secrets(where),
            cause=cause,
            option=option or f"checkpoint={without_secrets(where)}",
        )


class _Java:
    """What the calls need of the JVM: to look for a class by its name is a question to it, too."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        gateway, settings = hadoop_jvm(options)
        fs = gateway.jvm.org.apache.hadoop.fs
        self.address = with_authority(url, settings, gateway)
        # Not a `FileSystem`: Hadoop shares those between all users of an address, and takes the
        # settings of the first.
        self.files = fs.FileContext.getFileContext(gateway.jvm.java.net.URI(self.address), settings)
        self.util = self.files.util()
        self.path = fs.Path
        # Replicas: data in an erasure-coded folder is never synced.
        flags = fs.CreateFlag
        self.create_flags = gateway.jvm.java.util.EnumSet.of(
            flags.CREATE, flags.SYNC_BLOCK, flags.SHOULD_REPLICATE
        )
        self.create_options = gateway.new_array(fs.Options.CreateOpts, 1)
        self.create_options[0] = fs.Options.CreateOpts.createParent()
        self.rename_options = gateway.new_array(fs.Options.Rename, 0)
        self.iterators = gateway.jvm.org.apache.hadoop.util.functional.RemoteIterators
        self.file_status = gateway.jvm.java.util.regex.Pattern.compile(_FILE_STATUS)
        self.text = gateway.jvm.java.lang.StringBuilder


def _patience(timeout_s: float) -> dict[str, str]:
    """Return Hadoop's properties for one try; see core-default.xml and hdfs-default.xml. Without
    them it would wait for a machine that is off for a quarter of an hour, and with its own
    `dfs.client.retry.policy` for longer: that counts at two levels.
    """
    timeout_ms = f"{timeout_s * 1000:.0f}"
    return {
        "ipc.client.connect.timeout": timeout_ms,
        "ipc.client.rpc-timeout.ms": timeout_ms,
        "ipc.client.connect.max.retries": "0",
        "ipc.client.connect.max.retries.on.timeouts": "0",
        "dfs.client.failover.max.attempts": "3",
        "dfs.client.failover.sleep.max.millis": "1000",
        "dfs.client.socket-timeout": timeout_ms,
        # The name node learns of a file from its data nodes, a moment after its client: asked too
        # early it says "not yet", and the client waits so long (ms), and twice as long each time.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "2",
        "dfs.client.block.write.locateFollowingBlock.retries": "12",
    }
