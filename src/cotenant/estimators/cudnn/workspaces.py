"""The workspace of a convolution on a GPU.

cuDNN chooses an algorithm for each shape, and its workspace comes from the caching allocator, so it enlarges what is
reserved. This is a rule for that choice which needs no library. It was read off cuDNN's own heuristics, queried
without a GPU (versions 9.10.2 and 9.20, 1,794 convolutions of common networks, compute capability 7.5 to 9.0):

Tensor cores work in channels-last layout. Operands in the usual layout are copied into the workspace, and so is the
result on its way back, except where a kernel can read or write the usual layout itself. Channels are padded to vectors
of 16 bytes on the way. The gradient of the weights is summed in parts, one for each group of thread blocks that would
otherwise leave multiprocessors idle.

The rule for float32 on compute capability 8.0 was then corrected by 1,029 networks of 3x3 convolutions, measured on an
A100 with torch 2.4 and its cuDNN 9.1, which cannot be queried, and that for 8.6 and 8.9 by 35 runs of eight networks on
two GPUs (decision 0008). Answers of the cuDNN in the job's own environment override the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.trace import LibraryCall
from cotenant.estimators.cudnn import depthwise, trees
from cotenant.estimators.cudnn.fourier import fourier_bytes, suspected_bytes, winograd_bytes
from cotenant.estimators.cudnn.query import CudnnWorkspaces, query_of
from cotenant.estimators.cudnn.table import CudnnTable, cudnn_table
from cotenant.tracing.convolution_backend import runs_on_cudnn

_HALF = {"float16", "bfloat16"}
_NARROW = 128
_PIXELS = 784
_TILE = 128
_VECTOR_BYTES = 16
_READ_AS_THEY_ARE = {"conv_forward": 34, "conv_dgrad": 42}
"""Up to so many channels are summed over without copying an operand."""
_FEW_PIXELS = 12_544
"""Up to so many pixels in all images, a weight gradient copies nothing."""
_COPY_NOTHING = {(8, 6), (8, 9)}
"""Compute capabilities whose float32 kernels are assumed to read and write the default layout."""
_WIDE_STEM = 112
"""Above so many channels the weight gradient of a first layer runs on tensor cores, too."""
_SPLIT_PARTS = 4
_LARGE_SPLIT_PARTS = 3
"""Parts of a weight gradient that is split; the second where its tiles are many waves over the multiprocessors."""
_LARGE_WAVES = 8
_FILLED = 0.75
"""Share of the multiprocessors that a weight gradient's tiles fill without being split."""
_SPLIT_ABOVE_CHANNELS = 448
_SPLIT_UP_TO_CHANNELS = 576
"""With more output channels, and up to so many input channels, a weight gradient is split nevertheless."""
_MANY_IMAGES = 44
"""From so many images on it is split with more input channels, too."""
_WIDE_TILE = 256
_SUSPECTED_TILES = 6
"""Tiles of channels of an input gradient that takes several times its operands on many networks (decision 0011)."""
_TRANSFORM_BYTES = 32 * 17 * 8
_SMALL_TRANSFORM_BYTES = 16 * 9 * 8
"""Of one tile of pixels, as complex numbers."""
_SMALL_IMAGE = 16
_MEASURED_PLANS = 10
"""Plans that torch measures with `cudnn.benchmark` (default of `torch.backends.cudnn.benchmark_limit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Bytes of the copies that a convolution may make; 0 where both layouts are the same."""

    x: int
    w: int
    y: int
    weight: int
    pointwise: bool
    narrow: bool
    stem: bool
    padded_input: bool
    padded_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvRule:
    """The workspace of a convolution on one model of GPU. Called with a `LibraryCall`: its bytes.

    1-D and 3-D convolutions are treated alike. With `cudnn.benchmark` the fastest plan is not known: the first one is
    taken, and what torch allocates to measure all of them is in `trial_bytes`.

    Attributes:
        second_guess: use the second most likely workspace where the rule is least certain. Weight gradients of one or
            two parts are summed in three parts more, others in three fewer, or in one: where the block of the call
            before is just too small for the parts, another one as large is reserved. On 8.6 and 8.9, float32 operands
            are copied as on 8.0. With `cudnn.benchmark`, the largest of the plans that torch measures.
        cudnn_workspaces: of the job's own cuDNN; None: it cannot be queried.
        version: of the cuDNN whose shipped answers are preferred; None: the newest.
        other_sizes: whether trees fitted to answers, and a shipped answer for images of another size, come before the
            rule; only those of `version`.
    """

    capability: tuple[int, int]
    sm_count: int
    second_guess: bool = False
    cudnn_workspaces: CudnnWorkspaces | None = None
    version: int | None = None
    other_sizes: bool = False

    def __call__(self, call: LibraryCall) -> int:
        """Bytes held during `call`: from the job's own cuDNN, else a shipped table, else trees, else by the rule."""
        p: dict[str, Any] = dict(call.params)
        sizes, kind = _sizes(p), _kind(call)
        plans = self._plans(call)
        if plans and p.get("benchmark"):
            return max(plans[:_MEASURED_PLANS]) if self.second_guess else plans[0]
        sources = (self._answered, self._known, self._depthwise, self._by_trees, self._at_other_size)
        found = (source(call) for source in sources)
        nbytes = next((nbytes for nbytes in found if nbytes is not None), None)
        if nbytes is None:
            if not self._is_for_tensor_cores(p):
                return 0
            nbytes = self._stem(kind, sizes, p) if sizes.stem else self._by_rule(kind, sizes, p)
        if self.second_guess and nbytes and kind == "conv_wgrad":
            parts = (nbytes - sizes.x - sizes.y) // sizes.weight
            fewer = min(parts, _SPLIT_PARTS) - 1
            nbytes += (-fewer if parts >= _LARGE_SPLIT_PARTS else _SPLIT_PARTS - 1) * sizes.weight
        return nbytes

    def trial_bytes(self, call: LibraryCall, free_bytes: int) -> int | None:
        """Bytes that torch holds while it measures the plans for `call`; None where it measures none.

        That is once for each convolution with `cudnn.benchmark`: as many as the largest workspace takes of those that
        fit into `free_bytes` (Conv_v8.cpp, `generate_and_filter_plans`).
        """
        if not call.params.get("benchmark") or not runs_on_cudnn(call.params, self.capability):
            return None
        plans = self._plans(call) or (self._largest_plan(call),)
        return max((nbytes for nbytes in plans if nbytes <= free_bytes), default=0)

    def _largest_plan(self, call: LibraryCall) -> int:
        """The largest workspace of cuDNN's plans where there is no cuDNN to query.

        That is of kernels that copy operands, or that transform tiles of 32 by 32 pixels (17 times 32 complex numbers
        for each pair of channels; 16 by 16 for pointwise ones of small images). Of 2,264 calls of eleven networks on
        A100, H100 and T4 (cuDNN 9.20) 85 % take at most this or 1 % more; the largest that this gives for a
        network is 0.88 to 6.1 times the truth, 1.15 times in the median.
        """
        p: dict[str, Any] = dict(call.params)
        pointwise = math.prod(p["w"][2:]) == 1
        copies = 4.2 if p["groups"] > 1 else 3.0 if pointwise else 6.5
        nbytes = copies * _item_bytes(p) * sum(math.prod(p[name]) for name in "xwy")
        if self._transforms(_kind(call), p, pointwise=pointwise):
            tile = _SMALL_TRANSFORM_BYTES if pointwise and max(p["x"][2:]) <= _SMALL_IMAGE else _TRANSFORM_BYTES
            nbytes += (4 if _kind(call) == "conv_dgrad" and not pointwise else 2) * tile * p["w"][0] * p["w"][1]
        return int(nbytes)

    def _transforms(self, kind: str, p: dict[str, Any], *, pointwise: bool) -> bool:
        """Whether a plan by Fourier transforms is among those for a call."""
        if p["groups"] > 1 or {*p["stride"], *p["dilation"]} != {1}:
            return False
        if p["dtype"] in _HALF:
            return kind == "conv_wgrad" and self.capability < (8, 0)
        if kind == "conv_dgrad":
            return self.capability < (8, 0) or (self.capability != (8, 0) and not pointwise)
        return True

    def source_of(self, call: LibraryCall) -> str:
        """The source of `call`'s workspace: `cudnn`, `table`, `trees`, `other size` or `rule`."""
        if self._answered(call) is not None:
            return "cudnn"
        if self._known(call) is not None:
            return "table"
        if self._by_trees(call) is not None:
            return "trees"
        return "rule" if self._at_other_size(call) is None else "other size"

    def guesses(self, call: LibraryCall) -> bool:
        """Whether trees or the rule find a workspace without a table, or none in the default layout."""
        p: dict[str, Any] = dict(call.params)
        if p.get("benchmark"):
            return True
        sizes = _sizes(p)
        if self._answered(call) is not None or self._is_of_this_cudnn(call):
            return False
        if self._by_trees(call) or self._suspected_transforms(call):
            return True
        if p["groups"] > 1 or (p["dtype"] == "float32" and not self._is_for_tensor_cores(p)):
            return runs_on_cudnn(p, self.capability)
        if not self._is_for_tensor_cores(p) or sizes.stem or _is_product(p, sizes):
            return False
        return not p["channels_last"] or self._by_rule(_kind(call), sizes, p) > 0

    def split_bytes(self, call: LibraryCall) -> int | None:
        """Workspace of `call` if it is far larger than the rule's; None if it is not suspected of that.

        That is of transforms that trees are not sure of (`fourier`), or if it is split over the elements of its kernel.
        Two kinds of guessed calls took far more than the rule in measured networks (decision 0011): input gradients of
        1,281 to 1,536 channels, whose result is written once for each element, and weight gradients over few pixels,
        for which the rule gives 0. Where the kernel moves by its own size, as in the embedding of patches, every pixel
        meets one element: of 273 such gradients (four GPUs, cuDNN 9.20) none takes more than 4.3 times its operands,
        where the split of 16 by 16 elements would be 100 times that. Four parts are suspected there.
        """
        by_transforms = self._suspected_transforms(call)
        if by_transforms is not None:
            return by_transforms
        p: dict[str, Any] = dict(call.params)
        _, channels, *kernel = p["w"]
        elements: int = math.prod(kernel)
        kind = _kind(call)
        few = kind == "conv_wgrad" and p["y"][0] * math.prod(p["y"][2:]) <= _FEW_PIXELS
        wide = kind == "conv_dgrad" and math.ceil(channels / _WIDE_TILE) == _SUSPECTED_TILES
        if elements == 1 or not (few or wide) or not self.guesses(call):
            return None
        sizes = _sizes(p)
        if few:
            are_patches = tuple(p["stride"]) == tuple(kernel) and not any(p["padding"]) and set(p["dilation"]) == {1}
            return sizes.x + sizes.y + (min(elements, _SPLIT_PARTS) if are_patches else elements) * sizes.weight
        result, other = (p["y"], sizes.x) if p.get("transposed") else (p["x"], sizes.y)
        one: int = _item_bytes(p) * result[0] * _SUSPECTED_TILES * _WIDE_TILE * math.prod(result[2:])
        return elements * one + other + sizes.weight

    def _is_for_tensor_cores(self, p: dict[str, Any]) -> bool:
        if p["groups"] > 1 or not runs_on_cudnn(p, self.capability):
            return False
        if p["dtype"] in _HALF:
            return self.capability >= (7, 0)
        return p["dtype"] == "float32" and self.capability >= (8, 0) and bool(p.get("allow_tf32", True))

    def _by_rule(self, kind: str, sizes: _Sizes, p: dict[str, Any]) -> int:
        if p["dtype"] in _HALF:
            return _padded_copies(sizes) if p["channels_last"] else self._copies(kind, sizes, p)
        if _is_product(p, sizes):
            return _item_bytes(p) * int(p["x"][0]) * math.prod(p["w"]) if kind == "conv_wgrad" else 0
        if self.capability >= (9, 0):
            return 0 if p["channels_last"] else self._copies(kind, sizes, p)
        if self.capability in _COPY_NOTHING and not p["channels_last"] and not self.second_guess:
            return 0
        return self._tf32(kind, sizes, p)

    def _plans(self, call: LibraryCall) -> Sequence[int]:
        if self.cudnn_workspaces is None or self.cudnn_workspaces.capability != self.capability:
            return ()
        return self.cudnn_workspaces.plans(call)

    def _answered(self, call: LibraryCall) -> int | None:
        return next(iter(self._plans(call)), None)

    def _known(self, call: LibraryCall) -> int | None:
        return table(call) if (table := self._table(call)) is not None else None

    def _depthwise(self, call: LibraryCall) -> int | None:
        return depthwise.wgrad_bytes(call, self.capability, self.version if self.other_sizes else None)

    def _by_trees(self, call: LibraryCall) -> int | None:
        query = query_of(call, self.capability) if self.other_sizes else None
        if query is None:
            return None
        transforms = (fourier_bytes(query, self.capability), winograd_bytes(query, self.capability))
        found_bytes = next((nbytes for nbytes in transforms if nbytes is not None), None)
        if found_bytes is not None or self.version != trees.VERSION:
            return found_bytes
        found = trees.trees_for(self.capability, trees.format_of(query, self.capability))
        return None if found is None else found(query)

    def _suspected_transforms(self, call: LibraryCall) -> int | None:
        """Of a call without an answer that may be computed by Fourier transforms, although trees do not say so."""
        if not self.other_sizes or self._answered(call) is not None or self._known(call) is not None:
            return None
        query = query_of(call, self.capability)
        return None if query is None else suspected_bytes(query, self.capability)

    def _at_other_size(self, call: LibraryCall) -> int | None:
        table = self._table(call) if self.other_sizes else None
        return None if table is None or self.version not in (None, table.version) else table.at_other_size(call)

    def _table(self, call: LibraryCall) -> CudnnTable | None:
        """The shipped answers that `call` may be in."""
        p = call.params
        if not runs_on_cudnn(p, self.capability) or (self.capability >= (8, 0) and not p.get("allow_tf32", True)):
            return None
        return cudnn_table(self.capability, self.version)

    def _is_of_this_cudnn(self, call: LibraryCall) -> bool:
        """Whether a table has `call`, and is of the version that the job would load."""
        table = cudnn_table(self.capability, self.version)
        return self._known(call) is not None and table is not None and self.version in (None, table.version)

    def _stem(self, kind: str, sizes: _Sizes, p: dict[str, Any]) -> int:
        """A first layer reads images of up to four channels without a copy; only its weight gradient may need one."""
        if p["dtype"] in _HALF:
            return sizes.x + sizes.y if kind == "conv_wgrad" else 0
        wide = p["w"][0] > _WIDE_STEM and self.capability == (8, 0)
        return sizes.x + sizes.y + sizes.weight if wide and kind == "conv_wgrad" and not p["channels_last"] else 0

    def _copies(self, kind: str, sizes: _Sizes, p: dict[str, Any]) -> int:
        """All operands and the result in the other layout."""
        if kind == "conv_wgrad":
            return sizes.x + sizes.y + self._parts(p) * sizes.w
        return sizes.x + sizes.w + sizes.y

    def _tf32(self, kind: str, sizes: _Sizes, p: dict[str, Any]) -> int:
        """Ampere's kernels for float32: they round operands into the workspace and write the result themselves."""
        out_channels, in_channels = p["w"][:2]
        summed = {"conv_forward": in_channels, "conv_dgrad": out_channels}.get(kind)
        if summed is not None and summed <= _READ_AS_THEY_ARE[kind] and not p.get("transposed"):
            return 0
        if kind == "conv_forward":
            # A result with padded channels is copied into the requested one, too.
            return sizes.x + sizes.weight + (sizes.y if sizes.padded_output else 0)
        if kind == "conv_dgrad":
            return sizes.y + sizes.weight + (0 if p["channels_last"] else sizes.x)
        if p["y"][0] * math.prod(p["y"][2:]) <= _FEW_PIXELS:
            return 0
        return sizes.x + sizes.y + self._tf32_parts(p) * sizes.weight

    def _tf32_parts(self, p: dict[str, Any]) -> int:
        """Parts that Ampere sums a weight gradient of float32 in, read off an A100 (decision 0008)."""
        out_channels, in_channels, *kernel = p["w"]
        tiles = math.ceil(out_channels / _TILE) * math.ceil(in_channels / _TILE) * math.prod(kernel)
        if tiles < _FILLED * self.sm_count:
            return self._parts(p)
        if out_channels <= _SPLIT_ABOVE_CHANNELS:
            return 1
        if p["y"][0] < _MANY_IMAGES:
            return _SPLIT_PARTS if in_channels <= _SPLIT_UP_TO_CHANNELS else 1
        return _SPLIT_PARTS if tiles < _LARGE_WAVES * self.sm_count else _LARGE_SPLIT_PARTS

    def _parts(self, p: dict[str, Any]) -> int:
        """Parts that a weight gradient is summed in: enough tiles for every multiprocessor."""
        out_channels, in_channels, *kernel = p["w"]
        tiles: int = math.ceil(out_channels / _TILE) * math.ceil(in_channels * math.prod(kernel) / _TILE)
        return max(1, round(self.sm_count / tiles))


def _padded_copies(sizes: _Sizes) -> int:
    """In half precision and channels-last layout only operands that need padding are copied, and the weights."""
    if not (sizes.padded_input or sizes.padded_output):
        return 0
    return (sizes.x if sizes.padded_input else 0) + (sizes.y if sizes.padded_output else 0) + sizes.w


def _kind(call: LibraryCall) -> str:
    """A transposed convolution runs as the gradient of an ordinary one, and the other way round."""
    if not call.params.get("transposed"):
        return call.kind
    return {"conv_forward": "conv_dgrad", "conv_dgrad": "conv_forward"}.get(call.kind, call.kind)


def none(_call: LibraryCall) -> int:
    """No workspace at all: a lower bound."""
    return 0


def _is_product(p: dict[str, Any], sizes: _Sizes) -> bool:
    """Whether cuDNN leaves a pointwise convolution in float32 to cublasLt, one product of matrices for each image.

    So in 94 to 100 % of the answers of 9.20 for images of at least 196 pixels and one side of up to 128 channels, and
    in most of those for up to 128 channels and fewer pixels. The weight gradients of all images are summed afterwards.
    """
    pixels = math.prod(p["x"][2:])
    return sizes.pointwise and set(p["stride"]) == {1} and not any(p["padding"]) and (sizes.narrow or pixels >= _PIXELS)


def _item_bytes(p: dict[str, Any]) -> int:
    return 2 if p["dtype"] in _HALF else 4


def _sizes(p: dict[str, Any]) -> _Sizes:
    item = _item_bytes(p)
    out_channels, in_channels, *kernel = p["w"]
    if p.get("transposed"):
        out_channels, in_channels = in_channels, out_channels
    wide_in, wide_out = (_padded(channels, _VECTOR_BYTES // item) for channels in (in_channels, out_channels))
    x = item * p["x"][0] * wide_in * math.prod(p["x"][2:])
    y = item * p["y"][0] * wide_out * math.prod(p["y"][2:])
    weight = item * wide_out * wide_in * math.prod(kernel)
    pointwise = math.prod(kernel) == 1
    return _Sizes(
        x=x if math.prod(p["x"][2:]) > 1 else 0,
        w=0 if pointwise else weight,
        y=y if math.prod(p["y"][2:]) > 1 else 0,
        weight=weight,
        pointwise=pointwise,
        narrow=min(in_channels, out_channels) <= _NARROW,
        stem=in_channels <= 4,
        padded_input=wide_in != in_channels,
        padded_output=wide_out != out_channels,
    )


def _padded(channels: int, multiple: int) -> int:
    return math.ceil(channels / multiple) * multiple
