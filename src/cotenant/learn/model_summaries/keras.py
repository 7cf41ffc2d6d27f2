"""Parses `model.summary()` of Keras 2 and 3 into layers. Pure.

Both print a table of `NAME (TYPE)`, shape and count, Keras 3 with a frame; a name that is too long goes on in the next
line. Shapes are `(batch, height, width, channels)`, and come out with the channels first, as torch has them.
Activations that are arguments of a layer are not printed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.errors import SummaryError
from cotenant.estimators.layer_kinds import LayerKind, layer_kind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries.values import Shape, count_of, shapes_of, short

HEAD = re.compile(r'\s*Model: "')

_TITLES = ("Layer (type)", "Output Shape", "Param #")
_FRAME = str.maketrans(dict.fromkeys("┃│", "|"))
_RULE = re.compile(r"\s*[-=_─━┏┡└├┳╇┴┼┓┩┘┤]{10,}\s*")
_NAME = re.compile(r".*\(([A-Za-z]\w*)(?:\)|…)")
_BATCH = re.compile(r"\((?:None|\d+)")
_INPUTS = ("InputLayer",)
_KINDS: dict[str, LayerKind] = {
    "Dense": "linear",
    "Conv1D": "conv",
    "Conv2D": "conv",
    "Conv3D": "conv",
    "DepthwiseConv2D": "conv",
    "SeparableConv2D": "conv",
    "Conv2DTranspose": "conv",
    "BatchNormalization": "batchnorm",
    "LayerNormalization": "norm",
    "GroupNormalization": "norm",
    "Activation": "activation",
    "MultiHeadAttention": "attention",
    "GlobalAveragePooling2D": "pool",
    "GlobalMaxPooling2D": "pool",
    "MaxPooling1D": "pool",
    "MaxPooling2D": "pool",
    "AveragePooling2D": "pool",
    "SpatialDropout2D": "dropout",
    "ZeroPadding2D": "reshape",
    "Reshape": "reshape",
    "Concatenate": "reshape",
    "Add": "reshape",
}


@dataclass(slots=True)
class _Row:
    """Cells of one layer, and the number of its first line."""

    line: int
    cells: list[str]


def parse_keras(lines: Sequence[str], head: int, path: str) -> tuple[Layer, ...]:
    """The layers of the table below line index `head`, which is `Model: "..."`.

    Raises:
        SummaryError: a line is invalid; names it and what was expected.
    """
    found: list[Layer] = []
    for row in _rows(lines, head, path):
        name, shape_text, count = row.cells
        match = _NAME.fullmatch(name)
        if match is None:
            raise SummaryError(path, row.line, f"`{short(name)}` is no layer, wanted `NAME (TYPE)`")
        if match.group(1) in _INPUTS:
            continue
        layer = Layer(
            kind=_kind(match.group(1)),
            output_shape=_shape(shape_text, path, row.line),
            parameters=count_of(count, path, row.line),
            name=match.group(1),
        )
        found.append(layer)
    if not found:
        raise SummaryError(path, head + 1, "the table has no layer")
    return tuple(found)


def _kind(name: str) -> LayerKind:
    """The kind of a class whose name Keras 3 may have cut, as `GlobalAveragePool…`."""
    known = _KINDS.get(name) or layer_kind(name)
    return next((kind for full, kind in _KINDS.items() if full.startswith(name)), known) if known == "other" else known


def _rows(lines: Sequence[str], head: int, path: str) -> list[_Row]:
    """The rows of the table; what continues in a next line is joined."""
    titles_at = next((i for i in range(head, min(head + 4, len(lines))) if all(t in lines[i] for t in _TITLES)), None)
    if titles_at is None:
        raise SummaryError(path, head + 2, f"wanted the titles {', '.join(_TITLES)} below `Model:`")
    titles = lines[titles_at].translate(_FRAME)
    starts = _starts(titles)
    rows: list[_Row] = []
    for number, raw in enumerate(lines[titles_at + 1 :], start=titles_at + 2):
        line = raw.rstrip("\r")
        if line.lstrip().startswith("Total params"):
            return rows
        if _RULE.fullmatch(line) or not line.strip(" │┃|\t"):
            continue
        cells = _cells(line, titles, starts)
        if cells[2]:
            rows.append(_Row(number, cells))
        elif rows:
            rows[-1].cells = [before + more for before, more in zip(rows[-1].cells, cells, strict=True)]
        else:
            raise SummaryError(path, number, f"`{short(line)}` has no count of parameters")
    raise SummaryError(path, len(lines) - (not lines[-1]), "the summary ends here, wanted `Total params:`")


def _starts(titles: str) -> list[int]:
    """Columns where the cells of layer, shape and count begin, and where the last one ends."""
    if "|" in titles:
        return [i for i, char in enumerate(titles) if char == "|"][:4]
    found = [titles.index(title) for title in _TITLES]
    found[0] = 0
    end = titles.find("Connected to")
    return [*found, end if end >= 0 else 10**6]


def _cells(line: str, titles: str, starts: Sequence[int]) -> list[str]:
    cells = [line[start:end] for start, end in itertools.pairwise(starts)]
    trimmed = [cell.translate(_FRAME).strip(" |") for cell in cells]
    if "|" not in titles and trimmed[2]:
        # A count may begin before its title; the shape ends at its parenthesis.
        shape, closed, rest = (trimmed[1] + " " + trimmed[2]).rpartition(")")
        return [trimmed[0], shape + closed, rest.strip()]
    return trimmed


def _shape(text: str, path: str, line: int) -> Shape:
    """`(None, 26, 26, 32)` as (32, 26, 26); of several outputs the first."""
    first = text.strip("[]").partition(")")[0] + ")"
    if _BATCH.match(first) is None:
        raise SummaryError(path, line, f"`{short(text)}` is no shape, wanted e.g. `(None, 26, 26, 32)`")
    plain = first.replace("None", "-1").replace("(", "[").replace(")", "]").replace(",]", "]")
    extents = shapes_of(plain.replace("-1", "1"), path, line)[0][1:]
    return (extents[-1], *extents[:-1]) if len(extents) > 2 else extents
