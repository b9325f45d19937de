"""Which rows of the table of rights a job needs, for each principal on each cluster. Pure: nothing
here connects.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.clients.login import NAMES, named_user
from connectors.doctor.acl_table import (
    APP,
    BEGINNING,
    GROUP,
    INPUT,
    OF_APP,
    OUTPUT,
    TABLE,
    AclRule,
    Role,
    merged,
)
from connectors.doctor.topic_pattern import beginnings
from connectors.kafka.sink.kafka_sink import KafkaSink, kafka_sinks, offsets_sink
from connectors.options.client_options import servers_of
from connectors.options.job_definition import JobDefinition
from connectors.options.kafka_source import KafkaSource

_SOURCE: Final = "source"
_EVERYTHING: Final = "*"

#: A login that has no name in a job file -> what a broker calls it.
_UNNAMED: Final = {
    "PLAINTEXT": "the job does not log in: a broker calls it User:ANONYMOUS, like all who do not, "
    "and a right of this name is a right of all. Let the job log in first",
    "SSL": "the principal is the subject of the certificate of the job, as the brokers map it "
    "(ssl.principal.mapping.rules): User:CN=flights",
    "OAUTHBEARER": "the principal is the claim sub of its tokens, or the claim that the brokers "
    "take (sasl.oauthbearer.sub.claim.name): User:flights",
    "GSSAPI": "the principal is the first part of its Kerberos name, or what the brokers make of "
    "it (sasl.kerberos.principal.to.local.rules): User:flights",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What one principal needs on one cluster.

    Attributes:
        bootstrap: the brokers, as the job names them.
        principal: ``User:name``; "" if the login does not say it.
        used_by: who has this login in the job.
        rules: its rights, in the order of `TABLE`.
        notes: what no rule can say.
    """

    bootstrap: str
    principal: str
    used_by: tuple[str, ...]
    rules: tuple[AclRule, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """A source or a sink: its login, what that is used for, and its names for those in `TABLE`."""

    who: str
    settings: Mapping[str, str]
    roles: set[Role]
    names: Mapping[str, Sequence[str]]
    notes: list[str]


def acls_of(job: JobDefinition, principal: str = "") -> list[Grant]:
    """Return what each principal of a job needs on each cluster. Both modes need the same.

    Args:
        job: the job.
        principal: of all its logins; "" takes what each of them says.

    Raises:
        ConfigurationError: a login cannot be read.
    """
    sinks = kafka_sinks(job.targets)
    carrier = offsets_sink(sinks, job.source.bootstrap_servers)
    uses = [_of_source(job.source, carrier), *(_of_sink(one, carrier, job.source) for one in sinks)]
    groups: dict[object, list[_Use]] = {}
    for one in uses:
        groups.setdefault(_identity(one.settings, principal), []).append(one)
    return [_grant(job.app_id, here, principal) for here in groups.values()]


def _of_source(source: KafkaSource, carrier: KafkaSink | None) -> _Use:
    roles, names = {Role.READER}, _inputs(source)
    if carrier is None:
        roles.add(Role.LAG)
    if source.starting_group is not None:
        roles.add(Role.STARTING_GROUP)
        names[GROUP] = (source.starting_group,)
    return _Use(_SOURCE, source.client_settings, roles, names, _notes_on_pattern(source, names))


def _of_sink(sink: KafkaSink, carrier: KafkaSink | None, source: KafkaSource) -> _Use:
    roles = {Role.TRANSACTIONS if sink.is_transactional else Role.PLAIN}
    names: dict[str, Sequence[str]] = {OUTPUT: (sink.topic,) if sink.topic else ()}
    notes = []
    if sink is carrier:
        roles.add(Role.READER)
        names |= _inputs(source)
        notes += _notes_on_pattern(source, names)
    elif sink.is_transactional and carrier is None:
        notes.append(
            f"sink {sink.name!r} names other brokers than the source. If both are one cluster, "
            "name them alike and do this again: its transactions then carry the source offsets, "
            "and its principal must read the inputs"
        )
    if sink.topic is None:
        rights = "READ and WRITE" if sink.is_transactional else "WRITE"
        notes.append(
            f"the rows of sink {sink.name!r} name their topics, and the job file does not: it also "
            f"needs {rights} on each of them"
        )
    return _Use(f"sink {sink.name!r}", sink.settings, roles, names, notes)


def _grant(app_id: str, uses: Sequence[_Use], principal: str) -> Grant:
    """Put together what is used with one login."""
    method, user = named_user(uses[0].settings)
    who = principal or (user and f"User:{user}")
    notes = [] if who else [_UNNAMED[method]]
    notes += itertools.chain.from_iterable(one.notes for one in uses)
    if uses[0].who == _SOURCE and not any(
        one.roles & {Role.TRANSACTIONS, Role.LAG} for one in uses
    ):
        notes.append(f"sparkonce run --from-savepoint also needs DESCRIBE on the group {app_id}")
    of_app = {APP: (app_id,), OF_APP: (f"{app_id}.",)}
    rules = [
        dataclasses.replace(rule, name=name)
        for role, rule in TABLE
        for one in uses
        if role in one.roles
        for name in {**of_app, **one.names}.get(rule.name, (rule.name,))
    ]
    return Grant(
        bootstrap=",".join(one.strip() for one in uses[0].settings["bootstrap.servers"].split(",")),
        principal=who,
        used_by=tuple(one.who for one in uses),
        rules=tuple(merged(rules)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _identity(settings: Mapping[str, str], principal: str) -> object:
    """Return what two logins have in common that are one principal on one cluster."""
    who = principal or named_user(settings)[1]
    login = frozenset((name, value) for name, value in settings.items() if name in NAMES)
    return servers_of(settings["bootstrap.servers"]), who or login


def _inputs(source: KafkaSource) -> dict[str, Sequence[str]]:
    if source.subscribe_pattern is None:
        return {INPUT: source.topics, BEGINNING: ()}
    found = [*beginnings(source.subscribe_pattern)]
    if ("", False) in found:
        return {INPUT: (_EVERYTHING,), BEGINNING: ()}
    return {
        INPUT: [text for text, is_whole in found if is_whole and text],
        BEGINNING: [text for text, is_whole in found if not is_whole],
    }


def _notes_on_pattern(source: KafkaSource, names: Mapping[str, Sequence[str]]) -> list[str]:
    everything = _EVERYTHING in names[INPUT]
    if source.subscribe_pattern is None or not (everything or names[BEGINNING]):
        return []
    which = "every topic of the cluster" if everything else "all topics that begin like it"
    return [
        f"ACLs know no regular expression. For {shlex.quote(source.subscribe_pattern)} they allow "
        f"{which}: that is wider. To allow less, give READ on single topics in their place: a "
        "topic without the right is not there for the source, and no error says so"
    ]
