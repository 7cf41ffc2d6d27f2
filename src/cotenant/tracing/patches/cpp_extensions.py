"""CUDA extensions that a script compiles at run time: skipped with a warning, as where their build fails.

Their kernels could not run here, and what they allocate is not known; a build takes minutes and the CUDA toolkit. Many
scripts fall back to operators of PyTorch. A few have stand-ins: see `stylegan_kernels`. Extensions for the CPU are
compiled.
Source: torch/utils/cpp_extension.py, `load`, `load_inline`. One file for each part of PyTorch that is patched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches import stylegan_kernels
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


class ExtensionSkipped(Untraceable, RuntimeError):
    """A `RuntimeError`, which a failed build raises, too, so that a script takes its fallback."""


def patches(context: PatchContext) -> list[Patch]:
    """Functions that compile."""
    return [
        Patch(
            target=f"torch.utils.cpp_extension:{name}", phase=Phase.LIBRARIES,
            replacement=functools.partial(_skipping_cuda, context.recorder), wraps=True,
            reason="CUDA code cannot run here, and what it allocates is not known.",
            source=f"torch/utils/cpp_extension.py, `{name}`",
        )
        for name in ("load", "load_inline")
    ]  # fmt: skip


def _skipping_cuda(recorder: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        if not _has_cuda(build.__name__, args, kwargs):
            return build(name, *args, **kwargs)
        known = stylegan_kernels.module_of(name, _sources(args, kwargs)) if build.__name__ == "load" else None
        if known is not None:
            sys.modules[name] = known  # importing a compiled module puts it there, and some scripts import it again
            return known
        recorder.note_runs_otherwise("extension")
        recorder.warn(
            f"the CUDA extension `{name}`, which the script compiles, was skipped and the script's fallback traced: "
            "the extension may need more or less"
        )
        raise ExtensionSkipped(f"the CUDA extension `{name}` cannot be traced: its memory is not known")

    return call


def _has_cuda(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call requests a build with CUDA. `args` are those after the name."""
    if kwargs.get("with_cuda"):
        return True
    if kind == "load_inline":
        return bool(kwargs.get("cuda_sources") or (args[1:2] and args[1]))
    return any(file.endswith((".cu", ".cuh")) for file in _sources(args, kwargs))


def _sources(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The files of a call of `load`."""
    sources = kwargs.get("sources", args[0] if args else ())
    return [sources] if isinstance(sources, str) else [str(file) for file in sources]
