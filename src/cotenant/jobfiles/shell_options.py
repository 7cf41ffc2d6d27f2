"""The options of a shell script: loops over its arguments, `getopts`, and Kaldi's `parse_options.sh`. Pure.

`while [ $# -gt 0 ]; do case $1 in --lr) LR=$2; shift 2 ;; ...` is the commonest way to read them. Other loops are not
repeated: what they start differs in a seed or a size, and once stands for all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Line = tuple[int, str]

_WHILE = re.compile(r"\s*(while|until)\s+(.+?)\s*(?:;\s*do)?\s*")
_FOR = re.compile(r"\s*for\s+(\w+)(?:\s+in\s+\"?\$(?:[@*]|\{@\})\"?)?\s*(?:;\s*do)?\s*")
_OPENS = re.compile(r"\s*(while|until|for|select)\b")
_DONE = re.compile(r"\s*done\b")
_READS_ARGUMENTS = re.compile(r"\s*(.*;\s*)?(shift|case)\b")
_NO_VARIABLE = re.compile(r"\W")


class ArgumentLoop:
    """A loop over the arguments of the script.

    Attributes:
        condition: what `while` tests; empty: a `for` over the arguments.
        is_until: the loop goes on until the condition is true.
        variable: of a `for`.
        body: its lines.
        end: the place of `done` among the lines.
    """

    def __init__(self, *, condition: str, is_until: bool, variable: str, body: Sequence[Line], end: int) -> None:
        self.condition = condition
        self.is_until = is_until
        self.variable = variable
        self.body = body
        self.end = end


def argument_loop(lines: Sequence[Line], place: int) -> ArgumentLoop | None:
    """The loop over the arguments that begins at a place; None: no loop does, or one of another kind."""
    line = lines[place][1]
    match = _WHILE.fullmatch(line) or _FOR.fullmatch(line)
    end = None if match is None else _end(lines, place)
    if match is None or end is None:
        return None
    body = lines[place + 1 : end]
    is_for = match.re is _FOR
    if "getopts" not in line and not any(_READS_ARGUMENTS.match(text) for _, text in body):
        return None
    if body and body[0][1].strip() == "do":
        body = body[1:]
    return ArgumentLoop(
        condition="" if is_for else match[2],
        is_until=match[1] == "until",
        variable=match[1] if is_for else "",
        body=body,
        end=end,
    )


def _end(lines: Sequence[Line], place: int) -> int | None:
    depth = 0
    for at in range(place, len(lines)):
        text = lines[at][1]
        if _OPENS.match(text) and "done" not in text:
            depth += 1
        elif _DONE.match(text):
            depth -= 1
            if depth == 0:
                return at
    return None


class Getopts:
    """The state of `getopts`: which argument it reads next."""

    def __init__(self) -> None:
        self._at = 0
        self._letter = 1

    @property
    def next_argument(self) -> int:
        """`$OPTIND`."""
        return self._at + 1

    def read(self, letters: str, arguments: Sequence[str]) -> tuple[str, str] | None:
        """The next option and its value; None: there is no further one. `letters`: as in `getopts a:b`."""
        word = arguments[self._at] if self._at < len(arguments) else ""
        if len(word) < 2 or word[0] != "-" or word == "--":
            self._at += word == "--"
            return None
        letter, rest = word[self._letter], word[self._letter + 1 :]
        known = letters.partition(letter)
        if rest and not known[2].startswith(":"):
            self._letter += 1
            return (letter if known[1] else "?"), ""
        self._at, self._letter = self._at + 1, 1
        if not known[1] or not known[2].startswith(":"):
            return (letter if known[1] else "?"), ""
        if rest:
            return letter, rest
        value = arguments[self._at] if self._at < len(arguments) else ""
        self._at += 1
        return letter, value


def kaldi_options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What `. utils/parse_options.sh` makes of the arguments: variables, and the arguments that are left.

    Source: Kaldi, egs/wsj/s5/utils/parse_options.sh: `--some-name VALUE` sets `some_name`, up to the first argument
    that is no option. Recipes of Kaldi's kind have it, or a link to it, in a toolkit that is often not there.
    """
    rest, found = list(arguments), {}
    while len(rest) > 1 and rest[0].startswith("--") and "=" not in rest[0]:
        found[_NO_VARIABLE.sub("_", rest[0][2:])] = rest[1]
        rest = rest[2:]
    return found, rest
