"""Compiled modules of causal-conv1d and mamba-ssm, by what their functions allocate. Mamba 2 is Triton.

Source: Dao-AILab/causal-conv1d, csrc/causal_conv1d.cpp (1.4: it makes results; 1.6: Python makes them);
state-spaces/mamba 2.2, csrc/selective_scan/selective_scan.cpp, `selective_scan_fwd`, `selective_scan_bwd`.
Not modeled: the workspace of deterministic algorithms of causal-conv1d.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cotenant.tracing.patches.kernel_modules import Functions, provide
from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

_CHUNK = 2048
"""Steps of a sequence after which the scan stores its state."""
_FILLED_FORWARD, _FILLED_BACKWARD = 8, 12
"""Arguments of the functions of causal-conv1d that fill tensors which Python made; older ones have fewer."""


def patches(context: PatchContext) -> list[HookPatch]:
    """The modules `causal_conv1d_cuda` and `selective_scan_cuda`."""
    convolution: Functions = {
        "causal_conv1d_fwd": _convolution_forward,
        "causal_conv1d_bwd": _convolution_backward,
        "causal_conv1d_update": _convolution_update,
    }
    scan: Functions = {"fwd": _scan_forward, "bwd": _scan_backward}
    return [
        HookPatch(
            target=module, phase=Phase.LIBRARIES,
            register=functools.partial(provide, package, {module: functions}),
            reason="It is compiled for CUDA, and its package imports it by name.", source=source,
        )
        for package, module, functions, source in (
            ("causal_conv1d", "causal_conv1d_cuda", convolution, "causal_conv1d/cpp_functions.py"),
            ("mamba_ssm", "selective_scan_cuda", scan, "mamba_ssm/ops/selective_scan_interface.py"),
        )
    ]  # fmt: skip


# -- causal-conv1d ---------------------------------------------------------------------------------------------------


def _convolution_forward(x: Any, *args: Any) -> Any:
    """Shapes: (batch, width, length)."""
    return None if 1 + len(args) == _FILLED_FORWARD else torch.empty_like(x)


def _convolution_backward(x: Any, weight: Any, bias: Any, *args: Any) -> Any:
    if 3 + len(args) == _FILLED_BACKWARD:
        return None
    *_, dx, with_states, _ = args
    dx = torch.empty_like(x) if dx is None else dx
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    states = x.new_empty((x.shape[0], weight.shape[-1] - 1, x.shape[1])).transpose(1, 2) if with_states else None
    return dx, dweight.to(weight.dtype), None if dbias is None else dbias.to(bias.dtype), states


def _convolution_update(x: Any, state: Any, weight: Any, bias: Any, *args: Any) -> Any:
    """One step of generation. Since 1.5, an `out` is the first of the other arguments."""
    return None if args and isinstance(args[0], torch.Tensor) else torch.empty_like(x)


# -- mamba-ssm -------------------------------------------------------------------------------------------------------


def _scan_forward(u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, *args: Any) -> list[Any]:
    """Output, the state after each chunk, and the output times its gate. Shapes: (batch, width, length)."""
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    batch, width, length = u.shape
    states = u.new_empty((batch, width, -(-length // _CHUNK), 2 * a.shape[1]), dtype=a.dtype)
    return [out, states, *gated]


def _scan_backward(
    u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, delta_bias: Any, grad: Any, states: Any, out: Any,
    dz: Any, delta_softplus: bool, recompute: bool,
) -> list[Any]:  # fmt: skip
    """Gradients of the arguments in order; those of `b` and `c`, if they vary over time, are added up in float32."""
    gate = [] if z is None else [torch.empty_like(z) if dz is None else dz]
    recomputed = [torch.empty_like(out)] if recompute and z is not None else []
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)
    db, dc = (torch.zeros_like(of, dtype=torch.float32 if of.dim() >= 3 else of.dtype) for of in (b, c))
    dd, dbias = (None if of is None else torch.zeros_like(of) for of in (d, delta_bias))
    return [du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), dd, dbias, *gate, *recomputed]
