"""Names of the modules that are loaded, without a look at each that a fork server has loaded.

A module of its own: the table of patches and the provenance of a trace both need it. A fork shares the memory of its
server, and to look at an object copies its page: 2,900 modules of PyTorch take 9 ms.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_left

_noted: list[str] = []  # the names when `note_loaded` was called, sorted
_last_noted: object = object()  # the last module then


def note_loaded() -> None:
    """Remember the modules that are loaded now, before a fork."""
    global _last_noted, _noted
    _noted = sorted(sys.modules)
    _last_noted = next(reversed(sys.modules.values()))


def loaded_later() -> list[str]:
    """Names of the modules that were loaded after those that `note_loaded` remembers."""
    later = itertools.takewhile(lambda item: item[1] is not _last_noted, reversed(sys.modules.items()))
    return [name for name, _ in later]


def loaded_with_prefix(prefix: str) -> list[str]:
    """Names of loaded modules that begin with `prefix`; some may have been removed since, or occur twice."""
    noted = _noted[bisect_left(_noted, prefix) : bisect_left(_noted, prefix + chr(sys.maxunicode))]
    return [*noted, *(name for name in loaded_later() if name.startswith(prefix))]
