"""Tables that a script looks for before pandas reads them: an empty file answers, and its reader makes the rows.

A module of its own: what answers questions of files and the readers of pandas meet here alone.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data import placeholders
from cotenant.tracing.sandbox.overlay import Overlay

_SUFFIXES = frozenset({".csv", ".tsv", ".xls", ".xlsx", ".parquet", ".feather", ".inter"})
"""Of tables; the last of RecBole's interactions, recbole/data/dataset/dataset.py, `_load_inter_feat`."""
_READER = re.compile(r"\bread_(?:csv|table|excel|parquet|feather)\(")
_OTHER_READER = re.compile(r"\bcsv\.(?:Dict)?[rR]eader\(|\bopen\(|\b(?:loadtxt|genfromtxt)\(")
"""What reads a file by itself: an empty one has nothing for it."""


def make(overlay: Overlay, is_data: Callable[[str], bool], path: str) -> bool:
    """Make a table that is missing, where a script raises without it; the file that asks has pandas read tables."""
    full = overlay.absent(path)
    if full is None or Path(path).suffix.lower() not in _SUFFIXES or not is_data(path):
        return False
    source = "".join(linecache.getlines(script_location.calling_file()))
    if not _READER.search(source) or _OTHER_READER.search(source) or not script_location.is_absence_an_error():
        return False
    placeholders.make(overlay.new_file(full), full)
    return True
