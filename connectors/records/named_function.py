"""A function that a user names as ``module:name``, and where its module may lie."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transactions.errors import ConfigurationError


def named_function(name: str, *, what: str, option: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: ``module:name``.
        what: what the function is for, as an error begins: "The Arrow function".
        option: the option that names it.

    Raises:
        ConfigurationError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{what} cannot be imported.", where=name, cause=str(error), option=f"{option}={name}"
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"{what} is not a function.",
            where=name,
            cause=f"it is of the type {type(found).__name__}",
            option=f"{option}={name}",
        )
    checked: Callable[..., Any] = found
    return checked


def make_importable(folder: Path) -> None:
    """Let this process, and workers that it starts later, import modules beside a job file."""
    path = str(folder)
    if path not in sys.path:
        sys.path.insert(0, path)
    others = os.environ.get("PYTHONPATH", "")
    if path not in others.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, others)))
