"""Decision trees for the workspaces of convolutions that no shipped answer has.

Fitted to cuDNN's answers for 17,545 shapes on a null GPU by `scripts/fit_cudnn_trees.py` (decision 0081). They guess:
by format and operation, 54 to 98 % of their answers are within 2 % for channels, kernels and strides not fitted to.

A file of `data/cudnn_trees` is gzipped text for one compute capability, one cuDNN and one format of operands. The first
line names the source. Each further line is an operation and its tree in preorder: `FEATURE<=NUMBER` is a node, followed
by the subtree where that holds, then by the other one. A leaf is a number of copies as in a table of answers (`xy3`:
the input, the output and three of the weight; `w2`; `0`; `n`: the weight for each image), but of operands whose
channels are padded to 16 bytes; `v3`: those of a depthwise convolution, whose groups are padded (`vector_bytes`);
`r-12` is e^(-12/10) times all three operands.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

VERSION = 92000
"""The cuDNN that was queried, and the one whose heuristics torch 2.11 and later have."""
_LIKE = {(8, 7): (8, 6)}
"""Compute capabilities that are answered by the trees of another."""
_VECTOR_BYTES = 16
_TILE = 128
_LEAF = re.compile(r"(x?)(y?)w?(\d*)")

_Node = tuple[str, int, int]
"""A feature, the largest value that goes to the next node, and the index of the node for others; a leaf: code, 0, 0."""


@dataclass(frozen=True, slots=True)
class WorkspaceTrees:
    """Trees of one format on one compute capability. Called with a query (`query.query_of`): bytes of its first plan.

    Attributes:
        source: the first line of the file.
    """

    source: str
    _nodes: Mapping[str, Sequence[_Node]]

    def __call__(self, query: Mapping[str, Any]) -> int:
        return leaf_bytes(self.leaf(query["kind"], features(query)), query)

    def leaf(self, kind: str, known: Mapping[str, int]) -> str:
        """The leaf of an operation's tree for the features `known`."""
        nodes, place = self._nodes[kind], 0
        name, limit, other = nodes[0]
        while other:
            place = place + 1 if known[name] <= limit else other
            name, limit, other = nodes[place]
        return name


def read_trees(text: str) -> WorkspaceTrees:
    """The trees in the text of a file."""
    source, *lines = text.splitlines()
    return WorkspaceTrees(source, {kind: _nodes(tree) for kind, tree in (line.split(" ", 1) for line in lines)})


def _nodes(text: str) -> Sequence[_Node]:
    nodes: list[_Node] = []
    without_other: list[int] = []
    for token in text.split(" "):
        name, _, limit = token.partition("<=")
        nodes.append((name, int(limit or 0), 0))
        if limit:
            without_other.append(len(nodes) - 1)
        elif without_other:
            # In preorder the node after a leaf is the other child of the last node that has none yet.
            place = without_other.pop()
            nodes[place] = (*nodes[place][:2], len(nodes))
    return nodes


@lru_cache(maxsize=12)
def trees_for(capability: tuple[int, int], form: str) -> WorkspaceTrees | None:
    """The shipped trees for a compute capability and a format (`format_of`); None if there are none."""
    major, minor = _LIKE.get(capability, capability)
    folder = resources.files("cotenant.estimators") / "data" / "cudnn_trees"
    file = folder / f"sm{major}{minor}_{VERSION}_{form}.txt.gz"
    return read_trees(gzip.decompress(file.read_bytes()).decode()) if file.is_file() else None


def format_of(query: Mapping[str, Any], capability: tuple[int, int]) -> str:
    """The format of a query's operands: `tf32`, `float32` or `half`, and `_channels_last` in that layout."""
    name = "half" if query["dtype"] != "float32" else "tf32" if query["tf32"] and capability >= (8, 0) else "float32"
    return f"{name}_channels_last" if query["channels_last"] else name


def leaf_bytes(code: str, query: Mapping[str, Any]) -> int:
    """The bytes that a leaf stands for."""
    x, y, weight, images = operand_bytes(query)
    if code == "n":
        plain: int = images * item_bytes(query) * math.prod(query["w"])
        return plain
    if code.startswith("v"):
        operands, padded_weight = vector_bytes(query)
        return operands + int(code[1:]) * padded_weight
    if code.startswith("r"):
        return round(math.exp(int(code[1:]) / 10) * (x + y + weight))
    match = _LEAF.fullmatch(code)
    if match is None:
        raise ValueError(f"`{code}` is no leaf")
    return (x if match[1] else 0) + (y if match[2] else 0) + int(match[3] or 0) * weight


def item_bytes(query: Mapping[str, Any]) -> int:
    """Bytes of one element."""
    return 4 if query["dtype"] == "float32" else 2


def operand_bytes(query: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Bytes of input, output and weight with padded channels, and the number of images."""
    item = item_bytes(query)
    images, channels, *inner = query["x"]
    out_channels, group_channels, *kernel = query["w"]

    def padded(count: int) -> int:
        vector = _VECTOR_BYTES // item
        return math.ceil(count / vector) * vector

    x = item * images * padded(channels) * math.prod(inner)
    y = item * images * padded(out_channels) * math.prod(query["y"][2:])
    return x, y, item * padded(out_channels) * padded(group_channels) * math.prod(kernel), images


def vector_bytes(query: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of a depthwise convolution's input and output, and of its weight, with a vector of channels in each group.

    The group has one channel, so the operands are four times as large in float32, and the weight sixteen times.
    """
    vector = _VECTOR_BYTES // item_bytes(query)
    images, channels, *inner = query["x"]
    outputs = math.ceil(query["w"][0] // channels / vector) * vector * channels
    operands = images * (vector * channels * math.prod(inner) + outputs * math.prod(query["y"][2:]))
    return item_bytes(query) * operands, item_bytes(query) * vector * outputs * math.prod(query["w"][2:])


def features(query: Mapping[str, Any]) -> dict[str, int]:
    """What trees decide by, as integers: sizes, divisibility for vectors of channels, and numbers of 128x128 tiles."""
    images, channels, *_ = query["x"]
    out_channels, group_channels, *kernel = query["w"]
    groups = channels // group_channels
    group_out = out_channels // groups
    pixels, out_pixels, elements = (math.prod(sizes) for sizes in (query["x"][2:], query["y"][2:], kernel))
    weight = out_channels * group_channels * elements
    padding, dilation = query["padding"], query["dilation"]
    out_tiles, in_tiles = math.ceil(out_channels / _TILE), math.ceil(channels / _TILE)
    return {
        "images": images,
        "channels": channels,
        "out_channels": out_channels,
        "group_channels": group_channels,
        "group_out": group_out,
        "groups": groups,
        "pixels": pixels,
        "out_pixels": out_pixels,
        "elements": elements,
        "kernel_h": kernel[-2],
        "kernel_w": kernel[-1],
        "kernel_d": kernel[0] if len(kernel) == 3 else 0,
        "max_stride": max(query["stride"]),
        "min_stride": min(query["stride"]),
        "dilation": max(dilation),
        "padding": max(padding),
        "same": int(all(2 * p == d * (k - 1) for p, d, k in zip(padding, dilation, kernel, strict=True))),
        "height": query["x"][-2],
        "width": query["x"][-1],
        "out_height": query["y"][-2],
        "out_width": query["y"][-1],
        "channels_over_4": channels % 4,
        "channels_over_8": channels % 8,
        "channels_over_32": -channels % 32,
        "channels_over_64": -channels % 64,
        "out_channels_over_4": out_channels % 4,
        "out_channels_over_8": out_channels % 8,
        "out_channels_over_32": -out_channels % 32,
        "out_channels_over_64": -out_channels % 64,
        "width_over_4": query["x"][-1] % 4,
        "width_over_8": query["x"][-1] % 8,
        "out_width_over_4": query["y"][-1] % 4,
        "pixels_over_4": pixels % 4,
        "all_pixels": images * pixels,
        "all_out_pixels": images * out_pixels,
        "x": images * pixels * channels,
        "y": images * out_pixels * out_channels,
        "summed": group_channels * elements,
        "summed_back": group_out * elements,
        "weight": weight,
        "products": images * out_pixels * weight // 1000,
        "min_channels": min(group_channels, group_out),
        "max_channels": max(group_channels, group_out),
        "out_tiles": out_tiles,
        "in_tiles": in_tiles,
        "weight_tiles": out_tiles * math.ceil(group_channels / _TILE) * elements,
        "joined_weight_tiles": out_tiles * math.ceil(group_channels * elements / _TILE),
        "wide_weight_tiles": math.ceil(out_channels / (2 * _TILE)) * math.ceil(group_channels * elements / _TILE),
        "forward_tiles": math.ceil(images * out_pixels / _TILE) * out_tiles,
        "backward_tiles": math.ceil(images * pixels / _TILE) * in_tiles,
        "narrowing": 16 * channels // out_channels,
        "pixels_of_weight": 16 * images * out_pixels // weight,
        "dimensions": len(kernel),
    }
