"""transformers finds out what its modules export by reading all of their sources, which takes 0.6 s of CPU time.

It looks at each line of each file for the last one that begins with `__all__`, and reads most files twice, for it
remembers 128 of its 400 folders. Here only what follows that line is looked at, and all folders are remembered.

A module of its own: no other patch is about what transformers exports.
"""

from __future__ import annotations

import functools
from typing import Any

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_MODULE = "transformers.utils.import_utils"
_EXPORTS = "__all__"
_LINE_ENDS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")  # of `str.splitlines`


def patches(context: PatchContext) -> list[Patch]:
    """The two functions that read the sources."""
    return [
        Patch(
            target=f"{_MODULE}:fetch__all__", phase=Phase.LIBRARIES, wraps=True, replacement=_from_last_exports,
            reason="Looking at 600,000 lines takes most of the import of transformers.",
            source="transformers/utils/import_utils.py, `fetch__all__`", missing="before transformers 4.48",
        ),
        Patch(
            target=f"{_MODULE}:create_import_structure_from_path", phase=Phase.LIBRARIES, wraps=True,
            replacement=_remembering_all,
            reason="Its cache holds fewer folders than there are, and they are asked for again in the same order.",
            source="transformers/utils/import_utils.py, `define_import_structure`", missing="before transformers 4.48",
        ),
    ]  # fmt: skip


def _from_last_exports(original: Any) -> Any:
    """`fetch__all__`, of the part of a file that begins with its last line `__all__ = ...`."""

    @functools.wraps(original)
    def fetch(file_content: str) -> Any:
        at = file_content.rfind(_EXPORTS)
        while at > 0 and file_content[at - 1] not in _LINE_ENDS:
            at = file_content.rfind(_EXPORTS, 0, at)
        return original(file_content[at:] if at >= 0 else "")

    return fetch


def _remembering_all(original: Any) -> Any:
    return functools.cache(getattr(original, "__wrapped__", original))
