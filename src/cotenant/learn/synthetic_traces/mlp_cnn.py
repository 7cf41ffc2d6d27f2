"""MLPs and CNNs, told by the list of their layers, as jobs to be written as a trace.

Layers follow one another, except in groups `residual` and `dense`. There a block begins at each `conv1x1` (its
shortcut, or the transition between blocks) and, in residual networks, after every second 3x3 convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer
from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.synthetic_job import Forward, SyntheticJob
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor

_KERNELS = (3, 1, 5, 7, 2, 4, 9, 11)


def chain_job(row: DatasetRow) -> SyntheticJob:
    """The job of a row of dense and convolutional layers.

    Reads the extras `input_shape` (`3x224x224`, `1000`), `activation` and `last_batch`, where they are.

    Raises:
        UsageError: a layer whose kind or shape is not known.
    """
    text = str(row.extras.get("input_shape", ""))
    if not text and not (row.layers and row.layers[0].output_shape):
        raise UsageError(f"row `{row.config_id}` does not tell its input", hint="add `input_shape` to its extras")
    shape = tuple(int(each) for each in text.split("x")) if text else _guessed_input(row.layers[0])
    built = {"residual": _Residual, "dense": _Dense}.get(row.group, _Chain)(
        str(row.extras.get("activation", "relu")), shape
    )
    for place, layer in enumerate(row.layers):
        built.add(layer, place)
    return SyntheticJob(
        forward=built.forward,
        load=built.load,
        order=[each for each in built.load if isinstance(each, Parameter)],
        sample_bytes=F32 * math.prod(shape),
        batch=row.batch,
        last_batch=int(row.extras.get("last_batch", 0)),
    )


def _guessed_input(first: Layer) -> tuple[int, ...]:
    """The input that the first layer's weights ask for; 3 channels of its own size for a convolution."""
    if first.kind == "linear":
        return (max(1, first.parameters // first.outputs - 1),)
    return (3, *first.output_shape[1:])


Step = Callable[["_Forward", int], None]


class _Forward:
    """One forward pass: the current tensor, and the block's input where a branch will need it."""

    def __init__(self, tape: Tape, x: Tensor) -> None:
        self.tape = tape
        self.x = x
        self.block: Tensor | None = None

    def becomes(self, found: Tensor) -> None:
        """`found` is the current tensor from here on."""
        self.tape.drop(self.x)
        self.x = found

    def branch(self, found: Tensor) -> None:
        """`found`, still needed as the current tensor, is also what a branch begins at."""
        self.tape.drop(self.block)
        self.block = self.tape.keep(found)


class _Chain:
    """Layers one after another; shapes are followed while they are added."""

    def __init__(self, activation: str, shape: tuple[int, ...]) -> None:
        self.activation = activation
        self.shape = shape
        self.load: list[Parameter | int] = []
        self.steps: list[Step] = []

    @property
    def forward(self) -> Forward:
        """All layers in turn; each result goes when the next is there, but for what is saved."""

        def run(tape: Tape, x: Tensor, samples: int) -> Tensor:
            state = _Forward(tape, tape.keep(x))
            for step in self.steps:
                step(state, samples)
            tape.drop(state.block)
            return state.x

        return run

    def add(self, layer: Layer, place: int) -> None:
        """The next layer."""
        make = getattr(self, f"_{layer.kind}", None)
        if make is None or not (layer.output_shape or layer.kind == "activation"):
            raise UsageError(f"layer {place} is `{layer.name or layer.kind}`, which cannot be simulated")
        make(layer)

    def weights(self, *counts: int) -> list[Parameter]:
        """New parameters of so many elements."""
        found = [Parameter(F32 * count) for count in counts]
        self.load += found
        return found

    def then(self, step: Callable[[Tape, Tensor, int], Tensor]) -> None:
        """Turn the current tensor into another."""
        self.steps.append(lambda run, samples: run.becomes(step(run.tape, run.x, samples)))

    def _linear(self, layer: Layer) -> None:
        features_in, features = math.prod(self.shape), layer.output_shape[-1]
        weight, bias = self.weights(features_in * features, features)
        self.then(lambda tape, x, samples: op.linear(tape, x, samples, weight, bias))
        self.shape = (features,)

    def _conv(self, layer: Layer) -> None:
        self.convolve(layer, self.shape)

    def convolve(self, layer: Layer, before: tuple[int, ...]) -> None:
        """A convolution of an input of shape `before`; the kernel is the one that its parameters fit."""
        out = layer.output_shape[0]
        kernel = next((k for k in _KERNELS if out * (before[0] * k * k + 1) == layer.parameters), None)
        if kernel is None:
            raise UsageError(
                f"`{layer.name}` of {layer.parameters} parameters is no square convolution of {before[0]} channels"
            )
        stride = max(1, round(before[1] / layer.output_shape[1]))
        weights = self.weights(kernel * kernel * before[0] * out, out)
        self.then(
            lambda tape, x, samples: op.convolution(
                tape, x, (samples, *before), out, kernel=kernel, stride=stride, weights=weights
            )
        )
        self.shape = layer.output_shape

    def _batchnorm(self, layer: Layer) -> None:  # noqa: ARG002 - all kinds are asked alike
        channels = self.shape[0]
        weights = self.weights(channels, channels)
        self.load += [F32 * channels, F32 * channels, 8]
        self.then(lambda tape, x, _: op.norm(tape, x, channels, weights))

    def _activation(self, layer: Layer) -> None:
        weight = self.weights(1)[0] if self.activation == "prelu" or layer.parameters else None
        self.then(lambda tape, x, _: op.activation(tape, x, self.activation, weight))

    def _softmax(self, layer: Layer) -> None:  # noqa: ARG002
        self.then(lambda tape, x, _: op.activation(tape, x, "softmax"))

    def _dropout(self, layer: Layer) -> None:  # noqa: ARG002
        self.then(lambda tape, x, _: op.dropout(tape, x))

    def _reshape(self, layer: Layer) -> None:
        self.shape = layer.output_shape

    def _pool(self, layer: Layer) -> None:
        if any(side != 1 for side in layer.output_shape[1:]):
            raise UsageError(f"`{layer.name or layer.kind}` to {layer.output_shape} cannot be simulated")
        shape = self.shape
        pixels = tuple(range(2, len(shape) + 1))
        self.then(lambda tape, x, samples: op.mean(tape, x, (samples, *shape), pixels))
        self.shape = layer.output_shape


class _Residual(_Chain):
    """Blocks of two 3x3 convolutions whose input is added before the second activation, through a shortcut or as it is.

    A shortcut is listed before its block.
    """

    def __init__(self, activation: str, shape: tuple[int, ...]) -> None:
        super().__init__(activation, shape)
        self.block = shape
        self.inside = 0
        self.steps.append(lambda run, _: run.branch(run.x))

    def _conv(self, layer: Layer) -> None:
        if self.is_pointwise(layer):
            self._shortcut(layer)
            return
        self.convolve(layer, self.block if self.inside == 0 else self.shape)
        self.inside += 1

    def is_pointwise(self, layer: Layer) -> bool:
        """Whether it is a 1x1 convolution of the block's input."""
        return layer.parameters == layer.output_shape[0] * (self.block[0] + 1)

    def _shortcut(self, layer: Layer) -> None:
        """Its result is the branch, and the block goes on from what was there before."""

        def swap(run: _Forward, _: int) -> None:
            assert run.block is not None
            run.x, run.block = run.block, run.x

        before = self.block
        self.convolve(layer, before)
        self.swap = swap
        self.inside = -1

    def _batchnorm(self, layer: Layer) -> None:
        super()._batchnorm(layer)
        if self.inside == -1:
            self._end_shortcut()

    def convolve(self, layer: Layer, before: tuple[int, ...]) -> None:
        if self.inside == -1:
            self._end_shortcut()
            before = self.block
        super().convolve(layer, before)

    def _end_shortcut(self) -> None:
        self.inside = 0
        self.steps.append(self.swap)

    def _activation(self, layer: Layer) -> None:
        if self.inside == 2:
            self.steps.append(lambda run, _: run.becomes(op.add(run.tape, run.x, run.block or run.x)))
            super()._activation(layer)
            self.inside = 0
            self.block = self.shape
            self.steps.append(lambda run, _: run.branch(run.x))
            return
        super()._activation(layer)


class _Dense(_Chain):
    """Each 3x3 convolution works on all that came before in its block, and is joined to it."""

    def __init__(self, activation: str, shape: tuple[int, ...]) -> None:
        super().__init__(activation, shape)
        self.block = shape
        self.steps.append(lambda run, _: run.branch(run.x))
        self.open = False

    def _conv(self, layer: Layer) -> None:
        self._join()
        if self.block[1] != layer.output_shape[1]:
            self._shrink(layer.output_shape[1])
        self.convolve(layer, self.block)
        self.open = layer.parameters != layer.output_shape[0] * (self.block[0] + 1)
        if not self.open:
            self.block = layer.output_shape

    def _pool(self, layer: Layer) -> None:
        self._join()
        super()._pool(layer)

    def _join(self) -> None:
        """The result of the convolution before, behind all that its block has."""
        if self.open:
            self.block = (self.block[0] + self.shape[0], *self.shape[1:])
            self.steps.append(lambda run, _: run.becomes(op.concatenate(run.tape, run.block or run.x, run.x)))
        self.open = False
        self.shape = self.block
        self.steps.append(lambda run, _: run.branch(run.x))

    def _shrink(self, side: int) -> None:
        """An average pooling that the list does not tell."""
        self.block = (self.block[0], side, side)
        elements = math.prod(self.block)
        self.then(lambda tape, x, samples: op.pool(tape, x, samples * elements))
        self.steps.append(lambda run, _: run.branch(run.x))
