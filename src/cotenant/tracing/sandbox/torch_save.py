"""`torch.save` and `torch.load` of fake tensors: shapes are written to the overlay, without data.

Files that existed before are loaded as usual.
"""

from __future__ import annotations

import functools
import io
import os
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, PatchContext, Phase
from cotenant.tracing.sandbox import native_io
from cotenant.tracing.sandbox.overlay import Overlay

_map_locations: list[Any] = []  # of the calls of `torch.load` that are under way


def patches(context: PatchContext) -> list[Entry]:
    """Saving and loading, also by other libraries, and how fake tensors are pickled."""
    overlay = context.overlay
    return [
        _save_patch(overlay),
        Patch(
            target="torch:load", phase=Phase.DATA, replacement=functools.partial(_loading_from, overlay), wraps=True,
            stacks=True,
            reason="It copies storages to the GPU without operators.",
            source="torch/serialization.py, `default_restore_location`",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.__reduce_ex__", phase=Phase.DATA, replacement=_reduce,
            reason="Pickling reads the data of a tensor.", source="torch/_tensor.py, `Tensor.__reduce_ex__`",
        ),
        HookPatch(
            target="torch.serialization:add_safe_globals", phase=Phase.DATA,
            register=lambda: torch.serialization.add_safe_globals([_rebuild]),
            reason="`weights_only=True` loads listed functions only.",
            source="torch/_weights_only_unpickler.py, `Unpickler`",
        ),
        *native_io.patches(overlay),
    ]  # fmt: skip


def path_patches(overlay: Overlay) -> list[Patch]:
    """Functions that open files in C++, for a script with real tensors."""
    return [
        _save_patch(overlay),
        Patch(
            target="torch:load", phase=Phase.DATA, replacement=functools.partial(_loading_visible, overlay), wraps=True,
            stacks=True, reason="It opens files in C++.", source="torch/serialization.py, `_open_zipfile_reader`",
        ),
        *native_io.patches(overlay),
    ]  # fmt: skip


def _save_patch(overlay: Overlay) -> Patch:
    return Patch(
        target="torch:save", phase=Phase.DATA, replacement=functools.partial(_saving_to, overlay), wraps=True,
        reason="It opens files in C++.", source="torch/serialization.py, `_open_zipfile_writer`",
    )  # fmt: skip


def _loading_visible(overlay: Overlay, original: Any) -> Any:
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        return original(overlay.visible(f) if isinstance(f, (str, os.PathLike)) else f, *args, **kwargs)

    return load


def _saving_to(overlay: Overlay, original: Any) -> Any:
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)
            return
        buffer = io.BytesIO()
        original(obj, buffer, *args, **kwargs)
        overlay.write(f, buffer.getvalue())

    return save


def _loading_from(overlay: Overlay, original: Any) -> Any:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            f = overlay.visible(f)
        moves: dict[int, torch.device] = {}

        def stay_on_cpu(storage: Any, location: str) -> Any:
            target = _target(map_location, location)
            if target.type == "cuda":
                moves[storage.data_ptr()] = target
            return storage

        _map_locations.append(map_location)
        try:
            return _to_device(original(f, stay_on_cpu, *args, **kwargs), moves)
        finally:
            _map_locations.pop()

    return load


def _target(map_location: Any, location: str) -> torch.device:
    """The device for a tensor that was saved at `location`. A function as `map_location` means the CPU."""
    if isinstance(map_location, dict):
        map_location = map_location.get(location)
    if callable(map_location):
        return torch.device("cpu")
    return torch.device(location if map_location is None else map_location)


def _to_device(value: Any, moves: dict[int, torch.device]) -> Any:
    """`value`, with the tensors whose storages are in `moves` on the fake GPU."""
    if not moves:
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        target = moves.get(value.untyped_storage().data_ptr())
        return value if target is None else value.to(target)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _to_device(item, moves)
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(next(iter(moves.values())))
    if type(value) in (list, tuple):
        return type(value)(_to_device(item, moves) for item in value)
    return value


def _reduce(self: FakeTensor, protocol: Any) -> Any:
    is_parameter = isinstance(self, torch.nn.Parameter)
    device = str(self.fake_device)
    return _rebuild, (tuple(self.shape), tuple(self.stride()), self.dtype, device, self.requires_grad, is_parameter)


def _rebuild(
    shape: Any, stride: Any, dtype: torch.dtype, device: str, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    target = _target(_map_locations[-1] if _map_locations else None, device)
    with torch.no_grad():
        made = torch.empty_strided(shape, stride, dtype=dtype, device=target)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)
