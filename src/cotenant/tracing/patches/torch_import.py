"""What makes the import of torch itself cheaper.

A module of its own, which needs no torch: it is applied before torch is imported, the other patches afterwards.
"""

from __future__ import annotations

import sys

from cotenant.tracing.patches.registry import Entry, Patch, Phase


def patches() -> list[Entry]:
    """Functions that torch calls while it is imported."""
    return [
        Patch(
            target="torch._library.utils:get_source", phase=Phase.SANDBOX, replacement=_caller,
            reason="For the line of each operator that Python code describes, torch looks for the source of its module "
            "among the files of all modules: 0.2 s of CPU time in the sandbox for the 116 operators of torch itself.",
            source="torch/_library/utils.py, `get_source`", missing="before torch 2.4",
        )
    ]  # fmt: skip


def _caller(stacklevel: int) -> str:
    """File and line of a caller, as from `inspect.getframeinfo`, which reads the file as well."""
    frame = sys._getframe(stacklevel)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
