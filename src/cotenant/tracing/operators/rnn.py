"""Recurrent layers by cuDNN: one call for all layers and steps, with all weights in one block; and fused GRU cells.

A build without cuDNN decomposes `aten::lstm`, `gru` and `rnn_*` into a cell per step, with very different memory. Here
they become `_cudnn_rnn`, as on a GPU. Source: aten/src/ATen/native/cudnn/RNN.cpp, PyTorch 2.13.
The sizes of cuDNN's buffers are in `recurrent_layers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.recurrent_layers import GRU, LSTM, RELU, TANH, RecurrentLayers
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.same_device import check_recurrent_layer
from cotenant.tracing.operators.strides import contiguous_strides
from cotenant.tracing.patches.registry import Entry, KernelPatch, Patch, PatchContext, Phase

operators = OperatorTable()

_aten = torch.ops.aten

_RANDOM_STATE_BYTES = 48
_ASSUMED_WARNING = "cuDNN's memory for recurrent layers is what cuDNN 9.20 answers without a GPU"


def patches(context: PatchContext) -> list[Entry]:
    """Recurrent layers of CUDA tensors go to cuDNN's operator."""
    states = _DropoutStates()
    kernels = [
        KernelPatch(
            target=f"aten::{name}.{kind}", phase=Phase.OPERATORS, key="AutogradCUDA",
            kernel=route(name, number, context.recorder, states), divides=True,
            reason="A CPU build divides recurrent layers into single steps, where CUDA calls cuDNN once.",
            source="aten/src/ATen/native/RNN.cpp, `lstm`",
        )
        for name, number in (("lstm", LSTM), ("gru", GRU), ("rnn_tanh", TANH), ("rnn_relu", RELU))
        for kind, route in (("input", _padded), ("data", _packed))
    ]  # fmt: skip
    flatten = Patch(
        target="torch.nn:RNNBase.flatten_parameters", phase=Phase.OPERATORS, replacement=_flatten_parameters,
        reason="It checks whether cuDNN accepts the weights, and compares their addresses.",
        source="torch/nn/modules/rnn.py, `RNNBase.flatten_parameters`",
    )  # fmt: skip
    return [*kernels, flatten]


class _DropoutStates:
    """Random states, which the first layers that drop values make for their GPU, and which are never freed.

    Source: aten/src/ATen/native/cudnn/RNN.cpp, `get_dropout_state`. cuDNN wants a state for each thread of the GPU.
    """

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def make(self, device: torch.device) -> None:
        """Allocate the states of a GPU, if there are none."""
        if device.index in self._made:
            return
        gpu = torch.cuda.get_device_properties(device)
        state_bytes = gpu.multi_processor_count * gpu.max_threads_per_multi_processor * _RANDOM_STATE_BYTES
        torch.empty((), dtype=torch.int64, device=device)  # a seed
        self._made[device.index] = torch.empty(state_bytes, dtype=torch.uint8, device=device)


def _padded(name: str, number: int, recorder: Any, states: _DropoutStates) -> Any:
    original = getattr(_aten, name).input

    def call(
        x: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both: bool,
        first: bool,
    ) -> Any:
        if not torch.backends.cudnn.enabled:
            return original.decompose(x, hx, params, has_biases, layers, dropout, train, both, first)
        recorder.warn(_ASSUMED_WARNING)
        if dropout and train:
            states.make(x.device)
        return _call_cudnn_rnn(number, x, hx, params, has_biases, layers, dropout, train, both, first, [])

    return call


def _packed(name: str, number: int, recorder: Any, states: _DropoutStates) -> Any:
    original = getattr(_aten, name).data

    def call(
        x: Any, sizes: Any, hx: Any, params: Any, has_biases: bool, layers: int, dropout: float, train: bool, both: bool
    ) -> Any:
        if not torch.backends.cudnn.enabled:
            return original.decompose(x, sizes, hx, params, has_biases, layers, dropout, train, both)
        recorder.warn(_ASSUMED_WARNING)
        if dropout and train:
            states.make(x.device)
        return _call_cudnn_rnn(number, x, hx, params, has_biases, layers, dropout, train, both, False, sizes.tolist())

    return call


def _call_cudnn_rnn(
    number: int,
    x: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    h, c = (hx[0], hx[1]) if number == LSTM else (hx, None)
    check_recurrent_layer(x, (h,) if c is None else (h, c), params)
    hidden = c.shape[2] if c is not None else h.shape[2]
    projected = h.shape[2] if h.shape[2] != hidden else 0
    # ATen/cudnn/AutocastRNN.cpp: autocast has a kernel of its own for `_cudnn_rnn`, which also copies the weights to
    # one block of low precision.
    if torch.is_autocast_enabled("cuda"):
        low = torch.get_autocast_dtype("cuda")
        x, h = x.to(low), h.to(low)
        c = c.to(low) if c is not None else None
        params = [param.to(low) for param in params]
    params_per_layer = (4 if has_biases else 2) + bool(projected)
    with torch.autocast("cuda", enabled=False):
        out, hy, cy, _, _ = torch._cudnn_rnn(
            x, params, params_per_layer, _weight_block(params), h, c, number, hidden, projected, layers,
            batch_first, dropout, train, both, batch_sizes, None,
        )  # fmt: skip
    return (out, hy, cy) if number == LSTM else (out, hy)


def _weight_block(params: Sequence[Any]) -> Any:
    """The block that holds all weights; None if they are in several storages, or share theirs with other tensors."""
    first = params[0].untyped_storage()
    numel = sum(param.numel() for param in params)
    if any(param.untyped_storage()._cdata != first._cdata for param in params):
        return None
    if first.nbytes() != numel * params[0].element_size():
        return None
    with torch.no_grad():
        return params[0].detach().as_strided((numel,), (1,), 0)


def _flatten_parameters(self: Any) -> None:
    """Move all weights into one block, as on a GPU. Source: torch/nn/modules/rnn.py, `flatten_parameters`."""
    weights = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not all(isinstance(weight, FakeTensor) for weight in weights):
        return
    if any(weight.device.type != "cuda" or weight.dtype != weights[0].dtype for weight in weights):
        return
    # nn/modules/rnn.py compares addresses, to leave out parameters that share memory; a fake tensor has none.
    if len({id(weight) for weight in weights}) != len(weights) or not torch.backends.cudnn.enabled:
        return
    if _weight_block(weights) is not None:
        return
    with torch.no_grad():
        block = torch.zeros(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=weights[0].device)
        start = 0
        for weight in weights:
            weight.data = block[start : start + weight.numel()].view(weight.shape)
            start += weight.numel()


# -- the operator itself, on fake tensors ---------------------------------------------------------------------------


def _rows_batch_steps(x: Any, batch_first: bool, batch_sizes: Sequence[int]) -> tuple[int, int, int]:
    """(steps times batch, batch, steps)."""
    if batch_sizes:
        return x.shape[0], batch_sizes[0], len(batch_sizes)
    batch, steps = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    return batch * steps, batch, steps


@operators.shape_of("aten::_cudnn_rnn")
def _cudnn_rnn(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, last hidden state, last cell state, reserve space, weight block)."""
    (x, weights, _, block, _, cx, number, hidden, projected, layers, batch_first, drop, train, both, batch_sizes, _) = (
        args
    )
    rows, batch, steps = _rows_batch_steps(x, batch_first, batch_sizes)
    directions, width = (2 if both else 1), projected or hidden

    def new(shape: Sequence[int], dtype: torch.dtype | None = None) -> FakeTensor:
        made = ctx.empty_strided(shape, contiguous_strides(shape), dtype or x.dtype, x.device)
        ctx.record(made)
        return made

    # RNN.cpp, `_cudnn_rnn`: cuDNN reads time-major input, so a batch-first one is transposed, and made contiguous.
    copies = [new(x.shape)] if not (x.transpose(0, 1) if batch_first else x).is_contiguous() else []
    if batch_sizes:
        out = new((rows, width * directions))
    else:
        out = new((steps, batch, width * directions))
        out = out.transpose(0, 1) if batch_first else out
    hy = new((layers * directions, batch, width))
    cy = new((layers * directions, batch, hidden)) if cx is not None else new((0,))
    # Weights that are not in one block are copied to one on every call: `weight_buf = at::empty(num_weights, ...)`.
    if block is None:
        block = new((sum(weight.numel() for weight in weights),))
    called = RecurrentLayers(
        number=number, rows=rows, batch=batch, steps=steps, inputs=x.shape[-1], hidden=hidden, projected=projected,
        layers=layers, directions=directions, matrices=_matrices(weights), packed=bool(batch_sizes), dropout=bool(drop),
    )  # fmt: skip
    copies.append(new((called.workspace_bytes(x.element_size(), trains=train),), torch.uint8))
    reserve_bytes = called.reserve_bytes(x.element_size()) if train else 0
    return out, hy, cy, new((reserve_bytes,), torch.uint8), block


def _matrices(weights: Sequence[Any]) -> int:
    return sum(weight.numel() for weight in weights if weight.dim() > 1)


@operators.shape_of("aten::_cudnn_rnn_backward")
def _cudnn_rnn_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input, hidden state, cell state and each weight; the last are views of one block."""
    (
        x,
        weights,
        _,
        block,
        hx,
        cx,
        _,
        grad_out,
        grad_hy,
        grad_cy,
        number,
        hidden,
        projected,
        layers,
        batch_first,
        *rest,
    ) = args
    drop, both, batch_sizes, mask = rest[0], rest[2], rest[3], rest[6]
    rows, batch, steps = _rows_batch_steps(x, batch_first, batch_sizes)

    def new(shape: Sequence[int], dtype: torch.dtype | None = None) -> FakeTensor:
        made = ctx.empty_strided(shape, contiguous_strides(shape), dtype or x.dtype, x.device)
        ctx.record(made)
        return made

    def copied(operand: Any) -> Any:
        is_dense = operand is None or (operand.transpose(0, 1) if batch_first else operand).is_contiguous()
        return None if is_dense else new(operand.shape)

    # RNN.cpp, `_cudnn_rnn_backward`: gradients of states that nothing used are zeros.
    alive = [new(state.shape) for state, grad in ((hx, grad_hy), (cx, grad_cy)) if state is not None and grad is None]
    copies = [copied(x), copied(grad_out)]
    grad_x = new((x.shape[1], x.shape[0], x.shape[2])).transpose(0, 1) if batch_first else new(x.shape)
    grad_h = new(hx.shape)
    grad_c = new(cx.shape) if cx is not None else None
    called = RecurrentLayers(
        number=number, rows=rows, batch=batch, steps=steps, inputs=x.shape[-1], hidden=hidden, projected=projected,
        layers=layers, directions=2 if both else 1, matrices=_matrices(weights), packed=bool(batch_sizes),
        dropout=bool(drop),
    )  # fmt: skip
    workspace_bytes = called.workspace_bytes(x.element_size(), trains=True)
    new((workspace_bytes,), torch.uint8)
    del copies  # at the end of `_cudnn_rnn_backward_input`
    grads = []
    if mask[3]:
        alive.append(copied(x))
        flat, start = new((math.prod(block.shape),)), 0
        alive.append(new((workspace_bytes,), torch.uint8))
        for weight in weights:
            grads.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
    return grad_x, grad_h, grad_c, grads


# -- cells, one step at a time --------------------------------------------------------------------------------------

_GRU_WORKSPACE_VALUES = 5


@operators.shape_of("aten::_thnn_fused_gru_cell")
def _gru_cell(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(next hidden state, workspace of backward). Source: ATen/native/cuda/RNN.cu, `_thnn_fused_gru_cell_cuda`."""
    hidden = args[2]
    workspace = _empty_contiguous(ctx, (hidden.shape[0], hidden.shape[1] * _GRU_WORKSPACE_VALUES), hidden)
    ctx.record(workspace)
    return _empty_contiguous(ctx, hidden.shape, hidden), workspace


@operators.shape_of("aten::_thnn_fused_gru_cell_backward")
def _gru_cell_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input gates, hidden gates, hidden state and both biases."""
    grad, workspace, has_bias = args
    gates = 3 * (workspace.shape[1] // _GRU_WORKSPACE_VALUES)
    shapes = [(workspace.shape[0], gates)] * 2 + [grad.shape] + ([(gates,)] * 2 if has_bias else [])
    made = [_empty_contiguous(ctx, shape, workspace) for shape in shapes]
    return (*made, *[None] * (5 - len(made)))


def _empty_contiguous(ctx: OpContext, shape: Sequence[int], like: Any) -> FakeTensor:
    made: FakeTensor = ctx.empty_strided(shape, contiguous_strides(shape), like.dtype, like.fake_device)
    return made
