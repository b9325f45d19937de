"""Every error of the project, and what to do about each.

::

    SparkOnceError                    base; its text always has four parts
    ├── ConfigurationError            an error before any data moved; never retried; exit code 2
    │   ├── SavepointError            a savepoint is broken, or does not fit the pipeline
    │   │   └── SavepointNotMadeError it could not be made now; no option is wrong; exit code 1
    │   ├── IdentityMismatchError     the checkpoint belongs to another application or topology
    │   ├── MissingTopicError         a topic that the pipeline names does not exist
    │   └── AuthenticationError       the broker refused the credentials, or a right is missing
    ├── DecisionLogError              the log cannot be written or read now; a restart may help
    │   ├── LogCorruptedError         an entry is torn, missing, or fails its checksum
    │   └── LogVersionError           an entry was written by a newer version of sparkonce
    ├── FencedError                   a newer run owns the log: this run stops
    ├── StoppedError                  stop() was called: the attempt ends before its decision
    ├── PhaseOneError                 an attempt failed before its decision; nothing is visible
    │   ├── InitInDoubtError          a copy of InitProducerId may be under way: take another id
    │   ├── CheckpointTimeoutError    the Spark job of a batch was stuck, and was cancelled
    │   └── DeliveryError             the broker refused, or never acknowledged, a record
    │       └── RecordRefusedError    the broker will never accept the record: too large, no topic
    ├── OutcomeUnknownError           a decided transaction whose outcome was not known in time
    ├── TransactionLostError          a decided transaction was aborted by the broker: heal it
    ├── HiddenCommitError             committed, but the broker still hides it from readers
    ├── ReplayMismatchError           Spark replays a decided batch with other offsets
    ├── DataLossError                 source offsets that the checkpoint still needs are gone
    ├── BrokerUnavailableError        no broker answered within the deadline; safe to retry
    │   └── TokenUnavailableError     no token for the login could be had now; safe to retry
    └── IllegalTransitionError        a bug in sparkonce: the two-phase table has no such step

`permanent` says that trying again cannot help.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final
from urllib.parse import urlsplit

#: What to do about a checkpoint folder that cannot be used. Not "restore a backup": what is newer
#: than the backup would be written a second time.
WAY_BACK: Final = (
    "--from-savepoint=NEWEST into an empty folder, or another app_id that begins at the offsets of "
    "this app_id's consumer group. A start refuses an older copy of the folder, because it would "
    "write newer records again"
)


def without_secrets(url: str) -> str:
    """Return an address as an error may show it: without a password and parameters."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    return parts._replace(netloc=host, query="", fragment="").geturl()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the cause for an error about an unknown name: the name that was probably meant, or all
    that there are.

    Args:
        name: what was written; upper and lower case are the same.
        known: the names that there are.
    """
    names = [*known]
    return probably_meant(name, names) or f"known: {', '.join(names)}"


def probably_meant(name: str, known: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, "" if none is near."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else ""


class SparkOnceError(Exception):
    """Base of all errors; the text says what failed, where, why, and which option to look at.

    Args:
        what: what failed, as one sentence.
        where: which id, checkpoint, partition or file.
        cause: the likely cause.
        option: the option to look at, with its present value (``name=value``).
    """

    permanent: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", cause: str = "", option: str = "") -> None:
        self.what = what
        self.where = where
        self.cause = cause
        self.option = option
        super().__init__(what, where, cause, option)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by keyword, so that an error raised in a Python worker arrives whole."""
        return (_rebuild, (type(self), self.what, self.where, self.cause, self.option))

    def __str__(self) -> str:
        """Return the four parts, one line each, without the empty ones."""
        parts = [self.what]
        parts += [f"  where:  {self.where}"] if self.where else []
        parts += [f"  cause:  {self.cause}"] if self.cause else []
        parts += [f"  look at: {self.option}"] if self.option else []
        return "\n".join(parts)


def _rebuild(
    kind: type[SparkOnceError], what: str, where: str, cause: str, option: str
) -> SparkOnceError:
    return kind(what, where=where, cause=cause, option=option)


class ConfigurationError(SparkOnceError):
    """An option is unknown, missing, contradictory or would break the guarantee. Correct it."""

    permanent = True


class IdentityMismatchError(ConfigurationError):
    """The checkpoint was written under other identity options. Use its own, or a new folder."""


class SavepointError(ConfigurationError):
    """A savepoint is broken, or is not one of this pipeline. Nothing was restored or changed."""


class SavepointNotMadeError(SavepointError):
    """No savepoint was made: a disk, a driver or the pipeline itself was not ready. Try again."""

    permanent = False


class MissingTopicError(ConfigurationError):
    """A topic named by the pipeline does not exist. Create it, or correct the name."""


class AuthenticationError(ConfigurationError):
    """The broker refused the credentials, or the principal lacks a right. Correct `kafka.*`."""


class DecisionLogError(SparkOnceError):
    """The decision log could not be written or read. Nothing was aborted; the next run goes on."""


class LogCorruptedError(DecisionLogError):
    """An entry of the decision log is torn, missing or altered. Begin again from a savepoint."""

    permanent = True


class LogVersionError(DecisionLogError):
    """An entry was written by a newer sparkonce. Upgrade before running on this checkpoint."""

    permanent = True


class FencedError(SparkOnceError):
    """A newer run owns this checkpoint. This run has stopped and will commit nothing more."""

    permanent = True


class StoppedError(SparkOnceError):
    """A stop was asked for. The attempt ended before its decision and will be replayed."""

    permanent = True


class PhaseOneError(SparkOnceError):
    """An attempt failed before the decision. Nothing of it is or will be visible."""


class InitInDoubtError(PhaseOneError):
    """A copy of InitProducerId may be under way: this transactional id must not be used."""


class CheckpointTimeoutError(PhaseOneError):
    """The job of a batch took longer than a checkpoint may, and was cancelled."""


class DeliveryError(PhaseOneError):
    """A record was refused or not acknowledged, so its transaction must not be committed."""


class RecordRefusedError(DeliveryError):
    """A record can never be written as it is: correct it, drop it, or raise the broker's limit."""

    permanent = True


class OutcomeUnknownError(SparkOnceError):
    """A decided transaction is neither proven committed nor aborted yet. A restart settles it."""


class TransactionLostError(SparkOnceError):
    """A person or the broker aborted a decided transaction; its records must be produced again."""

    permanent = True


class HiddenCommitError(SparkOnceError):
    """Committed records are hidden: a partition has no marker, and none will come by itself.

    No record is lost as long as nobody aborts under the same producer id. A person with rights on
    the cluster writes the marker: ``sparkonce transactions write-markers``.
    """

    permanent = True


class ReplayMismatchError(SparkOnceError):
    """Spark replays a decided checkpoint with another query or other offsets. Do not go on."""

    permanent = True


class DataLossError(SparkOnceError):
    """Records that the checkpoint still needs are gone from the source topic."""

    permanent = True


class BrokerUnavailableError(SparkOnceError):
    """No broker answered in time. Nothing is lost; try again when it is back."""


class TokenUnavailableError(BrokerUnavailableError):
    """Who gives the tokens of a login did not answer in time. Nothing is lost; try again later."""


class IllegalTransitionError(SparkOnceError):
    """A bug in sparkonce: a transaction met an event that its state does not allow. Report it."""

    permanent = True
