"""The network that a list of layers describes, out of the modules of a factory.

One reading of the list for all: with torch's modules it gives a network to train, with those of
`learn.synthetic_traces` one that only allocates. Needs no torch itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_row import Layer

M = TypeVar("M")

KERNEL_SIZES = (3, 1, 5, 7, 2, 4, 9, 11)
"""Kernel sizes in the order they are tried: the first that the parameter count fits is taken."""


class ModuleFactory(Protocol[M]):
    """Makes the modules that a list of layers can hold. Shapes are of one sample, without the batch."""

    def linear(self, input_shape: tuple[int, ...], features: int) -> M:
        """A linear layer with a bias over the flattened input."""
        ...

    def conv2d(self, input_shape: tuple[int, ...], channels: int, *, kernel: int, stride: int) -> M:
        """A square convolution with a bias and "same" padding."""
        ...

    def batch_norm(self, input_shape: tuple[int, ...]) -> M:
        """Batch normalization of images or vectors."""
        ...

    def activation(self, name: str) -> M:
        """An activation by its name in the published sets."""
        ...

    def softmax(self) -> M:
        """Softmax over the classes."""
        ...

    def dropout(self) -> M:
        """Dropout."""
        ...

    def global_mean(self, input_shape: tuple[int, ...]) -> M:
        """The mean over all pixels of each channel."""
        ...

    def average_pool(self, input_shape: tuple[int, ...], side: int) -> M:
        """Average pooling to `side` x `side` pixels."""
        ...

    def sequential(self, modules: Sequence[M]) -> M:
        """One after another."""
        ...

    def residual(self, shortcut: M | None, body: M, activation: M) -> M:
        """`activation(shortcut(x) + body(x))`; without a shortcut `x` itself is added."""
        ...

    def dense(self, body: M) -> M:
        """`x` and `body(x)`, concatenated along the channels."""
        ...

    def head(self, body: M) -> M:
        """The layers behind the last block, whose input lives until they are done."""
        ...


def build_network(
    layers: Sequence[Layer],
    input_shape: tuple[int, ...],
    modules: ModuleFactory[M],
    *,
    activation: str,
    group: str = "",
) -> M:
    """The network of `layers`; groups `residual` and `dense` have branches, in all others layers follow one another.

    A residual block begins at each `conv1x1`, its shortcut, and after the activation behind every second convolution.
    In a dense network each convolution's result is concatenated to its input; a `conv1x1` is the transition between
    blocks.

    Raises:
        UsageError: a layer's kind or shape is not known.
    """
    builder = {"residual": _ResidualBuilder, "dense": _DenseBuilder}.get(group, _PlainBuilder)(
        input_shape, modules, activation
    )
    for index, layer in enumerate(layers):
        builder.add(layer, index)
    return modules.sequential(builder.finish())


class _PlainBuilder(Generic[M]):
    """Layers one after another; `shape` follows them."""

    def __init__(self, input_shape: tuple[int, ...], modules: ModuleFactory[M], activation: str) -> None:
        self.shape = input_shape
        self.modules = modules
        self.activation = activation
        self.finished: list[M] = []
        self.body: list[M] = []

    def add(self, layer: Layer, index: int) -> None:
        """The next layer."""
        if not layer.output_shape and layer.kind != "activation":
            raise _not_simulated(layer, index)
        match layer.kind:
            case "conv":
                self.add_convolution(layer)
            case "activation":
                has_weight = self.activation == "prelu" or layer.parameters
                self.add_activation(self.modules.activation("prelu" if has_weight else self.activation))
            case "batchnorm":
                self.add_batch_norm(self.modules.batch_norm(self.shape))
            case "linear":
                self.body.append(self.modules.linear(self.shape, layer.output_shape[-1]))
                self.shape = (layer.output_shape[-1],)
            case "softmax":
                self.body.append(self.modules.softmax())
            case "dropout":
                self.body.append(self.modules.dropout())
            case "reshape":
                self.shape = layer.output_shape
            case "pool":
                self.add_pool(layer)
            case _:
                raise _not_simulated(layer, index)

    def add_convolution(self, layer: Layer) -> None:
        self.body.append(self.convolution(layer, self.shape))

    def add_activation(self, module: M) -> None:
        self.body.append(module)

    def add_batch_norm(self, module: M) -> None:
        self.body.append(module)

    def add_pool(self, layer: Layer) -> None:
        if any(side != 1 for side in layer.output_shape[1:]):
            raise UsageError(f"`{layer.name or layer.kind}` to {layer.output_shape} cannot be simulated")
        self.body.append(self.modules.global_mean(self.shape))
        self.shape = layer.output_shape

    def convolution(self, layer: Layer, input_shape: tuple[int, ...]) -> M:
        """A convolution of `input_shape`; its kernel is the one that its parameter count fits."""
        channels = layer.output_shape[0]
        fits = (kernel for kernel in KERNEL_SIZES if channels * (input_shape[0] * kernel**2 + 1) == layer.parameters)
        kernel = next(fits, None)
        if kernel is None:
            raise UsageError(
                f"`{layer.name}` of {layer.parameters} parameters is no square convolution of {input_shape[0]} channels"
            )
        stride = max(1, round(input_shape[1] / layer.output_shape[1]))
        self.shape = layer.output_shape
        return self.modules.conv2d(input_shape, channels, kernel=kernel, stride=stride)

    def finish(self) -> list[M]:
        """All modules, in order."""
        return [*self.finished, *self.body]


class _ResidualBuilder(_PlainBuilder[M]):
    """Blocks of two convolutions, whose input is added before the activation behind the second."""

    def __init__(self, input_shape: tuple[int, ...], modules: ModuleFactory[M], activation: str) -> None:
        super().__init__(input_shape, modules, activation)
        self.block_shape = input_shape
        self.shortcut: list[M] = []
        self.in_shortcut = False
        self.convolutions = 0

    def add_convolution(self, layer: Layer) -> None:
        if layer.parameters == layer.output_shape[0] * (self.block_shape[0] + 1):
            # Dropout behind the block before is applied to the shortcut alone.
            self.shortcut = [*self.body, self.convolution(layer, self.block_shape)]
            self.body = []
            self.in_shortcut = True
            self.convolutions = 0
            return
        self.in_shortcut = False
        before = self.block_shape if self.convolutions == 0 else self.shape
        self.body.append(self.convolution(layer, before))
        self.convolutions += 1

    def add_batch_norm(self, module: M) -> None:
        (self.shortcut if self.in_shortcut else self.body).append(module)
        self.in_shortcut = False

    def add_activation(self, module: M) -> None:
        if self.convolutions < 2:
            self.body.append(module)
            return
        shortcut = self.modules.sequential(self.shortcut) if self.shortcut else None
        self.finished.append(self.modules.residual(shortcut, self.modules.sequential(self.body), module))
        self.body, self.shortcut, self.convolutions = [], [], 0
        self.block_shape = self.shape

    def finish(self) -> list[M]:
        return [*self.finished, self.modules.head(self.modules.sequential(self.body))]


class _DenseBuilder(_PlainBuilder[M]):
    """Each convolution reads all that came before it in its block, and its result is concatenated to that."""

    def __init__(self, input_shape: tuple[int, ...], modules: ModuleFactory[M], activation: str) -> None:
        super().__init__(input_shape, modules, activation)
        self.block_shape = input_shape
        self.is_concatenated = False

    def add_convolution(self, layer: Layer) -> None:
        self._end_body()
        side = layer.output_shape[1]
        if self.block_shape[1] != side:  # the transition's average pooling, which the list does not name
            self.finished.append(self.modules.average_pool(self.block_shape, side))
            self.block_shape = (self.block_shape[0], side, side)
        self.body.append(self.convolution(layer, self.block_shape))
        self.is_concatenated = layer.parameters != layer.output_shape[0] * (self.block_shape[0] + 1)
        if not self.is_concatenated:
            self.block_shape = layer.output_shape

    def add_pool(self, layer: Layer) -> None:
        self._end_body()
        super().add_pool(layer)

    def finish(self) -> list[M]:
        return [*self.finished, self.modules.head(self.modules.sequential(self.body))]

    def _end_body(self) -> None:
        if self.is_concatenated:
            self.finished.append(self.modules.dense(self.modules.sequential(self.body)))
            self.block_shape = (self.block_shape[0] + self.shape[0], *self.shape[1:])
        else:
            self.finished += self.body
        self.body, self.is_concatenated = [], False
        self.shape = self.block_shape


def _not_simulated(layer: Layer, index: int) -> UsageError:
    return UsageError(f"layer {index} is `{layer.name or layer.kind}`, which cannot be simulated")
