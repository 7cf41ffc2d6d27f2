"""Operations of the networks in the published sets, as a `Tape` sees them. fp32, training mode.

Shapes: `B` samples, `L` tokens, `C` channels, `S` pixels of a side, `D` width, `F` features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.learn.synthetic_traces.tape import DONE, F32, BackwardStep, Parameter, Tape, Tensor

SAVE_OUTPUT = frozenset({"relu", "tanh", "sigmoid", "softmax"})
"""Activations whose gradient is computed from their output; of all others, from their input."""
INDEX_BYTES = 8
FEW_INDICES = 3072
ROWS_A_THREAD = 10
"""Of the gradient of an embedding: see `tracing.operators.insides`."""
MIN_VALUES = 256
"""Of a reduction that divides a result: see `tracing.operators.reductions`."""


def linear(tape: Tape, x: Tensor, rows: int, weight: Parameter, bias: Parameter | None) -> Tensor:
    """A matrix product of `rows` vectors. The bias' length tells the features; without one the weight and `x` do."""
    features = bias.bytes // F32 if bias else weight.bytes // (x.bytes // rows)
    out = tape.make(F32 * rows * features)
    tape.call("gemm_lt" if bias and features > 1 else "gemm")
    gemm = tape.op("gemm", "autograd")
    formula = [BackwardStep("grad", 0, x.bytes), BackwardStep("op", gemm)] if x.node else []
    formula += [BackwardStep("weight", parameter=weight), BackwardStep("op", gemm)]
    if bias:
        formula += summed(tape, bias, (rows, features), (0,))
    return tape.result(out, [x], formula, [x])


def summed(tape: Tape, parameter: Parameter, shape: tuple[int, ...], dims: tuple[int, ...]) -> list[BackwardStep]:
    """The gradient of a parameter that was spread over `dims` of a tensor of `shape`: the sum over them."""
    gradient = BackwardStep("weight", parameter=parameter)
    call = reduction(tape, "autograd", shape, dims)
    return [gradient] if call is None else [gradient, BackwardStep("op", call)]


def reduction(tape: Tape, thread: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
    """The library call that a reduction over `dims` makes; None where it divides no result among blocks."""
    if math.prod(shape[each] for each in dims) < MIN_VALUES:
        return None
    strides = tuple(math.prod(shape[each + 1 :]) for each in range(len(shape)))
    sizes = (("item_bytes", F32), ("sum_bytes", F32))
    return tape.op("reduction", thread, (("shape", shape), ("strides", strides), ("offset", 0), ("dims", dims), *sizes))


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
    out = tape.make(F32 * math.prod(y_shape))
    tape.call("conv_forward", "main", params)
    formula = []
    if x.node:
        formula += [BackwardStep("grad", 0, x.bytes), BackwardStep("op", tape.op("conv_dgrad", "autograd", params))]
    formula += [
        BackwardStep("weight", parameter=weights[0]),
        BackwardStep("op", tape.op("conv_wgrad", "autograd", params)),
    ]
    for each in weights[1:]:
        formula += summed(tape, each, y_shape, (0, 2, 3))
    return tape.result(out, [x], formula, [x])


def norm(tape: Tape, x: Tensor, groups: int, weights: Sequence[Parameter]) -> Tensor:
    """Batch norm (`groups`: channels) or layer norm (`groups`: tokens): a mean and a deviation of each is kept."""
    out = tape.make(x.bytes)
    mean, deviation = tape.make(F32 * groups), tape.make(F32 * groups)
    formula = [BackwardStep("grad", 0, x.bytes)] if x.node else []
    formula += [BackwardStep("weight", parameter=each) for each in weights]
    tape.result(out, [x], formula, [x, mean, deviation])
    tape.drop(mean)
    tape.drop(deviation)
    return out


def activation(tape: Tape, x: Tensor, name: str, weight: Parameter | None = None) -> Tensor:
    """An activation of the same size as `x`; `weight` is that of a PReLU."""
    if name == "identity":
        return tape.keep(x)
    out = tape.make(x.bytes)
    formula = [BackwardStep("grad", 0, x.bytes)]
    if weight is not None:
        formula += [
            BackwardStep("make", 0, x.bytes),
            *summed(tape, weight, (x.bytes // F32,), (0,)),
            BackwardStep("drop", 0),
        ]
    return tape.result(out, [x], formula, [out if name in SAVE_OUTPUT else x])


def dropout(tape: Tape, x: Tensor) -> Tensor:
    """A mask of a byte for each element is kept."""
    mask = tape.make(x.bytes // F32)
    out = tape.make(x.bytes)
    tape.result(out, [x], [BackwardStep("grad", 0, x.bytes)], [mask])
    tape.drop(mask)
    return out


def mean(tape: Tape, x: Tensor, shape: tuple[int, ...], dims: tuple[int, ...]) -> Tensor:
    """The mean over `dims` of `x`, which has `shape`; nothing is kept."""
    out = tape.make(F32 * math.prod(size for each, size in enumerate(shape) if each not in dims))
    call = reduction(tape, "main", shape, dims)
    if call is not None:
        tape.called(call)
    return tape.result(out, [x], [BackwardStep("grad", 0, x.bytes)])


def pool(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """An average pooling to so many elements in all; nothing is kept."""
    return tape.result(tape.make(F32 * elements), [x], [BackwardStep("grad", 0, x.bytes)])


def add(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """A residual connection: the gradient goes both ways as it is."""
    return tape.result(tape.make(x.bytes), [x, y], [BackwardStep("pass", 0), BackwardStep("pass", 1)])


def concatenate(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
    """Channels of both, laid out anew; a part of the gradient is a view of it, so both keep it alive."""
    return tape.result(tape.make(x.bytes + y.bytes), [x, y], [BackwardStep("pass", 0), BackwardStep("pass", 1)])


def embed(tape: Tape, indices: Tensor, elements: int, weight: Parameter) -> Tensor:
    """Rows of a table; its gradient is as large as the table, and many indices are sorted for it."""
    formula = [BackwardStep("weight", parameter=weight)]
    count = indices.bytes // INDEX_BYTES
    if count > FEW_INDICES:
        width = elements // count
        segments = min(count, weight.bytes // (F32 * width))
        parts = count // ROWS_A_THREAD + segments
        sizes = [count, count, count, segments, segments, parts]
        scratch = [*(INDEX_BYTES * each for each in sizes), F32 * parts * width]
        made = [BackwardStep("make", i, nbytes) for i, nbytes in enumerate(scratch)]
        formula = [*made[:2], *formula, *made[2:], *(BackwardStep("drop", i) for i in reversed(range(len(made))))]
    return tape.result(tape.make(F32 * elements), [indices], formula, [indices])


def add_positions(tape: Tape, x: Tensor, weight: Parameter) -> Tensor:
    """Learned positions, the same for every sample."""
    shape = (x.bytes // weight.bytes, weight.bytes // F32)
    return tape.result(tape.make(x.bytes), [x], [BackwardStep("pass", 0), *summed(tape, weight, shape, (0,))])


def self_attention(tape: Tape, x: Tensor, batch: int, length: int, heads: int, weights: Sequence[Parameter]) -> Tensor:
    """`nn.MultiheadAttention` on one tensor, by the memory-efficient kernel; `weights`: in, in bias, out, out bias.

    The input is turned to sequence first, multiplied into queries, keys and values in one, and these are laid apart.
    """
    size, (w_in, b_in, w_out, b_out) = x.bytes, weights
    turned = tape.result(tape.make(size), [x], [BackwardStep("pass", 0)])
    packed = tape.make(3 * size)
    tape.call("gemm")
    apart = tape.make(3 * size)
    tape.drop(packed)
    gemm = tape.op("gemm", "autograd")
    bias = summed(tape, b_in, (length * batch, b_in.bytes // F32), (0,))
    formula = [*bias, BackwardStep("weight", parameter=w_in), BackwardStep("op", gemm), BackwardStep("grad", 0, size)]
    tape.result(apart, [turned], [*formula, BackwardStep("op", gemm)], [turned])
    tape.drop(turned)
    out = tape.make(size)
    log_sums = tape.make(F32 * batch * heads * (-(-length // 32) * 32))
    seeds = [tape.make(8), tape.make(8)]
    rows_bytes = F32 * batch * heads * length
    tape.result(out, [apart], _attention_gradient(size, rows_bytes), [apart, log_sums, out, *reversed(seeds)])
    for each in (apart, log_sums, *seeds):
        tape.drop(each)
    merged = tape.result(tape.make(size), [out], [BackwardStep("pass", 0)])
    tape.drop(out)
    projected = linear(tape, merged, batch * length, w_out, b_out)
    tape.drop(merged)
    # It is turned back to batch first as a view, but its gradient is laid out anew.
    return tape.result(projected, [projected], [BackwardStep("grad", 0, size)])


def _attention_gradient(size: int, rows_bytes: int) -> list[BackwardStep]:
    """Gradients of queries, keys and values; each is laid out twice again, then all three become one.

    The kernel wants the given gradient in rows, and sums its product with the result: see `tracing.operators.insides`.
    """
    steps = [
        BackwardStep("make", 12, size),
        *(BackwardStep("make", i, size) for i in range(3)),
        BackwardStep("make", 13, size),
    ]
    steps += [
        BackwardStep("make", 14, rows_bytes),
        BackwardStep("drop", 13),
        BackwardStep("make", 15, rows_bytes),
        BackwardStep("drop", 14),
    ]
    steps += [BackwardStep("drop", 15), BackwardStep("drop", 12), DONE]
    for round_ in (3, 6):
        for i in range(3):
            steps += [
                BackwardStep("make", round_ + i, size),
                BackwardStep("drop", round_ - 1 - i if round_ == 3 else i + 3),
            ]
    steps += [
        BackwardStep("make", 9, 3 * size),
        BackwardStep("drop", 6),
        BackwardStep("make", 10, 3 * size),
        BackwardStep("drop", 7),
        BackwardStep("drop", 10),
    ]
    steps += [
        BackwardStep("make", 11, 3 * size),
        BackwardStep("drop", 8),
        BackwardStep("drop", 11),
        BackwardStep("grad", 0, 3 * size),
        BackwardStep("drop", 9),
    ]
    return steps


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """The loss, by log-softmax and negative log-likelihood."""
    size = logits.bytes
    logs = tape.make(size)
    tape.result(logs, [logits], [BackwardStep("grad", 0, size)], [logs])
    loss, weight = tape.make(F32), tape.make(F32)
    tape.result(loss, [logs], [BackwardStep("grad", 0, size)], [weight])
    tape.drop(logs)
    tape.drop(weight)
    return loss
