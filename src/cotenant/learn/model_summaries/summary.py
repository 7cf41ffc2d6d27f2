"""Parses summaries printed by torchsummary, torchinfo, modelsummary and Keras into layers. Pure: text in, layers out.

Missing information stays missing: torchinfo hides layers below its depth (`other`), modelsummary prints widths instead
of shapes, and a table made for `-1` samples has no batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.errors import SummaryError
from cotenant.estimators.layer_kinds import layer_kind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries import keras, tree
from cotenant.learn.model_summaries.values import Shape, count_of, shapes_of, short

Format = Literal["torchsummary", "torchinfo", "modelsummary", "keras", "module"]

_TABLE_HEAD = re.compile(r"\s*Layer \(type\)\s+(?:Input Shape\s+)?Output Shape\s+Param #")
_INFO_HEAD = re.compile(r"\s*Layer \(type(?: \(var_name\))?(?::depth-idx)?\)\s{2,}.*\bParam #")
_TABLE_ROW = re.compile(r"\s*([A-Za-z_]\w*)-(\d+)\s+(?:\[.*\]\s+)??(\[.*\])\s+([\d,]+)(?:\s+[\d,]+)?\s*")
_INFO_NAME = re.compile(r"(\w+)(?: \([^)]*\))?(?:: (\d+)-(\d+))?")
_INFO_TREE = re.compile(r"[│├└─|+\s]*")
_RULE = re.compile(r"\s*[-=_]{10,}\s*")
_WIDE = re.compile(r"\s{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A network parsed from a summary.

    Attributes:
        layers: in the order of the forward pass, without blocks whose layers are listed.
        batch: samples that the summary was made with; None where unknown.
    """

    format: Format
    layers: tuple[Layer, ...]
    batch: int | None

    @property
    def parameters(self) -> int:
        """Count over all layers; tied weights count at each layer that has them, as the source counts them."""
        return sum(layer.parameters for layer in self.layers)


def parse_summary(text: str, path: str = "<text>", *, sequence: int | None = None) -> Summary:
    """The layers of a summary; `path` is for messages.

    `sequence`: tokens of a sample, for modelsummary, which does not print them.

    Raises:
        SummaryError: a line is invalid; names it and what was expected.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if keras.HEAD.match(line):
            return Summary(format="keras", layers=keras.parse_keras(lines, number, path), batch=None)
        if _TABLE_HEAD.match(line):
            return _table(lines, number, path)
        if _INFO_HEAD.match(line):
            return _info(lines, number, path)
        if tree.is_root(line):
            layers = tree.parse_tree(lines, number, path, sequence=sequence)
            return Summary(format="modelsummary", layers=layers, batch=None)
    raise SummaryError(
        path,
        1,
        "no summary of a model begins here or below",
        hint="wanted the output of torchsummary, torchinfo, modelsummary or Keras",
    )


def _table(lines: Sequence[str], head: int, path: str) -> Summary:
    """The format of torchsummary: a line for each layer, and for each block after its layers."""
    memo: dict[tuple[str, str, str], Layer] = {}
    layers: list[Layer] = []
    batches: Counter[int] = Counter()
    for number, line in _body(lines, head, path):
        match = _TABLE_ROW.fullmatch(line)
        if match is None:
            raise SummaryError(path, number, f"`{short(line)}` is no layer, wanted `NAME-N  [SHAPE]  COUNT`")
        name, index, shape, count = match.groups()
        if int(index) != len(layers) + 1:
            raise SummaryError(path, number, f"layer {len(layers) + 1} is missing, `{short(line)}` follows")
        key = (name, shape, count)
        if key not in memo:
            shapes = shapes_of(shape, path, number)
            batches.update(extents[0] for extents in shapes if extents)
            memo[key] = Layer(
                kind=layer_kind(name),
                output_shape=_joined([extents[1:] for extents in shapes]),
                parameters=count_of(count, path, number),
                name=name,
            )
        layers.append(memo[key])
    batch = batches.most_common(1)[0][0] if batches else -1
    return Summary(format="torchsummary", layers=tuple(layers), batch=batch if batch > 0 else None)


@dataclass(slots=True)
class _InfoRow:
    """A line of torchinfo: `depth` 0 is the model itself."""

    name: str
    depth: int
    shapes: list[Shape]
    count: int | None


def _info(lines: Sequence[str], head: int, path: str) -> Summary:
    """The format of torchinfo: a tree, parents before children, cut off at some depth."""
    titles = _WIDE.split(lines[head].strip())
    for title in ("Output Shape", "Param #"):
        if title not in titles:
            hint = "ask torchinfo for `output_size` and `num_params`"
            raise SummaryError(path, head + 1, f"no column `{title}`", hint=hint)
    shape_at, count_at = titles.index("Output Shape") - 1, titles.index("Param #") - 1
    rows: list[_InfoRow] = []
    for number, line in _body(lines, head, path):
        prefix = _INFO_TREE.match(line)
        start = prefix.end() if prefix else 0
        name, *cells = _WIDE.split(line[start:].strip())
        match = _INFO_NAME.fullmatch(name)
        if match is None or len(cells) != len(titles) - 1:
            raise SummaryError(path, number, f"`{short(line)}` is no layer, wanted {len(titles)} columns")
        count = cells[count_at]
        if rows and match.group(2) is None:
            raise SummaryError(path, number, f"`{short(name)}` has no depth, wanted `NAME: DEPTH-N`")
        rows.append(
            _InfoRow(
                name=match.group(1),
                depth=int(match.group(2) or 0),
                shapes=[] if cells[shape_at] == "--" else shapes_of(cells[shape_at], path, number),
                count=None if count in ("--", "(recursive)") else count_of(count.strip("()"), path, number),
            )
        )
    batch = _batch_of(rows)
    layers = [
        _info_layer(row, batch, has_children=i + 1 < len(rows) and rows[i + 1].depth > row.depth)
        for i, row in enumerate(rows)
    ]
    found = tuple(layer for layer in layers if layer is not None)
    return Summary(format="torchinfo", layers=(*found, *_not_shown(found, lines, path)), batch=batch)


def _info_layer(row: _InfoRow, batch: int | None, *, has_children: bool) -> Layer | None:
    """The layer of a line; for a block whose layers follow, its own weights as a layer, or None without any."""
    kind = layer_kind(row.name)
    if has_children:
        if not row.count:
            return None
        return Layer(
            kind=kind if kind == "attention" else "other", output_shape=(), parameters=row.count, name=row.name
        )
    shape = _joined([_per_sample(output, batch) for output in row.shapes])
    return Layer(kind=kind, output_shape=shape, parameters=row.count or 0, name=row.name)


def _not_shown(layers: Sequence[Layer], lines: Sequence[str], path: str) -> tuple[Layer, ...]:
    """Parameters of the total that no line lists: torchinfo omits a list of modules that is indexed."""
    total = next((numbered for numbered in enumerate(lines, start=1) if numbered[1].startswith("Total params:")), None)
    if total is None:
        return ()
    number, line = total
    left = count_of(line.partition(":")[2].strip(), path, number) - sum(layer.parameters for layer in layers)
    return (Layer(kind="other", output_shape=(), parameters=left, name="(not shown)"),) if left > 0 else ()


def _batch_of(rows: Sequence[_InfoRow]) -> int | None:
    """The most frequent first extent: a part of a network may work on other items than samples."""
    seen = Counter(shape[0] for row in rows for shape in row.shapes if shape)
    return seen.most_common(1)[0][0] if seen else None


def _per_sample(shape: Shape, batch: int | None) -> Shape:
    """`shape` without the batch; of items that are not samples (regions of interest), the share of one, rounded up."""
    if not shape or batch is None or batch < 1 or shape[0] < 0:
        return shape[1:]
    return shape[1:] if shape[0] == batch else (-(-shape[0] // batch), *shape[1:])


def _joined(shapes: Sequence[Shape]) -> Shape:
    """The shape of one output; several outputs become one flat shape with their elements."""
    if len(shapes) <= 1:
        return shapes[0] if shapes else ()
    total = 0
    for shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return (total,)


def _body(lines: Sequence[str], head: int, path: str) -> Iterator[tuple[int, str]]:
    """Lines of layers with their numbers from 1: from the rule below the header to the next rule."""
    if head + 1 >= len(lines) or not _RULE.fullmatch(lines[head + 1]):
        raise SummaryError(path, min(head + 2, len(lines)), "wanted a line of `=` below the titles")
    for number, line in enumerate(lines[head + 2 :], start=head + 3):
        if not _RULE.fullmatch(line):
            yield number, line.rstrip("\r")
        elif number == head + 3:
            raise SummaryError(path, number, "the table has no layer")
        else:
            return
    raise SummaryError(path, len(lines), "the summary ends here, wanted a line of `=` below the layers")
