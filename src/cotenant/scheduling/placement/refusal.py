"""What a rule answers that does not admit a job to a GPU.

A module of its own: gates, rules and pairings return it, and import nothing of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class Refusal:
    """Why a GPU does not admit a job now.

    Decisions create refusals by the million and show few of them, so the text is made on request.

    Attributes:
        rule: name of what failed, e.g. `insufficient_memory`.
        opens_at_s: when the rule admits the job if nothing changes; infinite if only a change of the GPU can help.
    """

    __slots__ = ("_arguments", "_text", "opens_at_s", "rule")

    def __init__(self, rule: str, text: Callable[..., str], opens_at_s: float = math.inf, *arguments: object) -> None:
        """`text(*arguments)` gives a sentence with the numbers. A closure per refusal would cost more than the rest."""
        self.rule = rule
        self.opens_at_s = opens_at_s
        self._text = text
        self._arguments = arguments

    @property
    def reason(self) -> str:
        """A sentence with the numbers: what was found, and the limit."""
        return self._text(*self._arguments)
