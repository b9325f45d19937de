"""One setting of a broker, in the broker's own text."""

from __future__ import annotations

from connectors.wire import broker_answers, wire_requests
from connectors.wire.backoff import Backoff
from connectors.wire.broker_answers import Meaning, Request
from connectors.wire.wire_client import AnswerLostError, NotSentError, WireClient
from transactions.clock import Deadline


async def read_setting(wire: WireClient, name: str, deadline: Deadline) -> str:
    """Ask any broker; repeat this until one answers.

    Raises:
        ConfigurationError: the broker has no such setting.
        BrokerUnavailableError: no answer before the deadline.
        AuthenticationError: DESCRIBE_CONFIGS on the cluster is missing.
    """
    backoff = Backoff(wire, deadline)
    while True:
        try:
            node = await wire.any_broker()
            response = await wire.send(node, wire_requests.describe_configs(node, name), deadline)
        except (NotSentError, AnswerLostError) as error:
            reason = str(error)
        else:
            result = response.results[0]
            answer = broker_answers.read(Request.DESCRIBE_CONFIGS, result.error_code)
            wire.raise_permanent(Request.DESCRIBE_CONFIGS, answer, name)
            if answer.meaning is Meaning.DONE:
                return wire_requests.one_setting(name, result.configs)
            reason = str(answer)
        if not await backoff.again():
            raise wire.unavailable(reason)
