"""The shapes of convolutions that `fit_cudnn_trees.py` queries: drawn at random, and those of common networks.

The same shapes each time, for their draws are seeded; a change to a draw asks for all measurements anew.
"""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Shape = dict[str, Any]
"""`x`, `w`, `y`, `stride`, `padding`, `dilation`, as of a query to cuDNN; `origin`: `network`, `drawn` or `3-D`."""

TABLE = Path(__file__).parents[1] / "src/cotenant/estimators/data/cudnn/sm80_92000_float32.csv.gz"
SEED = 14
DRAWN = 9000
DRAWN_3D = 1200
MAX_ELEMENTS = 1 << 28
MAX_WEIGHT = 1 << 27
BATCHES = (1, 2, 4, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 128, 128, 256)
CHANNELS = (16, 32, 32, 64, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512, 768, 1024, 1280, 1536, 2048)
ODD_CHANNELS = (10, 12, 18, 20, 24, 36, 48, 50, 100, 144, 200, 300)
SIDES = (
    *(4, 5, 7, 8, 8, 10, 12, 14, 14, 16, 16, 20, 24, 28, 28, 32, 32, 32, 40, 48, 56, 56, 64, 64, 96, 112, 128, 160),
    *(224, 224, 256, 320, 384, 512),
)


def shapes() -> list[Shape]:
    """All shapes, in the order in which they are measured."""
    rng = random.Random(SEED)  # noqa: S311 - no secret depends on it
    found = [*_of_networks(rng), *_drawn(rng), *_drawn_3d(rng)]
    rng.shuffle(found)
    return found


def _batch(rng: random.Random) -> int:
    return rng.choice(BATCHES) if rng.random() < 0.6 else round(2 ** rng.uniform(0, 8.3))


def _channels(rng: random.Random) -> int:
    drawn = rng.random()
    if drawn < 0.45:
        return rng.choice(CHANNELS)
    if drawn < 0.7:
        return 8 * rng.randint(1, 64)
    return rng.choice(ODD_CHANNELS) if drawn < 0.85 else round(2 ** rng.uniform(1, 10))


def _side(rng: random.Random) -> int:
    return rng.choice(SIDES) if rng.random() < 0.6 else round(2 ** rng.uniform(1, 9.2))


def _shape(
    origin: str,
    images: int,
    out_channels: int,
    inner: Sequence[int],
    window: Sequence[Sequence[int]],
    channels: int,
    groups: int = 1,
) -> Shape | None:
    """None where it has no output or would not fit on a GPU. `window`: kernel, stride, padding, dilation."""
    kernel, stride, padding, dilation = (list(part) for part in window)
    outer = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(inner, kernel, stride, padding, dilation, strict=True)
    ]
    x, y, w = [images, channels, *inner], [images, out_channels, *outer], [out_channels, channels // groups, *kernel]
    if min(outer) <= 0 or max(math.prod(x), math.prod(y)) >= MAX_ELEMENTS or math.prod(w) >= MAX_WEIGHT:
        return None
    return {"x": x, "w": w, "y": y, "stride": stride, "padding": padding, "dilation": dilation, "origin": origin}


def _of_networks(rng: random.Random) -> Iterator[Shape]:
    """The convolutions of the shipped table, each with the first of five drawn batch sizes that fits."""
    lines = gzip.decompress(TABLE.read_bytes()).decode().splitlines()[1:]
    geometries = [list(map(int, line.split(",")[:-3])) for line in lines]
    rng.shuffle(geometries)
    for geometry in geometries:
        channels, out_channels, height, width, *window = geometry[:12]
        groups = geometry[14] if len(geometry) > 14 else 1
        for _ in range(5):
            parts = [window[place : place + 2] for place in (0, 2, 4, 6)]
            shape = _shape("network", _batch(rng), out_channels, (height, width), parts, channels, groups)
            if shape is not None:
                yield shape
                break


def _drawn(rng: random.Random) -> Iterator[Shape]:
    count = 0
    while count < DRAWN:
        shape = _draw(rng)
        if shape is not None:
            count += 1
            yield shape


def _draw(rng: random.Random) -> Shape | None:
    """A convolution of one or two dimensions: 7 % grouped, 3 % depthwise, 3 % of patches, 5 % of one dimension."""
    images, kind = _batch(rng), rng.random()
    rows = rng.choices([1, 2, 3, 4, 5, 7, 9, 11], [28, 4, 45, 5, 8, 6, 2, 2])[0]
    columns = rng.choice([1, 3, 5, 7]) if rng.random() < 0.04 else rows
    channels = rng.choice([1, 3, 3, 3, 4, 6]) if rng.random() < 0.12 else _channels(rng)
    out_channels = _channels(rng) if rng.random() > 0.06 else rng.choice([1, 1, 2, 3, 3, 4, 10, 21])
    height = _side(rng)
    width = height if rng.random() < 0.85 else _side(rng)
    stride = rng.choices([1, 2, 4], [72, 25, 3])[0]
    if kind < 0.03:
        rows = columns = stride = rng.choice([4, 8, 14, 16, 32])
        height = width = rows * rng.choice([4, 7, 8, 14, 16, 28])
    dilation = rng.choice([2, 2, 3, 4, 6, 12]) if rows > 1 and rng.random() < 0.06 else 1
    pads = (rng.random() < 0.8 and stride != rows) or rows == 1
    padding = [(rows - 1) // 2 * dilation, (columns - 1) // 2 * dilation] if pads else [0, 0]
    if rows == 4 and stride == 2:
        padding = [1, 1]
    if rows == 1 and stride > 2:
        stride = 1
    groups = 1
    if kind > 0.93:
        groups = rng.choice([2, 3, 4, 8, 16, 32])
        channels = groups * rng.choice([4, 8, 8, 16, 16, 24, 32, 64])
        out_channels = channels if rng.random() < 0.7 else groups * rng.choice([4, 8, 16, 32])
    elif kind > 0.90:
        groups = out_channels = channels
    strides, dilations = [stride, stride], [dilation, dilation]
    if rng.random() < 0.05:
        rows = height = 1
        width, columns = int(2 ** rng.uniform(4, 13)), rng.choice([1, 3, 3, 5, 7, 9, 15, 31])
        padding, dilations = [0, columns // 2 if rng.random() < 0.8 else 0], [1, 1]
        strides = [1, rng.choice([1, 1, 1, 2, 2, 4])]
    elif rows == height == 1:
        dilations = [1, 1]
    window = ([rows, columns], strides, padding, dilations)
    return _shape("drawn", images, out_channels, (height, width), window, channels, groups)


def _drawn_3d(rng: random.Random) -> Iterator[Shape]:
    kernels = [
        *[[3, 3, 3]] * 5, *[[1, 3, 3]] * 2, *[[3, 1, 1]] * 2, *[[1, 1, 1]] * 2,
        *([2, 2, 2], [3, 7, 7], [1, 7, 7], [5, 5, 5], [2, 16, 16]),
    ]  # fmt: skip
    count = 0
    while count < DRAWN_3D:
        images = rng.choice([1, 2, 2, 4, 4, 8, 8, 16, 32])
        wide = [8, 16, 32, 32, 64, 64, 128, 144, 256, 320, 512]
        channels = rng.choice([1, 3, 3]) if rng.random() < 0.15 else rng.choice(wide)
        out_channels = rng.choice([1, 3, 8, 16, 32, 32, 64, 64, 128, 230, 256, 512])
        depth = rng.choice([1, 2, 4, 8, 8, 16, 16, 32, 64, 96])
        side = rng.choice([4, 7, 8, 14, 16, 28, 32, 56, 64, 96, 112, 128])
        kernel = rng.choice(kernels)
        stride = rng.choices([[1, 1, 1], [2, 2, 2], [1, 2, 2]], [7, 3, 1])[0]
        are_patches = kernel in ([2, 2, 2], [2, 16, 16])
        padding = [0, 0, 0] if are_patches else [extent // 2 for extent in kernel]
        window = (kernel, kernel if are_patches else stride, padding, [1, 1, 1])
        shape = _shape("3-D", images, out_channels, (depth, side, side), window, channels)
        if shape is not None:
            count += 1
            yield shape
