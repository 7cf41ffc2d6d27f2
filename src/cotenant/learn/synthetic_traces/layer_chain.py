"""The synthetic job of a printed summary: its layers one after another, trained in fp32 with Adam.

A summary has no edges. Additions of residual blocks, concatenations and branches are not in it, so every layer reads
what the layer before it made; a convolution whose weights do not fit that reads the latest output that they fit. Where
attention turns packed queries, keys and values into one output, a linear layer of a third of the width follows.

Shapes are of one sample, without the batch: `C` channels, `H` x `W` pixels; `L` tokens, `D` width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UsageError
from cotenant.estimators.learned.network_features import activation_of
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.networks.layer_list import KERNEL_SIZES
from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.backward_steps import BackwardStep, InputGradient, WeightGradient
from cotenant.learn.synthetic_traces.synthetic_job import SyntheticJob
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor

Shape = tuple[int, ...]
Step = Callable[[Tape, Tensor, int], Tensor]
"""The result of a layer on so many samples; the input stays the caller's."""

_MAX_STRIDE = 16
_COMPOSED_ACTIVATIONS = {"NewGELUActivation": 3, "FastGELUActivation": 3}
"""Activations that Python composes of several operations, and how many tensors they save beside their input.

Source: transformers, activations.py: `0.5 * x * (1 + tanh(...))` saves the half, the sum and the tanh.
"""
_WITHOUT_DROPOUT = frozenset({"StochasticDepth", "DropPath", "Identity"})


@dataclass(slots=True)
class LayerChain:
    """A summary as a job.

    Attributes:
        hidden: names of blocks whose layers the summary does not show; only their weights and outputs are counted.
        unplaced: convolutions whose weights fit no output before them; they have no workspace here.
    """

    job: SyntheticJob
    hidden: Sequence[str]
    unplaced: Sequence[str]


def layer_chain(layers: Sequence[Layer], batch: int) -> LayerChain:
    """The job of `layers` with steps of `batch` samples.

    Raises:
        UsageError: no layer has a shape.
    """
    shaped = [layer for layer in layers if layer.output_shape]
    if not shaped:
        raise UsageError("the summary shows no shape of an output", hint="print it with the size of an input")
    first = next((layer for layer in shaped if layer.parameters), shaped[0])
    builder = _Builder(_input_shape(first))
    for layer in layers:
        builder.add(layer)
    is_tokens = first.kind == "embedding"
    sample_bytes = op.INDEX_BYTES * builder.tokens(first) if is_tokens else F32 * math.prod(builder.input_shape)

    def forward(tape: Tape, x: Tensor, samples: int) -> Tensor:
        current = tape.retain(x)
        for step in builder.steps:
            made = step(tape, current, samples)
            tape.release(current)
            current = made
        return current

    job = SyntheticJob(
        forward=forward,
        load=builder.state,
        order=[item for item in builder.state if isinstance(item, Parameter)],
        sample_bytes=sample_bytes,
        batch=batch,
    )
    return LayerChain(job, tuple(builder.hidden), tuple(builder.unplaced))


def _input_shape(first: Layer) -> Shape:
    """The input that fits the first layer: three channels of its own size for a convolution."""
    shape = first.output_shape
    if first.kind == "conv":
        return (3, *shape[1:])
    if first.kind == "linear":
        return (*shape[:-1], max(1, first.parameters // shape[-1] - 1))
    return shape


@dataclass(slots=True)
class _Builder:
    """Turns layers into steps; `shape` is that of the latest output."""

    input_shape: Shape
    shape: Shape = ()
    seen: list[Shape] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    state: list[Parameter | int] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    table: Parameter | None = None

    def __post_init__(self) -> None:
        self.shape = self.input_shape
        self.seen.append(self.input_shape)

    def tokens(self, layer: Layer) -> int:
        """Tokens of a sample at `layer`."""
        return math.prod(layer.output_shape[:-1])

    def add(self, layer: Layer) -> None:
        """The next layer."""
        shape = layer.output_shape
        makers = {
            "conv": self._convolution if len(shape) == 3 else None,
            "linear": self._linear if shape else None,
            "embedding": self._embedding if shape else None,
            "pool": self._pool if shape else None,
            "batchnorm": self._norm,
            "norm": self._norm,
            "activation": self._activation,
            "softmax": self._softmax,
            "dropout": self._dropout,
        }
        make = makers.get(layer.kind)
        if make is not None:
            make(layer)
        elif layer.kind == "reshape":
            shape = shape if math.prod(shape) == math.prod(self.shape) else ()
        else:
            shape = self._other(layer)
        if shape:
            self.shape = shape
            if shape not in self.seen:
                self.seen.append(shape)

    def _other(self, layer: Layer) -> Shape:
        """Add a block; returns the shape of its output, or () if that is the latest one's."""
        shape = layer.output_shape
        if 0 < layer.parameters <= self.shape[-1]:
            self._parameter(layer.parameters)  # a bias that the block adds in place
            return ()
        if layer.parameters or layer.kind in ("attention", "rnn"):
            self._block(layer)
            return shape
        if shape and shape != self.shape:
            self.steps.append(lambda tape, x, samples: _combined(tape, x, samples * math.prod(shape)))
            return shape
        return ()  # its layers were listed before it

    def _parameter(self, count: int) -> Parameter:
        made = Parameter(F32 * count)
        self.state.append(made)
        return made

    # -- layers -------------------------------------------------------------------------------------------------------

    def _convolution(self, layer: Layer) -> None:
        out_shape, channels = layer.output_shape, layer.output_shape[0]
        for has_bias in (False, True):
            count = layer.parameters - channels * has_bias
            found = _fitting(count, out_shape, (self.shape, *reversed(self.seen)))
            if found is not None:
                break
        else:
            count, found, has_bias = layer.parameters, None, False
        weights = [self._parameter(count)] + ([self._parameter(channels)] if has_bias else [])
        if found is None:
            # Depthwise convolutions have kernels of torch's own, without a workspace
            # (aten/src/ATen/native/cuda/DepthwiseConv2d.cu).
            if count != 0 and count % channels == 0 and math.isqrt(count // channels) ** 2 != count // channels:
                self.unplaced.append(layer.name)
            self._generic(math.prod(out_shape), weights)
            return
        (in_channels, height, width), kernel = found
        stride = max(1, round(height / max(1, out_shape[1])))
        sides = (out_shape[1] * stride, out_shape[2] * stride) if stride > 1 else (height, width)

        def convolve(tape: Tape, x: Tensor, samples: int) -> Tensor:
            x_shape = (samples, in_channels, *sides)
            return op.convolution(tape, x, x_shape, channels, kernel=kernel, stride=stride, weights=weights)

        self.steps.append(convolve)

    def _linear(self, layer: Layer) -> None:
        features, rows = layer.output_shape[-1], math.prod(layer.output_shape[:-1])
        inputs = layer.parameters // features
        if self.table is not None and layer.parameters and abs(F32 * features * inputs - self.table.bytes) == 0:
            weight, bias = self.table, None  # the output layer of a language model shares the table of its embedding
        elif layer.parameters == features * inputs and inputs == self.shape[-1]:
            weight, bias = self._parameter(layer.parameters), None
        else:
            weight, bias = self._parameter(layer.parameters - features), self._parameter(features)
            inputs = (layer.parameters - features) // features
        if 3 * inputs == self.shape[-1]:
            attended = rows * inputs
            self.steps.append(lambda tape, x, samples: _attend(tape, x, samples * attended))

        def multiply(tape: Tape, x: Tensor, samples: int) -> Tensor:
            if bias is None and x.bytes != F32 * samples * rows * inputs:
                return _generic(tape, x, samples * rows * features, [weight])
            return op.linear(tape, x, samples * rows, weight, bias)

        self.steps.append(multiply)

    def _embedding(self, layer: Layer) -> None:
        weight = self._parameter(layer.parameters)
        elements = math.prod(layer.output_shape)
        if self.table is not None:  # positions, kinds of tokens: added to the first
            self.steps.append(lambda tape, x, samples: _generic(tape, x, samples * elements, [weight], saves=False))
            return
        self.table = weight
        self.steps.append(lambda tape, x, samples: op.embed(tape, x, samples * elements, weight))

    def _norm(self, layer: Layer) -> None:
        is_batch = layer.kind == "batchnorm"
        half = layer.parameters // 2
        weights = [self._parameter(half), self._parameter(half)] if half else []
        if is_batch:
            self.state += [F32 * half, F32 * half, op.INDEX_BYTES]
        groups = max(1, half) if is_batch else math.prod(self.shape[:-1])
        of_vectors = is_batch and len(self.shape) == 1

        def step(tape: Tape, x: Tensor, samples: int) -> Tensor:
            return op.norm(tape, x, groups if is_batch else groups * samples, weights, of_vectors=of_vectors)

        self.steps.append(step)

    def _activation(self, layer: Layer) -> None:
        more = _COMPOSED_ACTIVATIONS.get(layer.name, 0)
        name = activation_of(layer.name)
        weight = self._parameter(layer.parameters) if layer.parameters else None
        if more:
            self.steps.append(lambda tape, x, _: _composed(tape, x, more))
            return
        self.steps.append(
            lambda tape, x, _: op.activation(tape, x, "prelu" if weight else _saved_as(name, layer.name), weight)
        )

    def _softmax(self, _layer: Layer) -> None:
        self.steps.append(lambda tape, x, _: op.activation(tape, x, "softmax"))

    def _dropout(self, layer: Layer) -> None:
        if layer.name not in _WITHOUT_DROPOUT:
            self.steps.append(lambda tape, x, _: op.dropout(tape, x))

    def _pool(self, layer: Layer) -> None:
        elements = math.prod(layer.output_shape)
        is_max = "Max" in layer.name

        def pool(tape: Tape, x: Tensor, samples: int) -> Tensor:
            out = tape.allocate(F32 * samples * elements)
            saved = [x]
            if is_max:
                saved.append(tape.allocate(op.INDEX_BYTES * samples * elements))
            tape.record(out, [x], [InputGradient(0, x.bytes)], saved)
            for indices in saved[1:]:
                tape.release(indices)
            return out

        self.steps.append(pool)

    def _block(self, layer: Layer) -> None:
        """Weights whose operations are not shown, or an attention's own projections."""
        self.hidden.append(layer.name or layer.kind)
        weights = [self._parameter(layer.parameters)] if layer.parameters else []
        elements = math.prod(layer.output_shape or self.shape)
        self._generic(elements, weights)

    def _generic(self, elements: int, weights: Sequence[Parameter]) -> None:
        self.steps.append(lambda tape, x, samples: _generic(tape, x, samples * elements, weights))


def _fitting(count: int, out_shape: Shape, shapes: Sequence[Shape]) -> tuple[Shape, int] | None:
    """The input among `shapes` and the square kernel that `count` weights of a convolution to `out_shape` fit."""
    for shape in shapes:
        if len(shape) == 3 and out_shape[1] <= shape[1] <= _MAX_STRIDE * out_shape[1]:
            for kernel in KERNEL_SIZES:
                if shape[0] * out_shape[0] * kernel * kernel == count:
                    return shape, kernel
    return None


def _saved_as(name: str, written: str) -> str:
    """The name of an activation that saves what `written` does: ReLU6 and others unknown to the sets, their input."""
    return "gelu" if name == "relu" and written not in ("ReLU", "Sigmoid") else name


def _generic(tape: Tape, x: Tensor, elements: int, weights: Sequence[Parameter], *, saves: bool = True) -> Tensor:
    """An operation of which only its output, its weights and whether it saves its input are known."""
    formula: list[BackwardStep] = [InputGradient(0, x.bytes)]
    formula += [WeightGradient(weight) for weight in weights]
    return tape.record(tape.allocate(F32 * elements), [x], formula, [x] if saves else [])


def _combined(tape: Tape, x: Tensor, elements: int) -> Tensor:
    """The output of a block of branches: what they made, concatenated or multiplied."""
    return tape.record(tape.allocate(F32 * elements), [x], [InputGradient(0, x.bytes)])


def _attend(tape: Tape, packed: Tensor, elements: int) -> Tensor:
    """Attention over packed queries, keys and values: it saves them and its output."""
    out = tape.allocate(F32 * elements)
    return tape.record(out, [packed], [InputGradient(0, packed.bytes)], [packed, out])


def _composed(tape: Tape, x: Tensor, more: int) -> Tensor:
    """An activation of several operations: `more` tensors of its size are saved beside its input."""
    saved = [tape.allocate(x.bytes) for _ in range(more)]
    out = tape.record(tape.allocate(x.bytes), [x], [InputGradient(0, x.bytes)], [x, *saved])
    for tensor in saved:
        tape.release(tensor)
    return out
