"""Formats of Slurm's commands: `%.18i %.9P` of squeue and sinfo, `JobID:18,Name` of -O, `JobID%20,State` of sacct.

Pure: text and fields in, lines out. Source: squeue(1), sinfo(1), sacct(1); recorded from Slurm 22.05, where it prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.units import shortened

MAX_WIDTH = 1000
LONG_FORMAT_WIDTH = 20
"""Width of a column of -O without one of its own."""

_PART = re.compile(r"%(\.)?#?(\d{1,9})?([a-zA-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmField:
    """A field of a record.

    Attributes:
        title: in the header.
        value: the text for a record.
        names: its names for -O or sacct, the first as they are documented.
        width: its width for sacct; negative: aligned left.
    """

    title: str
    value: Callable[[Any], str]
    names: tuple[str, ...] = ()
    width: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a line: fixed text, or a field with its width (0: as wide as the text) and alignment."""

    text: str = ""
    field: SlurmField | None = None
    width: int = 0
    right: bool = False

    def render(self, text: str) -> str:
        """`text` cut and padded to the width."""
        if not self.width:
            return text
        cut = text[: self.width]
        return cut.rjust(self.width) if self.right else cut.ljust(self.width)


def parse_format(text: str, fields: Mapping[str, SlurmField]) -> list[Piece]:
    """The pieces of a format such as `%.18i %8t`: a dot aligns right, a number is the width, `#` is ignored.

    Raises:
        UsageError: a letter is no field.
    """
    pieces: list[Piece] = []
    end = 0
    for part in _PART.finditer(text):
        pieces.append(Piece(text=text[end : part.start()]))
        field = fields.get(part[3])
        if field is None:
            raise UsageError(f"invalid format: no field `%{part[3]}`", hint=f"fields: {' '.join(fields)}")
        pieces.append(Piece(field=field, width=_width(part[2] or "0"), right=part[1] is not None))
        end = part.end()
    return [*pieces, Piece(text=text[end:])]


def parse_long_format(text: str, fields: Iterable[SlurmField]) -> list[Piece]:
    """The pieces of a format such as `JobID:10,Name:.8`, of 20 characters each unless they say otherwise.

    Raises:
        UsageError: a name is no field.
    """
    known = {name.lower(): field for field in fields for name in field.names}
    pieces = []
    for part in text.split(","):
        name, colon, size = part.strip().partition(":")
        field = _named(name, known)
        right = size.startswith(".")
        digits = re.match(r"\d*", size.removeprefix("."))
        width = _width(digits[0] if digits else "") if colon else 0
        pieces.append(Piece(field=field, width=width or LONG_FORMAT_WIDTH, right=right))
    return pieces


def _named(name: str, known: Mapping[str, SlurmField]) -> SlurmField:
    field = known.get(name.lower())
    if field is None:
        names = dict.fromkeys(field.names[0] for field in known.values())
        raise UsageError(f"invalid field `{shortened(name)}`", hint=f"fields: {', '.join(names)}")
    return field


def _width(digits: str) -> int:
    return min(MAX_WIDTH, int(digits)) if digits else 0


def render(pieces: Sequence[Piece], records: Iterable[Any], *, header: bool) -> list[str]:
    """One line for each record, after one with the titles."""
    lines = []
    if header:
        lines.append(
            "".join(piece.text or (piece.render(piece.field.title) if piece.field else "") for piece in pieces)
        )
    for record in records:
        lines.append(
            "".join(piece.text or (piece.render(piece.field.value(record)) if piece.field else "") for piece in pieces)
        )
    return lines


def sacct_fields(text: str, fields: Sequence[SlurmField]) -> list[tuple[SlurmField, int]]:
    """Fields and widths in `JobID%20,State`; a negative width aligns left.

    Raises:
        UsageError: a name is no field.
    """
    known = {name.lower(): field for field in fields for name in field.names}
    chosen = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, width = part.partition("%")
        field = _named(name, known)
        size = re.fullmatch(r"-?\d{1,9}", width)
        chosen.append((field, max(-MAX_WIDTH, min(MAX_WIDTH, int(width))) if size and int(width) else field.width))
    return chosen


def render_sacct(
    columns: Sequence[tuple[SlurmField, int]], records: Iterable[Any], *, header: bool, separator: str, ends: bool
) -> list[str]:
    """Lines of sacct: a table with a rule below its titles; or with `separator`, unpadded, and if `ends` also after the
    last column.
    """
    rows = [[field.value(record) for field, _ in columns] for record in records]
    titles = [[field.names[0] for field, _ in columns]] if header else []
    if separator:
        return [separator.join(row) + (separator if ends else "") for row in titles + rows]
    rules = [["-" * abs(width) for _, width in columns]] if header else []
    widths = [width for _, width in columns]
    return [
        "".join(f"{_cell(cell, width)} " for cell, width in zip(row, widths, strict=True))
        for row in titles + rules + rows
    ]


def _cell(text: str, width: int) -> str:
    """`text` in a column of sacct: what is cut off ends in `+`."""
    size = abs(width)
    if len(text) > size:
        text = f"{text[: size - 1]}+"
    return text.ljust(size) if width < 0 else text.rjust(size)
