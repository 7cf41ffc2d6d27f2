"""Dates of a made-up table: of a file of text, texts, as pandas reads them unless it is asked to parse them.

A module of its own: a column is made where the table is, or later, by a name.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from cotenant.tracing.data.static_analysis.source_tree import parsed_source

_FIRST_DATE, _ISO = "2016-01-01", "%Y-%m-%d %H:%M:%S"
_OF_TEXT = ("read_csv", "read_table")  # a sheet, a pickle and others have types
_PARSERS = {"to_datetime": "format", "strptime": "format", **dict.fromkeys(_OF_TEXT, "date_format")}
"""What parses dates, and its argument that is their format."""


def date_column(function: str, options: Mapping[str, Any], reader: str, rows: int) -> Any:
    """Hours since 2016, as `function` of pandas gives them with these options to the file `reader`."""
    dates = importlib.import_module("pandas").date_range(_FIRST_DATE, periods=rows, freq="h")
    if function not in _OF_TEXT or options.get("parse_dates") or options.get("converters"):
        return dates
    return list(dates.strftime(format_of(reader)))


@functools.cache
def format_of(reader: str) -> str:
    """The format by which a file parses dates, if it names one and no other."""
    found: set[str] = set()
    for node in ast.walk(parsed_source(reader)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        values = [word.value for word in node.keywords if word.arg == _PARSERS.get(name, "")]
        values += node.args[1:2] if name == "strptime" else []
        found |= {str(value.value) for value in values if isinstance(value, ast.Constant) and "%" in str(value.value)}
    return found.pop() if len(found) == 1 else _ISO
