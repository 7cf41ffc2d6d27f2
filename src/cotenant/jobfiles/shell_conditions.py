"""Which branch of an `if` a shell script takes, as far as its variables tell. Pure, and nothing is run.

Known are tests of texts and integers: `[ -n "$A" ]`, `[[ $A == b ]]`, `[[ $A =~ ^b ]]`, `test 1 -lt 2`, `true`, and
tests joined by `&&` and `||`. Of other conditions, such as tests of files and patterns, neither branch is excluded.
`Cases` does the same for `case`.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

_BRACKETS = {"[": "]", "[[": "]]"}
_COMPARED = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_FINDERS = frozenset(("command", "hash", "type", "which"))
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_REGULAR_EXPRESSION = re.compile(r"[\w^$.@%+/-]{1,80}", re.ASCII)  # in these, Python and a shell agree
_MAX_JOINED = 60  # words of a test that joins others
_CASE = re.compile(r"\s*case\s+(\S+|\"[^\"]*\")\s+in(?:\s+(.*)|\s*)")
_PATTERN = re.compile(r"\s*\(?([^()#]*)\)(.*)")


def joined(first: bool | None, separator: str, second: bool | None) -> bool | None:
    """The truth of two commands with `&&` or `||` between them; of other separators it is the second's."""
    if separator == "&&":
        return False if False in (first, second) else None if None in (first, second) else True
    if separator == "||":
        return True if True in (first, second) else None if None in (first, second) else False
    return second


def truth(words: Sequence[str]) -> bool | None:
    """What a test of known words gives; None: not known, or no test. An empty word: a variable that is empty."""
    first, *words = words
    if first in ("true", "false", ":"):
        return first != "false"
    if first in _FINDERS and words[-1:] == ["nvidia-smi"]:  # the script is for a machine with GPUs
        return True
    if first not in (*_BRACKETS, "test"):
        return None
    if first in _BRACKETS and (not words or words.pop() != _BRACKETS[first]):
        return None
    for separator in ("||", "&&") if first == "[[" else ():
        if separator in words and len(words) < _MAX_JOINED:
            place = len(words) - 1 - words[::-1].index(separator)
            left, right = (["[[", *part, "]]"] for part in (words[:place], words[place + 1 :]))
            return joined(truth(left), separator, truth(right))
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
    if how == "=~":
        return re.search(right, left) is not None if _REGULAR_EXPRESSION.fullmatch(right) else None
    if how in ("<", ">"):
        return left < right if how == "<" else left > right
    if how not in ("=", "==", "!=") or (has_patterns and set(right) & set("*?[")):
        return None
    return (left == right) == (how != "!=")


class _Alternatives(Protocol):
    """One `if` or `case`: whether the part that is read does not run, and whether it runs for sure."""

    is_excluded: bool
    is_certain: bool


_Kind = TypeVar("_Kind", bound=_Alternatives)


class _Nested(Generic[_Kind]):
    """Those that are open around the command that is read, the innermost last."""

    def __init__(self) -> None:
        self._open: list[_Kind] = []

    @property
    def is_excluded(self) -> bool:
        """Whether a command that is read now does not run."""
        return any(opened.is_excluded for opened in self._open)

    @property
    def is_certain(self) -> bool:
        """Whether a command that is read now runs for sure."""
        return all(opened.is_certain for opened in self._open)

    @property
    def depth(self) -> int:
        """How many are open."""
        return len(self._open)

    def leave(self, depth: int) -> None:
        """Forget those that were opened since there were `depth`: a loop was left in them."""
        del self._open[depth:]


class Branches(_Nested["_If"]):
    """The `if`s around the command that is read."""

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

    def condition(self, value: bool | None, separator: str) -> None:
        """A command of a condition was read, with its truth and what stands before it."""
        self._open[-1].condition(value, separator)


class _If:
    def __init__(self) -> None:
        self.in_condition = True
        self.is_excluded = False
        self.is_certain = True
        self._before: bool | None = False  # whether a branch before this one is taken
        self._value: bool | None = True
        self._is_first = True

    def keyword(self, word: str) -> None:
        if word == "then":
            self.in_condition = False
            value = self._value
            self.is_excluded = value is False or self._before is True
            self.is_certain = value is True and self._before is False
            self._before = True if True in (value, self._before) else False if value is self._before is False else None
        else:  # `elif`, `else`
            self.in_condition, self._is_first = word == "elif", True
            self.is_excluded = self._before is True
            self.is_certain = self._before is False

    def condition(self, value: bool | None, separator: str) -> None:
        self._value = value if self._is_first else joined(self._value, separator, value)
        self._is_first = False


class Cases(_Nested["_Case"]):
    """The `case`s around the command that is read: the arms that their words exclude."""

    def commands(self, line: str, value: Callable[[str], str | None]) -> Iterator[str]:
        """The parts of a line that hold commands, without `case`, patterns, `;;` and `esac`.

        `value`: of the word that `case` matches. Each part must be read before the next one is taken.
        """
        if match := _CASE.fullmatch(line):
            self._open.append(_Case(value(match[1])))
            line = match[2] or ""
        if not self._open:
            yield line
            return
        for place, part in enumerate(line.split(";;")):
            if place:
                self._open[-1].end_arm()
            rest = part
            if self._open[-1].awaits_pattern:
                if part.strip().startswith("esac"):
                    self._open.pop()
                    yield part.strip().removeprefix("esac")
                    return
                match = _PATTERN.fullmatch(part)
                if match is None:
                    continue
                self._open[-1].pattern(match[1])
                rest = match[2]
            elif part.strip() == "esac":  # the last arm needs no `;;`
                self._open.pop()
                return
            yield rest


class _Case:
    def __init__(self, value: str | None) -> None:
        self._value = value
        self.is_certain = value is not None
        self._is_taken = False  # whether an arm before this one is
        self.awaits_pattern = True
        self.is_excluded = False

    def pattern(self, text: str) -> None:
        self.awaits_pattern = False
        patterns = [part.strip().strip("\"'") for part in text.split("|")]
        if self._value is None or "$" in text:
            return
        fits = any(fnmatch.fnmatchcase(self._value, pattern) for pattern in patterns)
        self.is_excluded = self._is_taken or not fits
        self._is_taken |= fits

    def end_arm(self) -> None:
        self.awaits_pattern, self.is_excluded = True, False
