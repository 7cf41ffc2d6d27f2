"""What makes the import of torch itself cheaper.

A module of its own, which needs no torch: it is applied before torch is imported, the other patches afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from cotenant.tracing.patches.registry import Entry, Patch, Phase


def patches() -> list[Entry]:
    """Functions that torch calls while it is imported."""
    return [
        Patch(
            target="torch._library.utils:get_source", phase=Phase.SANDBOX, replacement=_caller,
            reason="For the line of each operator that Python code describes, torch looks for the source of its module "
            "among the files of all modules: 0.2 s of CPU time in the sandbox for the 116 operators of torch itself.",
            source="torch/_library/utils.py, `get_source`", missing="before torch 2.4",
        ),
        Patch(
            target="inspect:getmodule", phase=Phase.SANDBOX, wraps=True, replacement=_module_of_frame,
            reason="For the module of each of these operators it asks for the file of every module that was imported.",
            source="torch/library.py, `Library._register_fake`",
        ),
    ]  # fmt: skip


def _caller(stacklevel: int) -> str:
    """File and line of a caller, as from `inspect.getframeinfo`, which reads the file as well."""
    frame = sys._getframe(stacklevel)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _module_of_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    """`inspect.getmodule`; the module of a frame is the one whose names are the frame's, if it is of the same file."""

    @functools.wraps(original)
    def getmodule(object: Any, _filename: Any = None) -> Any:  # noqa: A002 - the name that callers may give
        if type(object) is FrameType:
            names = object.f_globals
            name = names.get("__name__")
            module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
            is_its = getattr(module, "__dict__", None) is names
            if is_its and names.get("__file__") == object.f_code.co_filename:
                return module
        return original(object, _filename)

    return getmodule
