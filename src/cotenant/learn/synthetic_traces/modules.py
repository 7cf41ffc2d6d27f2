"""Modules that only allocate: the counterparts of torch's, with the same parameters and the same backward pass.

`forward` takes over the caller's reference to its input, so that an input that is not saved for backward is freed
as soon as the result exists, as it is in a function that assigns to one variable again and again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.tape import F32, Parameter, Tape, Tensor

Operation = Callable[[Tape, Tensor, int], Tensor]
"""The result of an operation on a batch of so many samples; the input stays the caller's."""


class SyntheticModule(ABC):
    """A module; `state` has its parameters and buffers in the order they go to the GPU, buffers as bytes."""

    state: Sequence[Parameter | int] = ()

    @abstractmethod
    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        """The result, which is the caller's; `x` is released."""


class Leaf(SyntheticModule):
    """One operation."""

    def __init__(self, operation: Operation, state: Sequence[Parameter | int] = ()) -> None:
        self._operation = operation
        self.state = state

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        result = self._operation(tape, x, samples)
        tape.release(x)
        return result


class SyntheticSequential(SyntheticModule):
    """One module after another."""

    def __init__(self, modules: Sequence[SyntheticModule]) -> None:
        self._modules = modules
        self.state = [item for module in modules for item in module.state]

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        for module in self._modules:
            x = module.forward(tape, x, samples)
        return x


class SyntheticResidual(SyntheticModule):
    """`activation(shortcut(x) + body(x))`; the shortcut runs first."""

    def __init__(self, shortcut: SyntheticModule | None, body: SyntheticModule, activation: SyntheticModule) -> None:
        self._shortcut, self._body, self._activation = shortcut, body, activation
        self.state = [*(shortcut.state if shortcut else ()), *body.state, *activation.state]

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        branch = tape.retain(x)
        if self._shortcut is not None:
            branch, x = self._shortcut.forward(tape, x, samples), branch
        y = self._body.forward(tape, x, samples)
        total = op.add(tape, y, branch)
        tape.release(y)
        result = self._activation.forward(tape, total, samples)
        tape.release(branch)
        return result


class SyntheticDense(SyntheticModule):
    """`x` and `body(x)`, concatenated along the channels."""

    def __init__(self, body: SyntheticModule) -> None:
        self._body = body
        self.state = body.state

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        branch = tape.retain(x)
        y = self._body.forward(tape, x, samples)
        result = op.concatenate(tape, branch, y)
        tape.release(y)
        tape.release(branch)
        return result


class SyntheticHead(SyntheticModule):
    """A module whose caller holds the input until the result is there."""

    def __init__(self, body: SyntheticModule) -> None:
        self._body = body
        self.state = body.state

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        held = tape.retain(x)
        result = self._body.forward(tape, x, samples)
        tape.release(held)
        return result


class SyntheticModules:
    """The `ModuleFactory` of modules that only allocate."""

    def linear(self, input_shape: tuple[int, ...], features: int) -> SyntheticModule:
        weight, bias = Parameter(F32 * math.prod(input_shape) * features), Parameter(F32 * features)
        return Leaf(lambda tape, x, samples: op.linear(tape, x, samples, weight, bias), [weight, bias])

    def conv2d(self, input_shape: tuple[int, ...], channels: int, *, kernel: int, stride: int) -> SyntheticModule:
        weights = [Parameter(F32 * kernel * kernel * input_shape[0] * channels), Parameter(F32 * channels)]

        def convolve(tape: Tape, x: Tensor, samples: int) -> Tensor:
            shape = (samples, *input_shape)
            return op.convolution(tape, x, shape, channels, kernel=kernel, stride=stride, weights=weights)

        return Leaf(convolve, weights)

    def batch_norm(self, input_shape: tuple[int, ...]) -> SyntheticModule:
        channels = input_shape[0]
        weights = [Parameter(F32 * channels), Parameter(F32 * channels)]
        # Running mean and variance, and the count of batches, an int64.
        state: list[Parameter | int] = [*weights, F32 * channels, F32 * channels, 8]
        of_vectors = len(input_shape) == 1
        return Leaf(lambda tape, x, _: op.norm(tape, x, channels, weights, of_vectors=of_vectors), state)

    def activation(self, name: str) -> SyntheticModule:
        if name != "prelu":
            return Leaf(lambda tape, x, _: op.activation(tape, x, name))
        weight = Parameter(F32)
        return Leaf(lambda tape, x, _: op.activation(tape, x, name, weight), [weight])

    def softmax(self) -> SyntheticModule:
        return Leaf(lambda tape, x, _: op.activation(tape, x, "softmax"))

    def dropout(self) -> SyntheticModule:
        return Leaf(lambda tape, x, _: op.dropout(tape, x))

    def global_mean(self, input_shape: tuple[int, ...]) -> SyntheticModule:
        pixels = tuple(range(2, len(input_shape) + 1))
        return Leaf(lambda tape, x, samples: op.mean(tape, x, (samples, *input_shape), pixels))

    def average_pool(self, input_shape: tuple[int, ...], side: int) -> SyntheticModule:
        elements = input_shape[0] * side * side
        return Leaf(lambda tape, x, samples: op.pool(tape, x, samples * elements))

    def sequential(self, modules: Sequence[SyntheticModule]) -> SyntheticModule:
        return SyntheticSequential(modules)

    def residual(
        self, shortcut: SyntheticModule | None, body: SyntheticModule, activation: SyntheticModule
    ) -> SyntheticModule:
        return SyntheticResidual(shortcut, body, activation)

    def dense(self, body: SyntheticModule) -> SyntheticModule:
        return SyntheticDense(body)

    def head(self, body: SyntheticModule) -> SyntheticModule:
        return SyntheticHead(body)
