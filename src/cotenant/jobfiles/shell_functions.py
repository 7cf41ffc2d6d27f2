"""Functions of a shell script: where they are defined, and what their bodies are. Pure.

A module of its own: the reader of scripts calls them, and knows nothing of how they are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.jobfiles.shell_options import Line

_HEAD = re.compile(r"\s*(?:function\s+([\w-]+)\s*(?:\(\s*\))?|([\w-]+)\s*\(\s*\))\s*(\{.*)?")
_OPENS = re.compile(r"(?:^|[\s;&|)])\{(?=\s|$)")
_CLOSES = re.compile(r"(?:^|;)\s*\}(?=[\s;&|)]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function; `end` is the place of its last line."""

    name: str
    body: tuple[Line, ...]
    end: int


def function_at(lines: Sequence[Line], place: int) -> Function | None:
    """The function whose definition begins with line `place`; None: there is none, or no end of it."""
    head = _HEAD.fullmatch(lines[place][1])
    if head is None:
        return None
    body: list[Line] = []
    depth = 0
    for at in range(place, len(lines)):
        number, text = lines[at]
        rest = (head[3] or "") if at == place else text
        if depth == 0 and rest.strip() and not rest.lstrip().startswith("{"):
            return None  # the body is another compound command, such as `( ... )`
        if not rest.strip():
            continue
        depth += len(_OPENS.findall(rest))
        first = not body
        depth -= len(_CLOSES.findall(rest))
        if first:
            rest = rest.lstrip().removeprefix("{")
        if depth <= 0:
            body.append((number, rest[: rest.rindex("}")]))
            return Function(name=head[1] or head[2], body=tuple(body), end=at)
        body.append((number, rest))
    return None
