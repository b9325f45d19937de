"""Where the Python processes of Spark find our packages.

Spark starts them with ``python -m``. So Python looks first into the folder in which the driver was
started, then into those of PYTHONPATH (the folder of a job file is one of them), and only then
where packages are installed. Many projects have a module of their own that is called `connectors`
or `transactions`. It would be imported in place of ours, and the processes would end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final

import transactions
from transactions.errors import ConfigurationError

#: Our packages, each with a module that no other one has. A copy of ours hides nothing.
_OURS: Final = {"connectors": "spark.data_source", "transactions": "two_phase"}
_PATH: Final = "PYTHONPATH"
#: With it Python leaves out the folder in which it is started (Python 3.11).
_SAFE: Final = "PYTHONSAFEPATH"


def hides_ours(environment: Mapping[str, str], folder: str) -> Path | None:
    """Return the file that Python processes would import in place of one of our packages, if any;
    it can lie in a zip.

    Args:
        environment: of the processes.
        folder: in which they are started.
    """
    first = [] if environment.get(_SAFE) else [folder]
    path = [*first, *filter(None, environment.get(_PATH, "").split(os.pathsep))]
    for name, module in _OURS.items():
        found = PathFinder.find_spec(name, path)
        # A folder without `__init__.py` hides nothing: Python goes on looking.
        if found is not None and found.origin is not None and not _has(found, module):
            return Path(found.origin)
    return None


def _has(package: ModuleSpec, module: str) -> bool:
    """Return whether a module lies in a package, or deeper in it. Nothing is imported."""
    inside: ModuleSpec | None = package
    for part in module.split("."):
        if inside is None or inside.submodule_search_locations is None:
            return False
        inside = PathFinder.find_spec(f"{inside.name}.{part}", inside.submodule_search_locations)
    return inside is not None


def ours_first() -> dict[str, str]:
    """Return what a JVM needs in its environment so that its Python processes find our packages.
    They find all other modules where they would have found them. Nothing where nothing hides ours.
    """
    here, given = str(Path.cwd()), os.environ.get(_PATH, "")
    if hides_ours(os.environ, here) is None:
        return {}
    ours = str(Path(transactions.__file__).parents[1])
    last = "" if os.environ.get(_SAFE) else here
    return {_SAFE: "1", _PATH: os.pathsep.join(filter(None, (ours, given, last)))}


def check_ours_are_found(jvm: Any) -> None:
    """Refuse a JVM whose Python processes would import other packages than ours. On the driver.

    Args:
        jvm: of the session, through py4j.

    Raises:
        ConfigurationError: the user has made the session in such a place.
    """
    system = jvm.java.lang.System
    environment = {name: system.getenv(name) or "" for name in (_SAFE, _PATH)}
    hidden = hides_ours(environment, system.getProperty("user.dir"))
    if hidden is not None:
        raise ConfigurationError(
            "The Python processes of Spark would import another package than sparkonce's.",
            where=str(hidden),
            cause="they look first into the folder in which the driver was started, and into those "
            "of PYTHONPATH",
            option="the name of that module; or the folder in which the driver is started; or make "
            "the session with build_session",
        )
