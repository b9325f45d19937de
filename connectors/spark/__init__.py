"""Spark adapters: the session, the drivers of both modes, the data source `kafka-exactly-once`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.pipeline.restoring import FromSavepoint
    from connectors.spark.continuous_driver import ContinuousDriver
    from connectors.spark.data_source import register
    from connectors.spark.pipeline import arrow_pipeline
    from connectors.spark.session import build_session
    from connectors.spark.streaming_driver import StreamingDriver

__all__ = [
    "ContinuousDriver",
    "FromSavepoint",
    "StreamingDriver",
    "arrow_pipeline",
    "build_session",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import on first use: a Python worker loads the stage that it runs, not the driver."""
    match name:
        case "ContinuousDriver":
            from connectors.spark.continuous_driver import ContinuousDriver  # noqa: PLC0415

            return ContinuousDriver
        case "FromSavepoint":
            from connectors.pipeline.restoring import FromSavepoint  # noqa: PLC0415

            return FromSavepoint
        case "StreamingDriver":
            from connectors.spark.streaming_driver import StreamingDriver  # noqa: PLC0415

            return StreamingDriver
        case "arrow_pipeline":
            from connectors.spark.pipeline import arrow_pipeline  # noqa: PLC0415

            return arrow_pipeline
        case "build_session":
            from connectors.spark.session import build_session  # noqa: PLC0415

            return build_session
        case "register":
            from connectors.spark.data_source import register  # noqa: PLC0415

            return register
    raise AttributeError(name)
