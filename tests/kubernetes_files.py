"""The manifests of examples/kubernetes, as an API server gets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Document = dict[str, Any]

FOLDER: Final = Path(__file__).parents[1] / "examples" / "kubernetes"


def documents(text: str) -> list[Document]:
    """Return the documents of a file."""
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(text: str, kind: str) -> Document:
    """Return the only document of this kind."""
    (found,) = (one for one in documents(text) if one["kind"] == kind)
    return found


def pods(text: str) -> Iterator[Document]:
    """Yield each pod, or template of a pod, of a file; the driver's is the first."""
    found = documents(text)
    for one in found:
        match one["kind"]:
            case "Deployment":
                yield one["spec"]["template"]
            case "SparkApplication":
                yield one["spec"]["driver"]["template"]
                yield one["spec"]["executor"]["template"]
    for one in found:
        if one["kind"] == "ConfigMap" and "executor.yaml" in one["data"]:
            yield yaml.safe_load(one["data"]["executor.yaml"])
