"""CUDA kernels of the StyleGAN family, which scripts compile at run time: what they return, and so allocate.

They are known by the file of their kernel, since the names of extensions differ between repositories. None of them
has scratch memory. Gradients come from the script's own autograd functions, which call them again.
Source: NVlabs/stylegan3, torch_utils/ops/{bias_act,upfirdn2d,filtered_lrelu}.cpp (the first two as in
NVlabs/stylegan2-ada-pytorch); rosinality/stylegan2-pytorch, op/{fused_bias_act,upfirdn2d}_kernel.cu, which BasicSR and
others took over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_FUSED = {
    (1, 1): (1, 1, ("FF",)),
    (2, 1): (16, 1, ("SF",)),
    (1, 2): (1, 16, ("FS",)),
    (2, 2): (16, 16, ("SS", "FS", "SF")),
    (4, 2): (32, 16, ("SS", "SF")),
    (2, 4): (16, 32, ("SS", "FS")),
}
"""Taps of the filters that have a fused kernel, by the factors of up- and downsampling; and whether each filter is
separable (S) or has two dimensions (F). Source: filtered_lrelu.cu, `choose_filtered_lrelu_kernel`."""


def module_of(name: str, sources: Sequence[str]) -> ModuleType | None:
    """The extension `name` made of `sources`; None if its kernels are not known."""
    files = [Path(source).name for source in sources if str(source).endswith(".cu")]
    known = [_KERNELS[file] for file in files if file in _KERNELS]
    if not known:
        return None
    module = ModuleType(name)
    for functions in known:
        vars(module).update(functions)
    return module


def _image(like: torch.Tensor, height: int, width: int) -> torch.Tensor:
    is_last = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    layout = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty(
        (like.shape[0], like.shape[1], height, width), dtype=like.dtype, device=like.device, memory_format=layout
    )


def _resized(size: int, up: int, down: int, pads: int, taps: int) -> int:
    return (size * up + pads - taps + down) // down


def _bias_act(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _fused_bias_act(x: torch.Tensor, bias: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x.contiguous())


def _upfirdn2d(
    x: torch.Tensor, f: torch.Tensor, upx: int, upy: int, downx: int, downy: int,
    padx0: int, padx1: int, pady0: int, pady1: int, *_: Any,
) -> torch.Tensor:  # fmt: skip
    """Of images (N, C, H, W)."""
    height = _resized(x.shape[2], upy, downy, pady0 + pady1, f.shape[0])
    return _image(x, height, _resized(x.shape[3], upx, downx, padx0 + padx1, f.shape[1]))


def _upfirdn2d_of_rows(
    x: torch.Tensor, f: torch.Tensor, upx: int, upy: int, downx: int, downy: int,
    padx0: int, padx1: int, pady0: int, pady1: int,
) -> torch.Tensor:  # fmt: skip
    """Of (major, H, W, minor)."""
    height = _resized(x.shape[1], upy, downy, pady0 + pady1, f.shape[0])
    width = _resized(x.shape[2], upx, downx, padx0 + padx1, f.shape[1])
    return torch.empty((x.shape[0], height, width, x.shape[3]), dtype=x.dtype, device=x.device)


def _filtered_lrelu(
    x: torch.Tensor, fu: torch.Tensor, fd: torch.Tensor, b: torch.Tensor, si: torch.Tensor, up: int, down: int,
    px0: int, px1: int, py0: int, py1: int, sx: int, sy: int, gain: float, slope: float, clamp: float,
    flip_filters: bool, write_signs: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:  # fmt: skip
    """The image, the signs in 2 bits each if they are written, and 0; -1 where no kernel is fused for the filters."""
    most_up, most_down, shapes = _FUSED.get((up, down), (0, 0, ()))
    shape = "".join("S" if filter_.dim() == 1 else "F" for filter_ in (fu, fd))
    if shape not in shapes or max(fu.shape) > most_up or max(fd.shape) > most_down:
        return None, None, -1
    width = x.shape[3] * up + px0 + px1 - (fu.shape[-1] - 1)
    height = x.shape[2] * up + py0 + py1 - (fu.shape[0] - 1)
    y_width = (width - (fd.shape[-1] - 1) + down - 1) // down
    y_height = (height - (fd.shape[0] - 1) + down - 1) // down
    y = _image(x, y_height, y_width)
    if not write_signs:
        return y, None, 0
    signs = y_width * down - (down - 1) + fd.shape[-1] - 1
    return y, _signs(x, y_height * down - (down - 1) + fd.shape[0] - 1, signs), 0


def _filtered_lrelu_act(
    x: torch.Tensor, si: torch.Tensor, sx: int, sy: int, gain: float, slope: float, clamp: float, write_signs: bool
) -> torch.Tensor | None:
    """Writes to `x`; the signs."""
    return _signs(x, x.shape[2], x.shape[3]) if write_signs else None


def _signs(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return torch.empty((x.shape[0], x.shape[1], height, -(-width // 16) * 4), dtype=torch.uint8, device=x.device)


_KERNELS: dict[str, dict[str, Callable[..., Any]]] = {
    "bias_act.cu": {"bias_act": _bias_act},
    "upfirdn2d.cu": {"upfirdn2d": _upfirdn2d},
    # Its instances that write signs; those that read them, and those without any, are in files of their own.
    "filtered_lrelu_wr.cu": {"filtered_lrelu": _filtered_lrelu, "filtered_lrelu_act_": _filtered_lrelu_act},
    "fused_bias_act_kernel.cu": {"fused_bias_act": _fused_bias_act},
    "upfirdn2d_kernel.cu": {"upfirdn2d": _upfirdn2d_of_rows},
}
