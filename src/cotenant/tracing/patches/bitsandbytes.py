"""Functions of bitsandbytes that ask its CUDA library, or the values of a tensor, for what decides sizes.

Source: bitsandbytes/functional.py and bitsandbytes/backends/cuda/ops.py (0.45 to 0.50).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.import_hooks import when_imported

PAGED_WARNING = "paged optimizer states are managed memory, which leaves the GPU when it is full: they are not counted"
OUTLIERS_WARNING = "how many columns of 8-bit layers have outliers depends on the data; assumed: one in a hundred"
_COLUMNS_PER_OUTLIER = 100


def install(recorder: Any) -> None:
    """Mend it once a script imports it."""
    when_imported("bitsandbytes.functional", functools.partial(_patch, recorder))


def _patch(recorder: Any, module: Any) -> None:
    changes = {
        "get_paged": lambda _: functools.partial(_get_paged, recorder),
        "prefetch_tensor": lambda _: lambda *args, **kwargs: None,
        "fill": lambda original: _unless(lambda tensor: getattr(tensor, "is_paged", False), original),
        "int8_vectorwise_quant": lambda original: functools.partial(_int8_vectorwise_quant, recorder, original),
        "optimizer_update_32bit": _without_norm,
    }
    for name, change in changes.items():
        if hasattr(module, name):
            setattr(module, name, change(getattr(module, name)))


def _get_paged(recorder: Any, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """A tensor of this shape that takes no memory of the GPU, and none here."""
    recorder.warn(PAGED_WARNING)
    made: Any = torch.zeros((), dtype=dtype).expand(shape)
    made.is_paged = True
    made.page_deviceid = getattr(device, "index", None) or 0
    return made


def _unless(skips: Callable[[Any], bool], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return None if skips(first) else original(first, *args, **kwargs)

    return call


def _int8_vectorwise_quant(
    recorder: Any, original: Callable[..., Any], rows: torch.Tensor, threshold: float = 0.0, **kwargs: Any
) -> Any:
    """Bytes, a scale for each row and the columns with outliers, with the temporaries of the CUDA code."""
    if threshold == 0.0 or not isinstance(rows, FakeTensor):
        return original(rows, threshold, **kwargs)
    recorder.warn(OUTLIERS_WARNING)
    scales = rows.new_empty(rows.shape[:-1].numel(), dtype=torch.float32)
    quantized = torch.empty_like(rows, dtype=torch.int8)
    outliers = rows.abs() >= threshold
    outliers.any(dim=0)
    return quantized, scales, rows.new_empty(rows.shape[-1] // _COLUMNS_PER_OUTLIER, dtype=torch.int64)


def _without_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """The norm of a parameter is taken, and its value not asked for."""
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("max_unorm"):
            torch.norm(bound.arguments["p"].data.float())
            bound.arguments["max_unorm"] = 0.0
        return original(*bound.args, **bound.kwargs)

    return call
