"""cuDNN's own answers for the convolutions of common networks, shipped as a table.

The workspace of a convolution consists of copies of its operands: the cell `xy3` means one of the input, one of the
output and three of the weight; `n` one of the weight for each image. So an answer for one batch size serves those near
it, and one for a size of images other sizes. Made by `scripts/ask_cudnn.py`.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from cotenant.core.trace import LibraryCall

_ITEM_BYTES = 4
_CELL = re.compile(r"(x?)(y?)(w?)(\d*)")
_VERSIONS = (91002, 92000)
"""Of the shipped tables."""
_TORCH_WITH_98 = (2, 8)
_TORCH_WITH_919 = (2, 11)
_LIKE = {(8, 7): (8, 6)}
"""Compute capabilities that are answered by the table of another."""
_OPS = {"conv_forward": 0, "conv_dgrad": 1, "conv_wgrad": 2}

_Cells = tuple[str, str, str]
_Sized = tuple[tuple[int, int], _Cells]
"""Size of the images and the cells for it."""


@dataclass(frozen=True, slots=True)
class CudnnTable:
    """Answers of one cuDNN for one compute capability; float32, the usual layout, two dimensions.

    Attributes:
        version: of cuDNN, such as 91002.
        batches: batch sizes that were queried, ascending.
    """

    version: int
    batches: tuple[int, ...]
    _cells: Mapping[str, _Cells]
    _sizes: dict[tuple[int, ...], Sequence[_Sized]] = field(default_factory=dict, compare=False)

    def __call__(self, call: LibraryCall) -> int | None:
        """Bytes that cuDNN takes for `call`; None if the table does not have it."""
        p: dict[str, Any] = dict(call.params)
        if not _is_listed(p):
            return None
        found = self._cells.get(",".join(map(str, _geometry(p))))
        if found is None:
            return None
        batch = p["x"][0]
        nearest = self._nearest_batch(batch)
        return _bytes(found[_OPS[call.kind]].split(" ")[nearest], p, batch / self.batches[nearest])

    def at_other_size(self, call: LibraryCall) -> int | None:
        """Bytes for `call` by the answer for images of the nearest other size; None if the table has no size.

        Of 39,000 answers (cuDNN 9.20, 8.6 and 8.0) 87 and 78 % follow from another size of the table.
        """
        p: dict[str, Any] = dict(call.params)
        if not _is_listed(p):
            return None
        if not self._sizes:
            self._sizes.update(_by_size(self._cells))
        found = self._sizes.get(_without_size(_geometry(p)))
        if found is None:
            return None
        batch, _, height, width = p["x"]
        (other_height, other_width), cells = min(
            found, key=lambda sized: (abs(math.log(height * width / (sized[0][0] * sized[0][1]))), sized[0])
        )
        nearest = self._nearest_batch(batch)
        ratio = batch * height * width / (self.batches[nearest] * other_height * other_width)
        return _bytes(cells[_OPS[call.kind]].split(" ")[nearest], p, ratio)

    def _nearest_batch(self, batch: int) -> int:
        return min(range(len(self.batches)), key=lambda i: abs(math.log(batch / self.batches[i])))


def _is_listed(p: Mapping[str, Any]) -> bool:
    return p["dtype"] == "float32" and not p["channels_last"] and not p.get("transposed") and len(p["x"]) == 4


def _geometry(p: Mapping[str, Any]) -> tuple[int, ...]:
    _, c, h, w = p["x"]
    k, _, r, s = p["w"]
    groups = (p["groups"],) if p["groups"] > 1 else ()
    return (c, k, h, w, r, s, *p["stride"], *p["padding"], *p["dilation"], *p["y"][2:], *groups)


def _without_size(geometry: Sequence[int]) -> tuple[int, ...]:
    """All of a geometry but height and width of input and output."""
    return (*geometry[:2], *geometry[4:12], *geometry[14:])


def _by_size(cells: Mapping[str, _Cells]) -> Mapping[tuple[int, ...], Sequence[_Sized]]:
    found: dict[tuple[int, ...], list[_Sized]] = {}
    for key, answers in cells.items():
        geometry = tuple(map(int, key.split(",")))
        found.setdefault(_without_size(geometry), []).append(((geometry[2], geometry[3]), answers))
    return found


def _bytes(cell: str, p: Mapping[str, Any], ratio: float) -> int | None:
    if cell == "n":
        images: int = p["x"][0]
        nbytes: int = _ITEM_BYTES * images * math.prod(p["w"])
        return nbytes
    if cell.isdigit():
        return round(int(cell) * ratio)
    match = _CELL.fullmatch(cell)
    if match is None:  # `?`: cuDNN had no plan
        return None
    x, y, _, copies = match.groups()
    elements: int = int(copies or 0) * math.prod(p["w"])
    elements += math.prod(p["x"]) if x else 0
    elements += math.prod(p["y"]) if y else 0
    return _ITEM_BYTES * elements


def cudnn_of_torch(torch_version: str) -> int:
    """The shipped version nearest to the cuDNN that PyTorch's wheels of this version depend on.

    Heuristics agree from 9.8 to 9.11 and from 9.20 to 9.26 (decision 0008).
    """
    numbers = [int(part) for part in re.findall(r"\d+", torch_version)[:2]]
    return _VERSIONS[0] if numbers and tuple(numbers) < _TORCH_WITH_919 else _VERSIONS[1]


def is_cudnn_known(torch_version: str) -> bool:
    """Whether the heuristics of the cuDNN of PyTorch's wheels are those of a shipped table; assumed of earlier ones."""
    numbers = [int(part) for part in re.findall(r"\d+", torch_version)[:2]]
    return tuple(numbers) >= _TORCH_WITH_98


@lru_cache(maxsize=8)
def cudnn_table(capability: tuple[int, int], version: int | None = None) -> CudnnTable | None:
    """The table for a compute capability, of `version` if there is one; None if none is shipped."""
    folder = resources.files("cotenant.estimators") / "data" / "cudnn"
    major, minor = _LIKE.get(capability, capability)
    for candidate in sorted(_VERSIONS, key=lambda shipped: (shipped != version, -shipped)):
        file = folder / f"sm{major}{minor}_{candidate}_float32.csv.gz"
        if file.is_file():
            return _read(gzip.decompress(file.read_bytes()).decode())
    return None


def _read(text: str) -> CudnnTable:
    head, *lines = text.splitlines()
    batches = tuple(int(part) for part in head.split("batches ")[1].split(","))
    cells = {}
    for line in lines:
        *geometry, forward, dgrad, wgrad = line.split(",")
        cells[",".join(geometry)] = (forward, dgrad, wgrad)
    return CudnnTable(int(head.removeprefix("# cuDNN ").split(",")[0]), batches, cells)
