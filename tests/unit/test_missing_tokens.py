"""A client whose login gets no new token: what may pass, and what may not."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from connectors.clients.client_errors import ErrorWatch, translate
from transactions.errors import AuthenticationError, TokenUnavailableError
from transactions.restart_strategy import is_retried

NO_TOKEN = KafkaError(
    KafkaError._AUTHENTICATION,
    "Failed to acquire SASL OAUTHBEARER token: Could not connect to server",
)
REFUSED = KafkaError(
    KafkaError._AUTHENTICATION,
    'b:1/1: SASL authentication error: {"status":"invalid_token"} (after 3ms in state AUTH_REQ)',
)
NO_RIGHT = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([NO_TOKEN], None),  # the old token is still good for a fifth of its life
        ([REFUSED], AuthenticationError),
        ([NO_TOKEN, REFUSED], TokenUnavailableError),
        ([REFUSED, NO_TOKEN], AuthenticationError),
        ([NO_TOKEN, NO_RIGHT], AuthenticationError),
    ],
)
def test_a_missing_token_may_pass_and_a_refused_login_may_not(errors, kind):
    watch = ErrorWatch()
    for error in errors:
        watch(error)
    if kind is None:
        assert watch.final is None
        assert "Could not connect" in watch.describe()
        return
    told = translate(watch.final, "in [0]", {})
    assert type(told) is kind
    assert told.cause
    assert is_retried(told) is (kind is TokenUnavailableError)
