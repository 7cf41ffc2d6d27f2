"""The synthetic job of a generated CNN with branches: `residual` and `dense` of `learn generate`.

The networks that `learn.networks.cnn` builds of torch's modules. The published networks of these names differ, and are
read from their lists of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.core.errors import UsageError
from cotenant.learn.data_collection.configs import CnnConfig
from cotenant.learn.data_collection.widths import channel_widths, halvings
from cotenant.learn.synthetic_traces import operations as op
from cotenant.learn.synthetic_traces.modules import SyntheticModule, SyntheticModules, SyntheticSequential
from cotenant.learn.synthetic_traces.tape import Tape, Tensor

Shape = tuple[int, int, int]
"""Channels, height, width."""

BRANCHED = ("residual", "dense")


class SyntheticSum(SyntheticModule):
    """`shortcut(x) + body(x)` as one expression: the shortcut runs first, and both results end with the sum.

    The body's parameters go to the GPU first, as in `networks.cnn.ResidualBlock`.
    """

    def __init__(self, shortcut: SyntheticModule | None, body: SyntheticModule) -> None:
        self._shortcut, self._body = shortcut, body
        self.state = [*body.state, *(shortcut.state if shortcut else ())]

    def forward(self, tape: Tape, x: Tensor, samples: int) -> Tensor:
        branch = tape.retain(x)
        if self._shortcut is not None:
            branch = self._shortcut.forward(tape, branch, samples)
        y = self._body.forward(tape, x, samples)
        total = op.add(tape, branch, y)
        tape.release(branch)
        tape.release(y)
        return total


def branched_cnn(config: CnnConfig) -> SyntheticModule:
    """The network of a configuration whose shape is in `BRANCHED`.

    Raises:
        UsageError: it halves its images, which is not simulated for networks with branches.
    """
    if config.pooling != "nopool":
        raise UsageError(f"a `{config.shape}` network with `{config.pooling}` is not simulated, wanted `nopool`")
    builder = _BranchedCnn(config)
    layers = builder.convolution(config.channels, config.filters, config.kernel)
    blocks, channels = builder.residual_blocks() if config.shape == "residual" else builder.dense_layers()
    modules = builder.modules
    layers += [*blocks, modules.global_mean((channels, config.image, config.image))]
    return SyntheticSequential([*layers, modules.linear((channels,), config.classes)])


class _BranchedCnn:
    """Parts of one configuration's network; every image has the size of the input."""

    def __init__(self, config: CnnConfig) -> None:
        self.config = config
        self.modules = SyntheticModules()

    def _shape(self, channels: int) -> Shape:
        return (channels, self.config.image, self.config.image)

    def _plain_convolution(self, channels: int, width: int, kernel: int) -> SyntheticModule:
        return self.modules.conv2d(self._shape(channels), width, kernel=kernel, stride=1)

    def _normalized(self, channels: int, width: int, kernel: int) -> list[SyntheticModule]:
        parts = [self._plain_convolution(channels, width, kernel)]
        if self.config.norm == "batchnorm":
            parts.append(self.modules.batch_norm(self._shape(width)))
        elif self.config.norm != "nonorm":
            raise UsageError(f"a `{self.config.shape}` network with `{self.config.norm}` is not simulated")
        return parts

    def convolution(self, channels: int, width: int, kernel: int) -> list[SyntheticModule]:
        """A convolution with its normalization, activation and dropout."""
        parts = [*self._normalized(channels, width, kernel), self.modules.activation(self.config.activation)]
        return parts + ([self.modules.dropout()] if self.config.dropout else [])

    def residual_blocks(self) -> tuple[Sequence[SyntheticModule], int]:
        """The blocks behind the first convolution, and the channels of the last one."""
        parts: list[SyntheticModule] = []
        channels, kernel = self.config.filters, self.config.kernel
        for width in channel_widths(self.config):
            body = [*self.convolution(channels, width, kernel), *self._normalized(width, width, kernel)]
            shortcut = None if channels == width else self._plain_convolution(channels, width, 1)
            parts += [SyntheticSum(shortcut, SyntheticSequential(body))]
            parts += [self.modules.activation(self.config.activation)]
            channels = width
        return parts, channels

    def dense_layers(self) -> tuple[Sequence[SyntheticModule], int]:
        """The layers behind the first convolution, with their transitions, and the channels of the last one."""
        parts: list[SyntheticModule] = []
        channels = self.config.filters
        for i, growth in enumerate(channel_widths(self.config)):
            added = self.convolution(channels, growth, self.config.kernel)
            parts.append(self.modules.dense(SyntheticSequential(added)))
            channels += growth
            if i in halvings(self.config.depth):
                half = max(1, channels // 2)
                parts += self.convolution(channels, half, 1)
                channels = half
        return parts, channels
