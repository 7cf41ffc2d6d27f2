"""Where a script looks for files and finds none, for hints: it goes on, and fails where it takes the first of them.

With `--synthetic-data` the functions are those of `file_questions`, which make the files that they can.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.patches.registry import Patch, Phase

places: list[str] = []
"""Folders and patterns, as the script writes them."""
_NO_DATA = re.compile(r"check ?point|ckpt|weights|logs?\b|runs?\b|out|save|result|cache|tmp", re.IGNORECASE)
"""Of places of what a script writes: at its first run nothing is there."""


def patches() -> list[Patch]:
    """The functions that list files, where nothing is made: an empty list of the script's own call is noted."""
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "reason": "A hint names where files are missing."}
    return [
        Patch(target="glob:glob", replacement=_globbing, source="Lib/glob.py, `glob`", **common),
        Patch(target="os:walk", replacement=_walking, source="Lib/os.py, `walk`", **common),
        *(
            Patch(
                target=f"pathlib:Path.{name}", replacement=_globbing_below, source=f"Lib/pathlib.py, `Path.{name}`",
                **common,
            )
            for name in ("glob", "rglob")
        ),
    ]  # fmt: skip


def _note(place: str) -> None:
    if not _NO_DATA.search(place):
        places.append(place)


def _globbing(original: Any) -> Any:
    @functools.wraps(original)
    def glob(pattern: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(pattern, *args, **kwargs)
        if not found and isinstance(pattern, str) and script_location.is_called_by_user():
            _note(pattern)
        return found

    return glob


def _globbing_below(original: Any) -> Any:
    @functools.wraps(original)
    def glob(self: Any, pattern: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, pattern, *args, **kwargs)
        is_user = script_location.is_called_by_user()
        return _noting(found, os.path.join(self, os.fspath(pattern)), bool) if is_user else found  # noqa: PTH118

    return glob


def _walking(original: Any) -> Any:
    @functools.wraps(original)
    def walk(top: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(top, *args, **kwargs)
        is_user = script_location.is_called_by_user()
        return _noting(found, os.fsdecode(top), lambda item: bool(item[2])) if is_user else found

    return walk


def _noting(found: Any, place: str, has_file: Any) -> Iterator[Any]:
    """The same items; `place` is noted if none has a file."""
    is_empty = True
    for item in found:
        is_empty = is_empty and not has_file(item)
        yield item
    if is_empty:
        _note(place)
