"""Questions of one source to its brokers, repeated until they are answered or time is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from connectors.clients import client_errors
from connectors.clients.client_errors import ErrorWatch
from connectors.clients.client_settings import admin_client
from connectors.options.kafka_source import KafkaSource
from transactions.clock import Clock, Deadline

_PLANNING_TIMEOUT_S: Final = 30.0
_FIRST_TIMEOUT_S: Final = 2.5
_REQUEST_TIMEOUT_S: Final = 10.0
_RETRY_PAUSE_S: Final = 0.1

Trouble = Callable[[Mapping[Any, Any]], KafkaError | None]
"""From the answers by key to the first error that they contain, None if all are answers."""


class SourceQuestions:
    """Asks with an admin client; connects at the first question.

    Args:
        source: has the brokers, and how long they may be silent.
        clock: time source.
    """

    def __init__(self, source: KafkaSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._admin: AdminClient | None = None
        self._trouble = ErrorWatch()

    def ask(
        self,
        where: str,
        request: Callable[[AdminClient, float], Mapping[Any, Any]],
        trouble_in: Trouble | None = None,
    ) -> dict[Any, Any]:
        """Send one admin request and wait for all of its answers; try again until the deadline.

        After a failed try comes a new client: librdkafka's client keeps the leader epochs and the
        controller that it knows, and asks for them even after they are gone (its issue 4620; seen).

        Args:
            where: what is asked about, for error texts.
            request: sends it with a client and a timeout in seconds; returns the futures by key.
            trouble_in: finds an error in answers that librdkafka calls good ones.

        Raises:
            SparkOnceError: no answer in time, or an error that no other try can cure.
        """
        settings = self._source.client_settings
        deadline = self.deadline()
        patience = _FIRST_TIMEOUT_S
        while True:
            admin = self._client()
            try:
                futures = request(admin, min(patience, deadline.seconds))
                answers = {key: future.result() for key, future in futures.items()}
                if trouble_in and (trouble := trouble_in(answers)):
                    raise KafkaException(trouble)  # noqa: TRY301 - one way to try again
                return answers
            except KafkaException as failure:
                admin.poll(0)
                error = self._trouble.final or self._trouble.lacking or failure.args[0]
                if client_errors.is_final(error) or deadline.expired():
                    raise client_errors.translate(error, where, settings) from failure
                deadline.pause(_RETRY_PAUSE_S)
                self._admin = None
                patience = min(2 * patience, _REQUEST_TIMEOUT_S)

    def deadline(self) -> Deadline:
        """Return when a question that is asked now is given up."""
        longest = min(_PLANNING_TIMEOUT_S, self._source.poll_timeout_ms / 1000)
        return Deadline(longest, self._clock)

    def _client(self) -> AdminClient:
        """Return the client of the next question; what was met before says nothing about that."""
        lacked = self._trouble.lacking
        if self._admin is not None:
            self._admin.poll(0)  # or the question would serve what was met since the last one
        self._trouble.forget()  # before there is a new client: that says each reason only once
        if self._admin is None:
            self._admin = admin_client(
                self._source.client_settings,
                # The client of the try before has found that it gets no token: an earlier answer
                # says nothing any more.
                newer_than_s=0.0 if lacked else 60.0,
                error_cb=self._trouble,
            )
        return self._admin
