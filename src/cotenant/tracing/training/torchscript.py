"""TorchScript is ignored: scripted functions and modules run as written, as with `PYTORCH_JIT=0`; a warning says so.

Their code and graph are empty. Loading a file that one was saved to returns a copy of it.

Its interpreter hands operators to a dispatch mode in fused pieces, and the autograd nodes that it makes have no stream.
Source: torch/jit/_state.py, `EnabledProxy`; torch/jit/_script.py; torch/jit/_trace.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.patches.graph_summaries import run_once
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes
from cotenant.tracing.sandbox.overlay import Overlay

_WARNING = "TorchScript was ignored: the estimate is for the eager model; scripted code can need more or less"
_MARK = b"TorchScript of a trace "
_MOST_BYTES = len(_MARK) + 20


def patches(context: PatchContext) -> list[Patch]:
    """Functions that make, save and freeze scripted code."""
    common: dict[str, Any] = {
        "phase": Phase.TRAINING,
        "reason": "TorchScript's interpreter hides operators from a dispatch mode.",
        "source": "torch/jit/_script.py, `script`",
    }
    files = _Files(context.overlay)
    eager = functools.partial(_run_eagerly, context.recorder, files)
    return [
        *patch_attributes("torch.jit", dict.fromkeys(("script", "trace", "trace_module"), eager), wraps=True, **common),
        *patch_attributes("torch.jit", dict.fromkeys(("freeze", "optimize_for_inference"), _unchanged), **common),
        *patch_attributes(
            "torch.jit", {"script_method": _unchanged, "save": files.save, "ScriptModule": _EagerModule}, **common
        ),
        Patch(target="torch.jit:load", replacement=files.loading, wraps=True, **common),
    ]


class _EagerModule(torch.nn.Module):
    """In place of `torch.jit.ScriptModule` where a script derives from it."""

    def save(self, *_: object, **__: object) -> None:
        """Nothing: a trace writes no files."""


class _EmptyGraph:
    """Of a function that was not compiled: it has no nodes."""

    def __str__(self) -> str:
        return ""

    def nodes(self) -> Iterator[Any]:
        """None."""
        return iter(())

    inputs = outputs = findAllNodes = nodes  # noqa: N815

    def copy(self) -> _EmptyGraph:
        """Another one."""
        return _EmptyGraph()


def _graph_for(*_: object, **__: object) -> _EmptyGraph:
    return _EmptyGraph()


class _Files:
    """What was saved. A file, or a buffer, has a mark and a number, by which what was saved is found."""

    def __init__(self, overlay: Overlay | None = None) -> None:
        self._overlay = overlay
        self._saved: list[Any] = []

    def __deepcopy__(self, memo: object) -> _Files:
        return self  # modules hold it, and are copied

    def __reduce__(self) -> Any:
        return _Files, ()

    def save(self, obj: Any, f: Any = None, *_: object, **__: object) -> None:
        """`torch.jit.save`, and the method `save`."""
        content = _MARK + str(len(self._saved)).encode()
        if isinstance(f, (str, os.PathLike)) and self._overlay is not None:
            self._overlay.write(f, content)
        elif hasattr(f, "write"):
            f.write(content)
        self._saved.append(obj)

    def loading(self, original: Any) -> Any:
        """`torch.jit.load`."""

        @functools.wraps(original)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            content = self._content_of(f)
            if not content.startswith(_MARK):
                return original(f, map_location, *args, **kwargs)
            loaded = copy.deepcopy(self._saved[int(content[len(_MARK) :])])
            is_moved = map_location is not None and isinstance(loaded, torch.nn.Module)
            return loaded.to(map_location) if is_moved else loaded

        return load

    def _content_of(self, f: Any) -> bytes:
        """The first bytes of a file; none of one that cannot be read."""
        if isinstance(f, (str, os.PathLike)) and self._overlay is not None:
            with contextlib.suppress(OSError), Path(self._overlay.visible(f)).open("rb") as file:
                return file.read(_MOST_BYTES)
            return b""
        if not (hasattr(f, "read") and hasattr(f, "seek")):
            return b""
        start = f.tell()
        content = bytes(f.read(_MOST_BYTES))
        f.seek(start)
        return content


def _run_eagerly(recorder: Any, files: _Files, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not script_location.is_called_by_user():
            # A library's own, such as PyTorch's differentiation rules. Names are looked up in the caller's frame.
            if original.__name__ == "script":
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            return original(obj, *args, **kwargs)
        recorder.warn(_WARNING)
        if isinstance(obj, (types.FunctionType, torch.nn.Module)):
            _describe(obj, files)
        inputs = args[0] if args else kwargs.get("example_inputs")
        if original.__name__ == "trace" and inputs is not None:
            run_once(obj, inputs)
        return obj

    return call


def _unchanged(module: Any, *_: object, **__: object) -> Any:
    return module


def _describe(obj: Any, files: _Files) -> None:
    """Give a function or module what scripted ones have, unless its own attributes have the names."""
    name = obj.__name__ if isinstance(obj, types.FunctionType) else type(obj).__name__
    described = {
        "save": functools.partial(files.save, obj),
        "code": "",
        "code_with_constants": ("", {}),
        "graph": _EmptyGraph(),
        "inlined_graph": _EmptyGraph(),
        "graph_for": _graph_for,
        "original_name": name,
    }
    for attribute, value in described.items():
        if not hasattr(obj, attribute):
            obj.__dict__[attribute] = value
