"""Shapes and counts in the text of a summary. Pure."""

from __future__ import annotations

import re
from typing import TypeAlias

from cotenant.core.errors import SummaryError

Shape: TypeAlias = tuple[int, ...]

LARGEST = 2**50
"""Limit of a count or an extent: no network is larger, so a text with more is not a summary."""

_EXTENTS = re.compile(r"\[([^\[\]]*)\]")
_SHAPE = re.compile(r"[\[\], \d-]*")


def count_of(text: str, path: str, line: int) -> int:
    """The count in `1,792`.

    Raises:
        SummaryError: it is none.
    """
    digits = text.replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16 and int(digits) <= LARGEST):
        raise SummaryError(path, line, f"`{short(text)}` is no count of parameters")
    return int(digits)


def shapes_of(text: str, path: str, line: int) -> list[Shape]:
    """The shapes in `[32, 64]`, or in `[[32, 64], [32, 8]]` of several outputs; a first -1 stands for any batch.

    Raises:
        SummaryError: an extent is not a number, negative, or above the limit.
    """
    found = [
        tuple(_extent(part, path, line, least=-(not i)) for i, part in enumerate(inner.split(",")) if part.strip())
        for inner in _EXTENTS.findall(text)
    ]
    if not found or not _SHAPE.fullmatch(text) or text.count("[") != text.count("]"):
        raise SummaryError(path, line, f"`{short(text)}` is no shape, wanted e.g. `[32, 64, 56, 56]`")
    return found


def short(text: str) -> str:
    """`text` for a message."""
    found = text.strip()
    return found if len(found) <= 60 else found[:57] + "..."


def _extent(text: str, path: str, line: int, *, least: int) -> int:
    extent = text.strip()
    digits = extent.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16):
        raise SummaryError(path, line, f"`{short(text)}` is no extent of a shape")
    value = int(extent)
    if not least <= value <= LARGEST:
        raise SummaryError(path, line, f"extent {value} of a shape is not possible")
    return value
