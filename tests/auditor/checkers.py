"""The checkers, under the name that our tests know: see `connectors.testing.auditor.checkers`."""

from connectors.testing.auditor.checkers import *  # noqa: F403 - every public name
