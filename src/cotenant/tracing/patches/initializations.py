"""Initializations of large CPU tensors, which draw no numbers: no trace depends on their values.

Drawing takes seconds. The largest are left as allocated, since pages that nothing touches take no memory; others get
one number, since what was there before may be `nan`, for which distributions test their parameters. PyTorch 2.13 draws
the numbers of `trunc_normal_` again until all are within the bounds, which never ends where nothing is drawn.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_aten = torch.ops.aten
_MIN_SKIPPED_NUMEL = 1 << 16
_MAX_FILLED_NUMEL = 1 << 22
_NUMBER = 1 / 128
_FILLS = {
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.exponential_.default,
    _aten.cauchy_.default,
    _aten.log_normal_.default,
    _aten.geometric_.default,
    _aten.erfinv_.default,  # of numbers that were drawn: copies of `trunc_normal_` in repositories
}


def is_skipped(func: OpOverload, args: Any) -> bool:
    """Whether an operator only draws numbers for a large CPU tensor, which gets one number here, or none."""
    if func not in _FILLS or not _is_large(args[0]):
        return False
    if func is not _aten.erfinv_.default and args[0].numel() <= _MAX_FILLED_NUMEL:
        args[0].fill_(_NUMBER)
    return True


def patches(context: PatchContext) -> list[Patch]:
    """Initializations that test what they drew, or compute much from it."""
    return [
        Patch(
            target=target, phase=Phase.LIBRARIES, replacement=_skipping, wraps=True, source=source,
            reason="It tests what a random fill drew, or computes from it, and large fills are skipped.",
        )
        for target, source in (
            ("torch.nn.init:_no_grad_trunc_normal_", "torch/nn/init.py, `_no_grad_trunc_normal_`"),
            ("torch.nn.init:orthogonal_", "torch/nn/init.py, `orthogonal_`"),
            ("timm.layers.weight_init:_trunc_normal_", "timm/layers/weight_init.py, `_trunc_normal_`"),
        )
    ]  # fmt: skip


def _skipping(original: Any) -> Any:
    @functools.wraps(original)
    def init(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor if _is_large(tensor) else original(tensor, *args, **kwargs)

    return init


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > _MIN_SKIPPED_NUMEL
