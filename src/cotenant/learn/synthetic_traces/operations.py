"""Operations of the published networks on a `Tape`: what each allocates, saves and frees. fp32, training mode.

Shapes: `B` samples, `L` tokens, `C` channels, `S` pixels of a side, `D` width, `F` features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.learn.synthetic_traces.backward_steps import (
    AllocateScratch,
    BackwardStep,
    CallLibrary,
    FreeScratch,
    InputGradient,
    PassGradient,
    ReleaseSaved,
    WeightGradient,
)
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor

SAVE_OUTPUT = frozenset({"relu", "tanh", "sigmoid", "softmax"})
"""Activations that save their output for the backward pass; all others save their input."""
INDEX_BYTES = 8
FEW_INDICES = 3072
ROWS_A_THREAD = 10
"""Constants of the gradient of an embedding: see `tracing.operators.kernel_scratch`."""
MIN_VALUES = 256
"""Of a reduction whose results are shared by blocks: see `tracing.operators.reductions`."""


def linear(tape: Tape, x: Tensor, rows: int, weight: Parameter, bias: Parameter | None) -> Tensor:
    """A matrix product of `rows` vectors; the features follow from the bias, or from the weight and `x`."""
    features = bias.bytes // F32 if bias else weight.bytes // (x.bytes // rows)
    out = tape.allocate(F32 * rows * features)
    tape.call_library("gemm_lt" if bias and features > 1 else "gemm")
    gemm = tape.op_id("gemm", "autograd")
    formula: list[BackwardStep] = [InputGradient(0, x.bytes), CallLibrary(gemm)] if x.node else []
    formula += [WeightGradient(weight), CallLibrary(gemm)]
    if bias:
        formula += summed(tape, bias, (rows, features), (0,))
    return tape.record(out, [x], formula, [x])


def summed(tape: Tape, parameter: Parameter, shape: tuple[int, ...], dims: tuple[int, ...]) -> list[BackwardStep]:
    """The gradient of a parameter that was broadcast over `dims` of a tensor of `shape`: the sum over them."""
    gradient: BackwardStep = WeightGradient(parameter)
    call = reduction(tape, "autograd", shape, dims)
    return [gradient] if call is None else [gradient, CallLibrary(call)]


def reduction(tape: Tape, thread: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
    """The library call of a reduction over `dims`; None where no result is shared by blocks."""
    if math.prod(shape[dim] for dim in dims) < MIN_VALUES:
        return None
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    sizes = (("item_bytes", F32), ("sum_bytes", F32))
    return tape.op_id(
        "reduction", thread, (("shape", shape), ("strides", strides), ("offset", 0), ("dims", dims), *sizes)
    )


def convolution(
    tape: Tape,
    x: Tensor,
    x_shape: tuple[int, ...],
    out_channels: int,
    *,
    kernel: int,
    stride: int,
    weights: Sequence[Parameter],
) -> Tensor:
    """A square 2-D convolution with "same" padding; `weights` are its weight and, if it has one, its bias."""
    batch, channels, height, width = x_shape
    y_shape = (batch, out_channels, -(-height // stride), -(-width // stride))
    params = (
        ("x", x_shape),
        ("w", (out_channels, channels, kernel, kernel)),
        ("y", y_shape),
        ("stride", (stride, stride)),
        ("padding", (kernel // 2, kernel // 2)),
        ("dilation", (1, 1)),
        ("groups", 1),
        ("dtype", "float32"),
        ("channels_last", False),
        ("transposed", False),
        ("benchmark", False),
        ("deterministic", False),
        ("allow_tf32", True),
        ("enabled", True),
    )
    out = tape.allocate(F32 * math.prod(y_shape))
    tape.call_library("conv_forward", "main", params)
    formula: list[BackwardStep] = []
    if x.node:
        formula += [InputGradient(0, x.bytes), CallLibrary(tape.op_id("conv_dgrad", "autograd", params))]
    formula += [
        WeightGradient(weights[0]),
        CallLibrary(tape.op_id("conv_wgrad", "autograd", params)),
    ]
    for weight in weights[1:]:
        formula += summed(tape, weight, y_shape, (0, 2, 3))
    return tape.record(out, [x], formula, [x])


def norm(tape: Tape, x: Tensor, groups: int, weights: Sequence[Parameter], *, of_vectors: bool = False) -> Tensor:
    """Batch norm (`groups`: channels) or layer norm (`groups`: tokens): it saves a mean and a deviation of each.

    `of_vectors`: batch norm without pixels, which PyTorch's own kernel normalizes, with two sums for each channel in
    its backward pass (see `tracing.operators.batch_norm`).
    """
    out = tape.allocate(x.bytes)
    mean, deviation = tape.allocate(F32 * groups), tape.allocate(F32 * groups)
    of_input: list[BackwardStep] = [InputGradient(0, x.bytes)] if x.node else []
    of_weights: list[BackwardStep] = [WeightGradient(weight) for weight in weights]
    formula = [*of_input, *of_weights]
    if of_vectors:
        sums = [AllocateScratch(slot, F32 * groups) for slot in (0, 1)]
        formula = [*sums, *of_weights, *of_input, FreeScratch(1), FreeScratch(0)]
    tape.record(out, [x], formula, [x, mean, deviation])
    tape.release(mean)
    tape.release(deviation)
    return out


def activation(tape: Tape, x: Tensor, name: str, weight: Parameter | None = None) -> Tensor:
    """An activation of the same size as `x`; `weight` is that of a PReLU."""
    if name == "identity":
        return tape.retain(x)
    out = tape.allocate(x.bytes)
    formula: list[BackwardStep] = [InputGradient(0, x.bytes)]
    if name == "softmax":  # gradient times output: ATen/native/cuda/SoftMax.cu, `softmax_backward_cuda_out`
        formula += [AllocateScratch(0, x.bytes), FreeScratch(0)]
    if weight is not None:
        formula += [
            AllocateScratch(0, x.bytes),
            *summed(tape, weight, (x.bytes // F32,), (0,)),
            FreeScratch(0),
        ]
    return tape.record(out, [x], formula, [out if name in SAVE_OUTPUT else x])


def dropout(tape: Tape, x: Tensor) -> Tensor:
    """Saves a mask of one byte per element."""
    mask = tape.allocate(x.bytes // F32)
    out = tape.allocate(x.bytes)
    tape.record(out, [x], [InputGradient(0, x.bytes)], [mask])
    tape.release(mask)
    return out


def mean(tape: Tape, x: Tensor, shape: tuple[int, ...], dims: tuple[int, ...]) -> Tensor:
    """The mean over `dims` of `x`, which has `shape`; saves nothing."""
    out = tape.allocate(F32 * math.prod(size for dim, size in enumerate(shape) if dim not in dims))
    call = reduction(tape, "main", shape, dims)
    if call is not None:
        tape.record_call(call)
    return tape.record(out, [x], [InputGradient(0, x.bytes)])


def pool(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """An average pooling to `elements` in all; saves nothing."""
    return tape.record(tape.allocate(F32 * elements), [x], [InputGradient(0, x.bytes)])


def add(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """A residual connection: both inputs share the incoming gradient."""
    return tape.record(tape.allocate(x.bytes), [x, y], [PassGradient(0), PassGradient(1)])


def concatenate(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """Both tensors copied into one; their gradients are views of the incoming one, and keep it alive."""
    return tape.record(tape.allocate(x.bytes + y.bytes), [x, y], [PassGradient(0), PassGradient(1)])


def embed(tape: Tape, indices: Tensor, elements: int, weight: Parameter) -> Tensor:
    """Rows of a table; the gradient is as large as the table, and needs sorted indices if there are many."""
    formula: list[BackwardStep] = [WeightGradient(weight)]
    count = indices.bytes // INDEX_BYTES
    if count > FEW_INDICES:
        width = elements // count
        segments = min(count, weight.bytes // (F32 * width))
        parts = count // ROWS_A_THREAD + segments
        sizes = [count, count, count, segments, segments, parts]
        scratch = [*(INDEX_BYTES * size for size in sizes), F32 * parts * width]
        made = [AllocateScratch(i, nbytes) for i, nbytes in enumerate(scratch)]
        formula = [*made[:2], *formula, *made[2:], *(FreeScratch(i) for i in reversed(range(len(made))))]
    return tape.record(tape.allocate(F32 * elements), [indices], formula, [indices])


def add_positions(tape: Tape, x: Tensor, weight: Parameter) -> Tensor:
    """Learned positions, the same for every sample."""
    shape = (x.bytes // weight.bytes, weight.bytes // F32)
    return tape.record(tape.allocate(x.bytes), [x], [PassGradient(0), *summed(tape, weight, shape, (0,))])


def self_attention(tape: Tape, x: Tensor, batch: int, length: int, heads: int, weights: Sequence[Parameter]) -> Tensor:
    """`nn.MultiheadAttention` on one tensor, by the memory-efficient kernel; `weights`: in, in bias, out, out bias.

    The input is transposed to sequence first, multiplied into packed queries, keys and values, and these are copied
    apart.
    """
    size, (w_in, b_in, w_out, b_out) = x.bytes, weights
    turned = tape.record(tape.allocate(size), [x], [PassGradient(0)])
    packed = tape.allocate(3 * size)
    tape.call_library("gemm")
    apart = tape.allocate(3 * size)
    tape.release(packed)
    gemm = tape.op_id("gemm", "autograd")
    bias = summed(tape, b_in, (length * batch, b_in.bytes // F32), (0,))
    formula: list[BackwardStep] = [*bias, WeightGradient(w_in), CallLibrary(gemm), InputGradient(0, size)]
    tape.record(apart, [turned], [*formula, CallLibrary(gemm)], [turned])
    tape.release(turned)
    out = tape.allocate(size)
    log_sums = tape.allocate(F32 * batch * heads * (-(-length // 32) * 32))
    rows_bytes = F32 * batch * heads * length
    blocks, width = -(-length // 64), size // (F32 * batch * length * heads)
    accumulators = batch * heads * (64 * blocks * max(64, 64 * -(-width // 64)) * F32 + 16 * blocks)
    tape.record(out, [apart], _attention_gradient(size, rows_bytes, accumulators), [apart, log_sums, out])
    for tensor in (apart, log_sums):
        tape.release(tensor)
    merged = tape.record(tape.allocate(size), [out], [PassGradient(0)])
    tape.release(out)
    projected = linear(tape, merged, batch * length, w_out, b_out)
    tape.release(merged)
    # Transposing back to batch first is a view, but its gradient is copied.
    return tape.record(projected, [projected], [InputGradient(0, size)])


def _attention_gradient(size: int, rows_bytes: int, accumulator_bytes: int) -> list[BackwardStep]:
    """Gradients of queries, keys and values; each is copied twice, then all three are packed into one.

    The kernel needs a contiguous gradient, sums its product with the result, and accumulates the gradient of the
    queries: see `tracing.operators.attention_scratch`.
    """
    steps: list[BackwardStep] = [
        AllocateScratch(12, size),
        *(AllocateScratch(i, size) for i in range(3)),
        AllocateScratch(13, size),
    ]
    steps += [
        AllocateScratch(14, rows_bytes),
        AllocateScratch(15, rows_bytes),
        FreeScratch(14),
        FreeScratch(13),
        AllocateScratch(16, accumulator_bytes),
        FreeScratch(15),
        FreeScratch(16),
    ]
    steps += [FreeScratch(12), ReleaseSaved()]
    for round_ in (3, 6):
        for i in range(3):
            steps += [
                AllocateScratch(round_ + i, size),
                FreeScratch(round_ - 1 - i if round_ == 3 else i + 3),
            ]
    steps += [
        AllocateScratch(9, 3 * size),
        FreeScratch(6),
        AllocateScratch(10, 3 * size),
        FreeScratch(7),
        FreeScratch(10),
    ]
    steps += [
        AllocateScratch(11, 3 * size),
        FreeScratch(8),
        FreeScratch(11),
        InputGradient(0, 3 * size),
        FreeScratch(9),
    ]
    return steps


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """The loss, by log-softmax and negative log-likelihood."""
    size = logits.bytes
    logs = tape.allocate(size)
    tape.record(logs, [logits], [InputGradient(0, size)], [logs])
    loss, weight = tape.allocate(F32), tape.allocate(F32)
    tape.record(loss, [logs], [InputGradient(0, size)], [weight])
    tape.release(logs)
    tape.release(weight)
    return loss
