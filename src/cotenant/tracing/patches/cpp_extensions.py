"""CUDA code that a script compiles when it runs: left out, as where its build fails, and told.

No kernel of it could run here, and what one allocates is not known; a build takes minutes, and a toolkit. Many scripts
have the same in operators of PyTorch for that case. Code for the CPU is compiled as ever.
Source: torch/utils/cpp_extension.py, `load`, `load_inline`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches.import_hooks import when_imported


class NotCompiled(Untraceable, RuntimeError):
    """As `RuntimeError`, which a failed build raises, so that a script that has another way takes it."""


def install(recorder: Any) -> None:
    """Replace what compiles, once it is imported."""
    when_imported("torch.utils.cpp_extension", functools.partial(_replace, recorder))


def _replace(recorder: Any, module: Any) -> None:
    for name in ("load", "load_inline"):
        setattr(module, name, _left_out(recorder, getattr(module, name)))


def _left_out(recorder: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        if not _has_cuda(build.__name__, args, kwargs):
            return build(name, *args, **kwargs)
        recorder.warn(
            f"CUDA code that the script compiles (`{name}`) was left out, and what the script does without it was "
            "traced: with it less or more may be needed"
        )
        raise NotCompiled(f"CUDA code that the script compiles (`{name}`) cannot be traced: its memory is not known")

    return call


def _has_cuda(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for a build with CUDA. `args` are those after the name."""
    if kwargs.get("with_cuda"):
        return True
    if kind == "load_inline":
        return bool(kwargs.get("cuda_sources") or (args[1:2] and args[1]))
    sources = kwargs.get("sources", args[0] if args else ())
    return any(str(each).endswith((".cu", ".cuh")) for each in ([sources] if isinstance(sources, str) else sources))
