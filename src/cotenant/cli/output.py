"""What is printed and where: data on stdout, messages on stderr, one JSON value with `--json`."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.errors import CotenantError, UnknownName
from cotenant.core.text import is_printable, printable

SCHEMA = 1
"""Version of all JSON of the command line and the daemon; it changes when a field is removed or changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: `key` for `--format`, `title` for the header."""

    key: str
    title: str
    right: bool = False


def wants_json(argv: Sequence[str]) -> bool:
    """Whether the command line has `--json`; known before it is parsed, so that its errors can be JSON too."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in own


MAX_DRAWN = 300
"""Rows of a table that rich draws: 10,000 take it 5.5 s, and 0.1 s if they are only aligned."""
MAX_INDENTED_CHARS = 64 * 1024
"""Longer JSON is for programs: it is not indented, which would take three times as long."""


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON value, with the schema version in it."""
    body = {"schema": SCHEMA, **value}
    text = _json.dumps(body, ensure_ascii=False)
    # A path that is not UTF-8 holds lone surrogates, which only an escape can write.
    has_surrogates = not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)
    if len(text) <= MAX_INDENTED_CHARS or has_surrogates:
        text = _json.dumps(body, indent=None if len(text) > MAX_INDENTED_CHARS else 2, ensure_ascii=has_surrogates)
    print(text)


def report_error(error: CotenantError, *, json: bool = False) -> None:
    """Print `error:` and `hint:` on stderr; with `json`, an error object on stdout as well."""
    if json:
        emit_json({"error": error.as_json()})
    sys.stdout.flush()
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def note(text: str) -> None:
    """Print a remark for people, on stderr."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def hint(text: str) -> None:
    """Print a hint for people, on stderr, if they read stdout as well: a script needs none."""
    if sys.stdout.isatty():
        note(f"hint: {text}")


def print_line(text: str) -> None:
    """Print a line for people, on stdout."""
    print(printable(text))


def print_table(
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[Column],
    *,
    only: str | None = None,
    header: bool = True,
) -> None:
    """Print rows as a table: by rich on a terminal, else or if they are many aligned, with two spaces between columns.

    `only`: keys of columns, separated by commas, from `--format`.

    Raises:
        UnknownName: `only` names an unknown column.
    """
    chosen = _choose(columns, only)
    if not is_printable("".join(cell for row in rows for cell in row.values())):  # once for thousands of cells
        rows = [{key: printable(cell) for key, cell in row.items()} for row in rows]
    if sys.stdout.isatty() and len(rows) <= MAX_DRAWN:
        _draw(rows, chosen, header=header)
        return
    padded = []
    for column in chosen:
        cells = [column.title] if header else []
        cells += [row[column.key] for row in rows]
        width = max(map(len, cells), default=0)
        padded.append([cell.rjust(width) if column.right else cell.ljust(width) for cell in cells])
    if padded and padded[0]:
        print("\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True)))


def _choose(columns: Sequence[Column], only: str | None) -> list[Column]:
    if only is None:
        return list(columns)
    known = {column.key: column for column in columns}
    chosen = []
    for key in map(str.strip, only.split(",")):
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
