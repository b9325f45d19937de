"""The reader, under the name that our tests know: see `connectors.testing.auditor.reader`."""

from connectors.testing.auditor.reader import *  # noqa: F403 - every public name
