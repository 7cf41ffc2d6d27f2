"""What a shell makes of `${name...}`: defaults, parts of texts, without a beginning or an end. Pure, nothing is run.

A module of its own: it knows texts alone, and the reader of scripts is long enough.
"""

from __future__ import annotations

import fnmatch
import re

_DEFAULT = re.compile(r":?([-=+?])(.*)", re.DOTALL)
_PART = re.compile(r":\s*(\d{1,6})(?::\s*(\d{1,6}))?")
_TRIMMED = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_REPLACED = re.compile(r"//?([^/]+)(?:/(.*))?", re.DOTALL)
_SPECIAL = frozenset("*?[]\\")
_CASES = {"^^": str.upper, ",,": str.lower}


def expanded(value: str | None, rest: str) -> str | None:
    """The value of `${name` + `rest` + `}`; None: not known. `value`: of the name, None if it is not set."""
    if match := _DEFAULT.fullmatch(rest):
        is_absent = value is None or (value == "" and rest.startswith(":"))
        if match[1] == "+":
            return "" if is_absent else match[2]
        if is_absent:
            return None if match[1] == "?" else match[2].strip("\"'")
        return value
    if value is None or not rest:
        return value
    if match := _PART.fullmatch(rest):
        return value[int(match[1]) :][: int(match[2]) if match[2] else None]
    if match := _TRIMMED.fullmatch(rest):
        return _trimmed(value, match[1], match[2].strip("\"'"))
    match = _REPLACED.fullmatch(rest)
    if match and not _SPECIAL & set(match[1]) and match[1][0] not in "#%":
        return value.replace(match[1], match[2] or "", -1 if rest.startswith("//") else 1)
    return _CASES[rest](value) if rest in _CASES else None


def _trimmed(value: str, how: str, pattern: str) -> str:
    """`value` without the shortest or longest part at its beginning (`#`) or end (`%`) that fits the pattern."""
    ends = range(len(value) + 1)
    cuts = reversed(ends) if how in ("##", "%") else ends
    for cut in cuts:
        part = value[:cut] if how[0] == "#" else value[cut:]
        if fnmatch.fnmatchcase(part, pattern):
            return value[cut:] if how[0] == "#" else value[:cut]
    return value
