"""Widths of layers by the shape of an architecture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cotenant.learn.data_collection.configs import CnnConfig, CnnShape, MlpConfig, MlpShape

_MAX_CHANNELS = 2048
_HALVINGS = 4


def hidden_widths(config: MlpConfig) -> tuple[int, ...]:
    """Widths of the hidden layers.

    `pyramid`: each half of the one before, down to the classes; `uniform`: as the inputs; `gradual`: evenly from the
    inputs to the classes; `bottleneck`: halves down to the middle, doubles after it. (In the published sets of
    GPUMemNet `bottleneck` has the widths of `pyramid`.)
    """
    inputs, classes, depth = config.inputs, config.classes, config.depth
    widths: Mapping[MlpShape, Callable[[int], int]] = {
        "pyramid": lambda i: inputs >> (i + 1),
        "uniform": lambda _: inputs,
        "gradual": lambda i: inputs - round((inputs - classes) * (i + 1) / (depth + 1)),
        "bottleneck": lambda i: inputs >> (min(i, depth - 1 - i) + 1),
    }
    least = 1 if config.shape == "uniform" else min(classes, inputs)
    return tuple(max(widths[config.shape](i), least) for i in range(depth))


def channel_widths(config: CnnConfig) -> tuple[int, ...]:
    """Channels of the convolutions; of `residual` those of its blocks, of `dense` what each of its layers adds.

    `pyramid`: grows by the same factor to 16 times the filters; `gradual`: by the same number to 4 times;
    `bottleneck`: falls to a quarter in the middle and comes back; `hourglass`: rises to 8 times and comes back;
    `residual`: doubles where the image is halved; never above 2048, except for `uniform`.
    """
    filters, depth = config.filters, config.depth
    most = max(_MAX_CHANNELS, filters)

    def along(i: int) -> float:
        return i / (depth - 1) if depth > 1 else 0.0

    def inward(i: int) -> float:
        return min(i, depth - 1 - i) / max(1, (depth - 1) // 2)

    widths: Mapping[CnnShape, Callable[[int], float]] = {
        "uniform": lambda _: filters,
        "pyramid": lambda i: filters * min(16.0, most / filters) ** along(i),
        "gradual": lambda i: filters + (min(4 * filters, most) - filters) * along(i),
        "bottleneck": lambda i: filters * 0.25 ** inward(i),
        "hourglass": lambda i: filters * min(8.0, most / filters) ** inward(i),
        "residual": lambda i: min(filters << sum(index < i for index in halvings(depth)), most),
        "dense": lambda _: filters / 4,
    }
    return tuple(max(4, round(widths[config.shape](i))) for i in range(depth))


def halvings(depth: int) -> frozenset[int]:
    """Layers that halve height and width: up to 4, evenly spread over the depth."""
    count = min(_HALVINGS, depth)
    return frozenset((i + 1) * depth // count - 1 for i in range(count))
