"""How `sparkonce doctor --acls` shows rights: as commands for a shell, as data for programs.

What a job file says is quoted in comments as well: an interactive zsh knows no comments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectors.doctor.acl_table import AclRule
    from connectors.doctor.acls import Grant

_PLACEHOLDER = "User:PRINCIPAL"


def commands(app_id: str, grants: Sequence[Grant]) -> str:
    """Return commands of Kafka that give the rights. All else is a comment.

    Args:
        app_id: the application.
        grants: its rights.
    """
    return "\n".join(_lines(app_id, grants))


def _lines(app_id: str, grants: Sequence[Grant]) -> Iterator[str]:
    yield _comment(
        f"The ACLs of the application {app_id}. admin.properties is the login of somebody who may "
        "change ACLs: ALTER on the cluster."
    )
    for one in grants:
        principal = one.principal or _PLACEHOLDER
        yield ""
        place = f"{shlex.quote(principal)} on {shlex.quote(one.bootstrap)}"
        yield _comment(f"{', '.join(one.used_by)}: {place}")
        if not one.principal:
            yield _comment(f"note: {_PLACEHOLDER} stands for the principal of this login")
        for note in one.notes:
            yield _comment(f"note: {note}")
        for rule in one.rules:
            yield _comment(rule.reason)
            yield _command(one.bootstrap, principal, rule)


def _command(bootstrap: str, principal: str, rule: AclRule) -> str:
    resource = [f"--{rule.resource_type.lower().replace('_', '-')}"]
    if rule.resource_type != "CLUSTER":  # there is one, without a name
        resource.append(rule.name)
    if rule.pattern_type == "PREFIXED":
        resource += ["--resource-pattern-type", "prefixed"]
    operations = [
        word
        for one in rule.operations
        for word in ("--operation", one.title().replace("_", ""))  # DESCRIBE_CONFIGS
    ]
    whom = ["--bootstrap-server", bootstrap, "--command-config", "admin.properties", "--add"]
    what = ["--allow-principal", principal, *operations, *resource]
    return f"kafka-acls.sh {shlex.join(whom)} \\\n  {shlex.join(what)}"


def _comment(text: str) -> str:
    """Return one line, whatever a job file says: what stood in a second line would be a command."""
    return "# " + "".join(one if one.isprintable() else " " for one in text)


def to_json(app_id: str, grants: Sequence[Grant]) -> str:
    """Return the rights as indented JSON; a principal that no login says is null."""
    import orjson

    clusters = [
        {
            "bootstrap": one.bootstrap,
            "principal": one.principal or None,
            "used_by": one.used_by,
            "acls": one.rules,
            "notes": one.notes,
        }
        for one in grants
    ]
    found = {"application": app_id, "clusters": clusters}
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
