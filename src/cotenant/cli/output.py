"""What is printed and where: data on stdout, messages on stderr, one JSON value with `--json`."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.errors import CotenantError, UnknownName

SCHEMA = 1
"""Version of all JSON that the command line and the daemon give; it changes when a field goes or changes meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: `key` for `--format`, `title` for the header."""

    key: str
    title: str
    right: bool = False


def wants_json(argv: Sequence[str]) -> bool:
    """Whether `--json` was asked for, told before the command line is parsed, so that its errors can be JSON too."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in own


_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    """`text` with its control characters escaped: a name could clear the screen, or begin a row of its own."""
    return text.translate(_ESCAPES)


LONG_CHARS = 64 * 1024
"""JSON that is longer is for programs: it is not indented, which takes three times as long."""


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON value, with the schema version in it."""
    told = {"schema": SCHEMA, **value}
    text = _json.dumps(told, ensure_ascii=False)
    # A path that is no UTF-8 has code points which only an escape can carry.
    strange = not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)
    if len(text) <= LONG_CHARS or strange:
        text = _json.dumps(told, indent=None if len(text) > LONG_CHARS else 2, ensure_ascii=strange)
    print(text)


def report_error(error: CotenantError, *, json: bool = False) -> None:
    """`error:` and `hint:` on stderr; with `json`, an error object on stdout as well."""
    if json:
        emit_json({"error": error.as_json()})
    sys.stdout.flush()
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def note(text: str) -> None:
    """A remark for people, on stderr."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """A line for people, on stdout."""
    print(printable(text))


def print_table(
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[Column],
    *,
    only: str | None = None,
    header: bool = True,
) -> None:
    """Rows as a table: drawn by rich on a terminal, else aligned with two spaces between columns.

    `only`: keys of columns, separated by commas, as of `--format`.

    Raises:
        UnknownName: `only` names a column that is not there.
    """
    chosen = _choose(columns, only)
    rows = [{key: printable(cell) for key, cell in row.items()} for row in rows]
    if sys.stdout.isatty():
        _draw(rows, chosen, header=header)
        return
    padded = []
    for column in chosen:
        cells = [column.title] if header else []
        cells += [row[column.key] for row in rows]
        width = max(map(len, cells), default=0)
        padded.append([each.rjust(width) if column.right else each.ljust(width) for each in cells])
    if padded and padded[0]:
        print("\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True)))


def _choose(columns: Sequence[Column], only: str | None) -> list[Column]:
    if only is None:
        return list(columns)
    known = {column.key: column for column in columns}
    chosen = []
    for key in (each.strip() for each in only.split(",")):
        if key not in known:
            raise UnknownName("column", key, known)
        chosen.append(known[key])
    return chosen


def _draw(rows: Sequence[Mapping[str, str]], columns: Sequence[Column], *, header: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=header, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        wraps = column is columns[-1]
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not wraps, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[column.key]) for column in columns))
    Console().print(table)
