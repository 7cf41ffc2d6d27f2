"""Arrays of a shell script, as in `lengths=(96 192)`, `for length in ${lengths[@]}` and `${lengths[$i]}`.

Also replaced parts, `${gpus//,/ }`, of which arrays are made, and arrays of what a loop prints for each element of
another: `flags=($(for name in "${names[@]}"; do echo '-d '"${name}"; done))`. Pure. Not modeled: associative arrays,
slices, and single elements that are assigned later (`lengths[2]=336`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

_OPEN = re.compile(r"\s*(?:(?:declare|local|typeset)\s+-a\s+|export\s+|readonly\s+)?[A-Za-z_]\w*\+?=\([^()]*")
_ASSIGNMENT = re.compile(
    _OPEN.pattern.replace(r"[A-Za-z_]\w*\+?=\([^()]*", r"([A-Za-z_]\w*)(\+?)=\(([^()]*)\)\s*(?:;|#.*)?")
)
_PRINTED = re.compile(
    r"\s*([A-Za-z_]\w*)(\+?)=\(\s*\$\(\s*for\s+(\w+)\s+in\s+([^;]+);\s*do\s+echo\s+([^;]+);\s*done\s*\)\s*\)"
    r"\s*(?:;|#.*)?"
)
_REPLACED = re.compile(r"\$\{(\w+)//([^/{}]+)/([^{}]*)\}")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_USE = re.compile(r"\"\$\{(\w+)\[[@*]\]\}\"|\$\{(#?)(\w+)\[([^\[\]{}]+)\]\}")


def is_open(line: str) -> bool:
    """Whether a line begins an array that goes on in the next."""
    return _OPEN.fullmatch(line) is not None


def echoed(words: list[str]) -> str:
    """What `echo` prints of its words."""
    return " ".join(words[1:] if words[:1] in (["-n"], ["-e"]) else words)


class Arrays:
    """The arrays that a script has set."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def assign(self, line: str, value: Callable[[str], str | None]) -> bool:
        """Set the array that a line assigns; whether it assigns one, of words that `value` of its variables tells."""
        if match := _PRINTED.fullmatch(line):
            words = self._printed(match[3], match[4], match[5], value)
        elif match := _ASSIGNMENT.fullmatch(line):
            words = self._words(match[3], value)
        if match is None or words is None:
            return False
        self._values[match[1]] = [*(self._values.get(match[1], []) if match[2] else []), *words]
        return True

    def _words(self, text: str, value: Callable[[str], str | None]) -> list[str] | None:
        """Words whose variables have their values; None where one is not known."""
        text = self.expanded(text, value)
        text = _VARIABLE.sub(lambda found: value(found[1] or found[2]) or found[0], text)
        if "$" in text or "`" in text:
            return None
        try:
            return shlex.split(text, comments=True)
        except ValueError:  # an open quote
            return None

    def _printed(self, name: str, over: str, body: str, value: Callable[[str], str | None]) -> list[str] | None:
        """Words of what `echo` prints for each element: a shell divides them at white space, as nothing quotes them."""

        def of_element(element: str) -> list[str]:
            words = self._words(body, lambda variable: element if variable == name else value(variable))
            return echoed(words or []).split()

        return [word for element in self._words(over, value) or () for word in of_element(element)] or None

    def expanded(self, line: str, value: Callable[[str], str | None]) -> str:
        """A line with the elements of the arrays that it uses; `value`: of a variable, as an index."""

        def elements(match: re.Match[str]) -> str:
            found = self._values.get(match[1] or match[3])
            if found is None:
                return match[0]
            if match[1] or match[4] in ("@", "*"):
                return str(len(found)) if match[2] else shlex.join(found)
            index = match[4].strip("${} ")
            index = index if index.isdecimal() else value(index) or ""
            return found[int(index)] if index.isdecimal() and int(index) < len(found) else match[0]

        def replaced(match: re.Match[str]) -> str:
            found = value(match[1])
            return match[0] if found is None else found.replace(match[2], match[3])

        return _REPLACED.sub(replaced, _USE.sub(elements, line))
