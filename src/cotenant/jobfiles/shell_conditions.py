"""Which branch of an `if` a shell script takes, as far as its variables tell. Pure, and nothing is run.

Known are tests of texts and integers: `[ -n "$A" ]`, `[[ $A == b ]]`, `test 1 -lt 2`. Of other conditions, such as
tests of files, patterns, and several tests in one, neither branch is excluded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

_BRACKETS = {"[": "]", "[[": "]]"}
_COMPARED = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def truth(words: Sequence[str]) -> bool | None:
    """What a test of known words gives; None: not known, or no test. An empty word: a variable that is empty."""
    first, *words = words
    if first not in (*_BRACKETS, "test"):
        return None
    if first in _BRACKETS and (not words or words.pop() != _BRACKETS[first]):
        return None
    is_negated = words[:1] == ["!"]
    found = _truth(words[1:] if is_negated else words, has_patterns=first == "[[")
    return found if found is None or not is_negated else not found


def _truth(words: list[str], *, has_patterns: bool) -> bool | None:
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return (words[1] != "") == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, how, right = words
    if how in _COMPARED:
        both = _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)
        return bool(_COMPARED[how](int(left), int(right))) if both else None
    if how not in ("=", "==", "!=") or (has_patterns and set(right) & set("*?[")):
        return None
    return (left == right) == (how != "!=")


class Branches:
    """The `if`s around the command that is read."""

    def __init__(self) -> None:
        self._open: list[_If] = []

    @property
    def is_excluded(self) -> bool:
        """Whether a command that is read now does not run."""
        return any(branch.is_excluded for branch in self._open)

    @property
    def in_condition(self) -> bool:
        """Between `if` and `then`."""
        return bool(self._open) and self._open[-1].in_condition

    def keyword(self, word: str) -> None:
        """A keyword was read: `if`, `elif`, `then`, `else` or `fi`."""
        if word == "if":
            self._open.append(_If())
        elif self._open and word == "fi":
            self._open.pop()
        elif self._open:
            self._open[-1].keyword(word)

    def condition(self, value: bool | None) -> None:
        """A command of a condition was read, with its truth."""
        self._open[-1].condition(value)


class _If:
    def __init__(self) -> None:
        self.in_condition = True
        self.is_excluded = False
        self._before: bool | None = False  # whether a branch before this one is taken
        self._values: list[bool | None] = []

    def keyword(self, word: str) -> None:
        if word == "then":
            self.in_condition = False
            value = self._values[0] if len(self._values) == 1 else None  # `[ a ] && [ b ]` is two commands
            self.is_excluded = value is False or self._before is True
            self._before = True if True in (value, self._before) else False if value is self._before is False else None
        else:  # `elif`, `else`
            self.in_condition, self._values = word == "elif", []
            self.is_excluded = self._before is True

    def condition(self, value: bool | None) -> None:
        self._values.append(value)
