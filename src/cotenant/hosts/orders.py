"""What the agents of hosts were ordered: the attempts that they have not ended, and the answers that they owe."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.hosts.messages import PID_BITS, MalformedMessage

ANSWER_TIMEOUT_S = 10.0


@dataclass(slots=True, kw_only=True)
class OpenAttempt:
    """An attempt that has not ended.

    Attributes:
        order: the order to launch it, until its start is known; None for one of an earlier daemon.
        stop: the order to stop it, if there is one: the next agent gets it again.
        since_s: no time of its host is before this.
    """

    host: str
    order: Mapping[str, Any] | None
    since_s: float
    stop: Mapping[str, Any] | None = None
    start_reported: bool = False


class Answers:
    """Counts that agents are to answer, each by the `id` of an order. Only the host that got an order can answer it."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._answers: dict[int, tuple[str, int | None]] = {}
        self._answered = threading.Condition()

    def expect(self, host: str) -> int:
        """The id of a new order to `host`. Call `forget` or `wait` later."""
        with self._answered:
            number = next(self._ids)
            self._answers[number] = (host, None)
            return number

    def forget(self, number: int) -> None:
        """The order could not be sent."""
        with self._answered:
            self._answers.pop(number, None)

    def wait(self, number: int) -> int:
        """The answer; 0 if there is none within `ANSWER_TIMEOUT_S`."""
        with self._answered:
            self._answered.wait_for(lambda: self._answers[number][1] is not None, ANSWER_TIMEOUT_S)
            return self._answers.pop(number)[1] or 0

    def take(self, host: str, message: Mapping[str, Any]) -> None:
        """An agent answers; one that nobody waits for any more is ignored.

        Raises:
            MalformedMessage: it is no answer.
        """
        number, count = message.get("id"), message.get("count")
        if type(number) is not int or type(count) is not int or not 0 <= count < 2**PID_BITS:
            raise MalformedMessage("an answer has no number")
        with self._answered:
            if self._answers.get(number) == (host, None):
                self._answers[number] = (host, count)
                self._answered.notify_all()
