"""cuDNN's own answers for the convolutions of common networks, shipped as a table.

The workspace of a convolution consists of copies of its operands: the cell `xy3` means one of the input, one of the
output and three of the weight; `n` one of the weight for each image. So an answer for one batch size serves those near
it. Made by `scripts/ask_cudnn.py`.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from cotenant.core.trace import LibraryCall

_ITEM_BYTES = 4
_CELL = re.compile(r"(x?)(y?)(w?)(\d*)")
_VERSIONS = (91002, 92000)
"""Of the shipped tables."""
_TORCH_WITH_919 = (2, 11)
_LIKE = {(8, 7): (8, 6), (8, 9): (8, 6)}
"""Compute capabilities that are answered by the table of another."""
_OPS = {"conv_forward": 0, "conv_dgrad": 1, "conv_wgrad": 2}


@dataclass(frozen=True, slots=True)
class CudnnTable:
    """Answers of one cuDNN for one compute capability; float32, the usual layout, two dimensions.

    Attributes:
        version: of cuDNN, such as 91002.
        batches: batch sizes that were queried, ascending.
    """

    version: int
    batches: tuple[int, ...]
    _cells: Mapping[str, tuple[str, str, str]]

    def __call__(self, call: LibraryCall) -> int | None:
        """Bytes that cuDNN takes for `call`; None if the table does not have it."""
        p: dict[str, Any] = dict(call.params)
        if p["dtype"] != "float32" or p["channels_last"] or p.get("transposed") or len(p["x"]) != 4:
            return None
        batch, c, h, w = p["x"]
        k, _, r, s = p["w"]
        groups = (p["groups"],) if p["groups"] > 1 else ()
        geometry = (c, k, h, w, r, s, *p["stride"], *p["padding"], *p["dilation"], *p["y"][2:], *groups)
        found = self._cells.get(",".join(map(str, geometry)))
        if found is None:
            return None
        nearest = min(range(len(self.batches)), key=lambda i: abs(math.log(batch / self.batches[i])))
        cell = found[_OPS[call.kind]].split(" ")[nearest]
        return _bytes(cell, p, batch / self.batches[nearest])


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
