"""`torch.save` and `torch.load` of fake tensors: their shapes are written, not their data, to the scratch folder.

Files that were there before are loaded as ever.
"""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.sandbox import native_io
from cotenant.tracing.sandbox.overlay import Overlay

_targets: list[Any] = []


def install(overlay: Overlay) -> None:
    """Replace saving and loading, of other libraries too, and how fake tensors are pickled."""
    save, load = torch.save, torch.load

    def save_(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return
        buffer = io.BytesIO()
        save(obj, buffer, *args, **kwargs)
        overlay.write(f, buffer.getvalue())

    def load_(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            f = overlay.seen(f)
        moves: dict[int, torch.device] = {}

        def locate(storage: Any, location: str) -> Any:
            target = _target(map_location, location)
            if target.type == "cuda":
                moves[storage.data_ptr()] = target
            return storage

        _targets.append(map_location)
        try:
            return _to_device(load(f, locate, *args, **kwargs), moves)
        finally:
            _targets.pop()

    torch.save, torch.load = save_, load_
    native_io.install(overlay)
    FakeTensor.__reduce_ex__ = _reduce
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([_rebuild])


def _target(map_location: Any, location: str) -> torch.device:
    """Where a tensor that was at `location` when it was saved shall go. A function as the map means the CPU."""
    if isinstance(map_location, dict):
        map_location = map_location.get(location)
    if callable(map_location):
        return torch.device("cpu")
    return torch.device(location if map_location is None else map_location)


def _to_device(value: Any, moves: dict[int, torch.device]) -> Any:
    """`value` with the tensors whose memory is named in `moves` put onto the fake GPU."""
    if not moves:
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        target = moves.get(value.untyped_storage().data_ptr())
        return value if target is None else value.to(target)
    if isinstance(value, dict):
        for key, each in value.items():
            value[key] = _to_device(each, moves)
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(next(iter(moves.values())))
    if type(value) in (list, tuple):
        return type(value)(_to_device(each, moves) for each in value)
    return value


def _reduce(self: FakeTensor, protocol: Any) -> Any:
    is_parameter = isinstance(self, torch.nn.Parameter)
    device = str(self.fake_device)
    return _rebuild, (tuple(self.shape), tuple(self.stride()), self.dtype, device, self.requires_grad, is_parameter)


def _rebuild(
    shape: Any, stride: Any, dtype: torch.dtype, device: str, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    target = _target(_targets[-1] if _targets else None, device)
    with torch.no_grad():
        made = torch.empty_strided(shape, stride, dtype=dtype, device=target)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)
