"""The columns of a table that a script's options name, so that a synthetic table has them before a row is read.

A module of its own: options are found in arguments and frames, columns (`synthetic_columns`) in tables.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from types import FrameType
from typing import Any

from cotenant.tracing import script_location

_COLUMN_NAME = re.compile(r"column|field", re.ASCII)
_COLUMN_OPTIONS = re.compile(r"--[\w-]*(?:column|field)[\w-]*", re.ASCII)


def columns_of_options(arguments: Sequence[str]) -> dict[str, str]:
    """Columns that options name (`--caption_column text`), and the name each is made by: `text` for those of texts.

    But for transformers' `--length_column_name`: scripts write that column.
    """
    found: dict[str, str] = {}
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, own = option.partition("=")
        if _COLUMN_OPTIONS.fullmatch(name) and "length_column" not in name:
            columns = (own if equals else value).split(",")
            found |= {column: "text" if "text" in name else column for column in columns if column.isidentifier()}
    return found


def columns_of_parsed_options(frame: FrameType | None) -> list[str]:
    """Columns that options of the calling functions name, defaults too, as scripts check them before they read a row.

    Options of libraries are left out: `TrainingArguments.length_column_name` of transformers is a column that few have.
    """
    found: list[str] = []
    while frame is not None:
        spaces = (
            [frame.f_locals, frame.f_globals] if frame.f_globals.get("__name__") == "__main__" else [frame.f_locals]
        )
        for options in (value for space in spaces for value in list(space.values()) if _are_own_options(value)):
            named = (value for name, value in vars(options).items() if _COLUMN_NAME.search(name))
            found += [value for value in named if isinstance(value, str) and value.isidentifier()]
        script_location.release_locals(frame)
        frame = frame.f_back
    return list(dict.fromkeys(found))


def _are_own_options(value: Any) -> bool:
    kind = type(value)
    if kind is argparse.Namespace:
        return True
    return hasattr(kind, "__dataclass_fields__") and hasattr(value, "__dict__") and kind.__module__ == "__main__"
