"""Spark adapters: the session, the drivers of both modes, the data source `kafka-exactly-once`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.pipeline.restoring import FromSavepoint
    from connectors.spark.batch_writer import BatchWriter
    from connectors.spark.continuous_driver import ContinuousDriver
    from connectors.spark.data_source import register
    from connectors.spark.pipeline import arrow_pipeline
    from connectors.spark.session import build_session
    from connectors.spark.streaming_driver import StreamingDriver

__all__ = [
    "BatchWriter",
    "ContinuousDriver",
    "FromSavepoint",
    "StreamingDriver",
    "arrow_pipeline",
    "build_session",
    "register",
]

_MODULES = {
    "BatchWriter": "connectors.spark.batch_writer",
    "ContinuousDriver": "connectors.spark.continuous_driver",
    "FromSavepoint": "connectors.pipeline.restoring",
    "StreamingDriver": "connectors.spark.streaming_driver",
    "arrow_pipeline": "connectors.spark.pipeline",
    "build_session": "connectors.spark.session",
    "register": "connectors.spark.data_source",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a Python worker loads the stage that it runs, not the driver."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(_MODULES[name]), name)
