"""Functions of bitsandbytes that take sizes from its CUDA library or from the values of a tensor.

Source: bitsandbytes/functional.py and bitsandbytes/backends/cuda/ops.py (0.45 to 0.50).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

PAGED_WARNING = "paged optimizer states are managed memory, which leaves the GPU when it is full: they are not counted"
OUTLIERS_WARNING = "the number of columns with outliers in 8-bit layers depends on the data; assumed: one in a hundred"
_COLUMNS_PER_OUTLIER = 100


def patches(context: PatchContext) -> list[Patch]:
    """Paged optimizer states, 8-bit quantization, and the norm of an update."""
    recorder = context.recorder
    paged, outliers = "Paged states are managed memory of CUDA.", "It counts the columns with outliers."
    changes: tuple[tuple[str, Any, str], ...] = (
        ("get_paged", lambda _: functools.partial(_get_paged, recorder), paged),
        ("prefetch_tensor", lambda _: lambda *args, **kwargs: None, paged),
        ("fill", _skipping_paged, paged),
        ("int8_vectorwise_quant", lambda original: functools.partial(_int8_quant, recorder, original), outliers),
        ("optimizer_update_32bit", _without_norm, "It reads the norm of a parameter from the GPU."),
    )
    return [
        Patch(
            target=f"bitsandbytes.functional:{name}", phase=Phase.LIBRARIES, replacement=change, wraps=True,
            reason=reason, source=f"bitsandbytes/functional.py, `{name}`", missing="versions without this function",
        )
        for name, change, reason in changes
    ]  # fmt: skip


def _get_paged(recorder: Any, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """A tensor of this shape that takes no GPU memory, and none here."""
    recorder.warn(PAGED_WARNING)
    made: Any = torch.zeros((), dtype=dtype).expand(shape)
    made.is_paged = True
    made.page_deviceid = getattr(device, "index", None) or 0
    return made


def _skipping_paged(original: Callable[..., Any]) -> Callable[..., Any]:
    def fill(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if getattr(tensor, "is_paged", False) else original(tensor, *args, **kwargs)

    return fill


def _int8_quant(
    recorder: Any, original: Callable[..., Any], rows: torch.Tensor, threshold: float = 0.0, **kwargs: Any
) -> Any:
    """(int8 rows, a scale per row, columns with outliers), with the temporaries of the CUDA code."""
    if threshold == 0.0 or not isinstance(rows, FakeTensor):
        return original(rows, threshold, **kwargs)
    recorder.warn(OUTLIERS_WARNING)
    scales = rows.new_empty(rows.shape[:-1].numel(), dtype=torch.float32)
    quantized = torch.empty_like(rows, dtype=torch.int8)
    outliers = rows.abs() >= threshold
    outliers.any(dim=0)
    return quantized, scales, rows.new_empty(rows.shape[-1] // _COLUMNS_PER_OUTLIER, dtype=torch.int64)


def _without_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Computes the norm of a parameter, and does not read its value."""
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("max_unorm"):
            torch.norm(bound.arguments["p"].data.float())
            bound.arguments["max_unorm"] = 0.0
        return original(*bound.args, **bound.kwargs)

    return call
