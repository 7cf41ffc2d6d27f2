"""Weight gradients that cuDNN computes by Fourier transforms, or by Winograd's algorithm, on compute capability 8.6.

The workspace holds transforms of whole images for each pair of channels, up to hundreds of times the operands: 2 GiB
for 128 to 32 channels at 128 x 128 pixels. No leaf of `trees` has it, for one gradient in a hundred takes it. Its size
follows from the shape, and whether it is taken from a tree of its own, fitted to the answers of cuDNN 9.20 on a null
GPU by `scripts/fit_fourier_tree.py` (decision 0081); 9.10.2 agrees with it. A second tree says where it is suspected:
there the bound has it.

Winograd's algorithm transforms tiles: up to 30 times the operands for kernels of 5 x 5. Size and choice likewise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cotenant.estimators.cudnn.trees import features, trees_for

FORM = "tf32_fourier"
"""Of the trees' file."""
ASSUMED, SUSPECTED, WINOGRAD = "assumed", "suspected", "winograd"
"""The trees: where Fourier transforms are assumed and suspected, and where the other algorithm is assumed."""
YES, NO = "1", "0"
"""Their leaves."""
_CAPABILITIES = {(8, 6), (8, 7)}
_MIN_SIDE = 16
_MAX_SIDE = 256
_COMPLEX_BYTES = 8
_ITEM_BYTES = 4
_TILES = {(3, 3): (4, 6, 1), (5, 5): (9, 13, 16)}
"""Kernel -> side of a tile of the output, side of its transform, and what the number of images is rounded up to."""
_MULTIPLES = (32, 64, 128, 256)


def fourier_bytes(query: Mapping[str, Any], capability: tuple[int, int]) -> int | None:
    """The workspace of a `query` (`query.query_of`) that is assumed to be computed so; None for all others."""
    return transform_bytes(query) if _is(ASSUMED, query, capability) else None


def suspected_bytes(query: Mapping[str, Any], capability: tuple[int, int]) -> int | None:
    """The workspace of a `query` that may be computed so, but is not assumed to be; None for all others."""
    if _is(ASSUMED, query, capability) or not _is(SUSPECTED, query, capability):
        return None
    return transform_bytes(query)


def winograd_bytes(query: Mapping[str, Any], capability: tuple[int, int]) -> int | None:
    """The workspace of a `query` that is assumed to be computed by Winograd's algorithm; None for all others."""
    return tile_bytes(query) if _is(WINOGRAD, query, capability) else None


def _is(what: str, query: Mapping[str, Any], capability: tuple[int, int]) -> bool:
    if capability not in _CAPABILITIES or not (has_tiles(query) if what == WINOGRAD else is_transformable(query)):
        return False
    trees = trees_for(capability, FORM)
    return trees is not None and trees.leaf(what, fourier_features(query)) == YES


def has_tiles(query: Mapping[str, Any]) -> bool:
    """Whether cuDNN has a plan by Winograd's algorithm: for kernels of 3 x 3 and 5 x 5, and images of any size."""
    return tuple(query["w"][2:]) in _TILES and _is_plain(query)


def is_transformable(query: Mapping[str, Any]) -> bool:
    """Whether cuDNN has a plan by Fourier transforms: images of up to 256 pixels a side, kernels of more than one."""
    return _is_plain(query) and query["w"][2:] != [1, 1] and _padded_side(query) <= _MAX_SIDE


def _is_plain(query: Mapping[str, Any]) -> bool:
    """Whether it is a weight gradient in float32 with TF32, in the default layout, of one group, without a stride."""
    if (query["kind"], query["dtype"]) != ("conv_wgrad", "float32") or query["channels_last"] or not query["tf32"]:
        return False
    is_one_group: bool = len(query["x"]) == 4 and query["w"][1] == query["x"][1]
    return is_one_group and {*query["stride"], *query["dilation"]} == {1}


def transform_bytes(query: Mapping[str, Any]) -> int:
    """The plan's workspace, in all 1,100 answers that it was compared with.

    Twice half of a square of complex numbers, for each pair of channels or for each channel of all images, whichever
    are more, and a copy of the output's gradient.
    """
    images, channels, *_ = query["x"]
    out_channels = query["w"][0]
    side = max(_MIN_SIDE, 1 << (_padded_side(query) - 1).bit_length())
    transforms = max(channels * out_channels, images * (channels + out_channels))
    nbytes: int = 2 * _COMPLEX_BYTES * side * (side // 2 + 1) * transforms + 4 * math.prod(query["y"])
    return nbytes


def tile_bytes(query: Mapping[str, Any]) -> int:
    """What Winograd's algorithm holds of a query that `has_tiles`: transformed tiles of both operands and the weight.

    Equal to the byte in 597 answers of 9.20.
    """
    side, transform, multiple = _TILES[tuple(query["w"][2:])]
    images, channels, *_ = query["x"]
    out_channels = query["w"][0]
    tiles = math.ceil(images / multiple) * multiple * math.prod(math.ceil(size / side) for size in query["y"][2:])
    nbytes: int = _ITEM_BYTES * transform**2 * (tiles * (channels + out_channels) + channels * out_channels)
    return nbytes


def _padded_side(query: Mapping[str, Any]) -> int:
    side: int = max(size + 2 * padding for size, padding in zip(query["x"][2:], query["padding"], strict=True))
    return side


def fourier_features(query: Mapping[str, Any]) -> dict[str, int]:
    """What the trees decide by: the features of other trees, and how far sizes are from whole tiles."""
    known = features(query)
    tiled = {
        "summed": known["summed"],
        "summed_back": known["summed_back"],
        "all_out_pixels": known["all_out_pixels"],
        "out_channels": known["out_channels"],
    }
    far = {f"{name}_to_{number}": -size % number for name, size in tiled.items() for number in _MULTIPLES}
    return {
        **known,
        **far,
        "side": _padded_side(query),
        "pairs": known["channels"] * known["out_channels"],
        "all_channels": known["images"] * (known["channels"] + known["out_channels"]),
        "pixels_of_out_channel": 16 * known["all_out_pixels"] // known["out_channels"],
        "pixels_of_summed": 16 * known["all_out_pixels"] // known["summed"],
        "summed_of_out_channel": 16 * known["summed"] // known["out_channels"],
    }
