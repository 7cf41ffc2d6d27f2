"""Parses the format of modelsummary: torch's tree of modules, with a count of parameters after each. Pure.

The tree has no output shapes. Widths follow from the arguments of a layer; for `Conv1D()`, which prints none, from its
count: an earlier width divides it as inputs x outputs + outputs. An unknown width is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.errors import SummaryError
from cotenant.estimators.layer_kinds import LayerKind, layer_kind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries.values import Shape, count_of, short

_ROOT = re.compile(r"[A-Za-z_]\w*\(")
_OPEN = re.compile(r"\s*(?:\(([^()]*)\): )?([A-Za-z_]\w*)\(")
_CLOSE = re.compile(r"\s*\)(?:, ([\d,]+) params)?\s*")
_LEAF = re.compile(r"\s*\(([^()]*)\): ([A-Za-z_]\w*)\((.*)\), ([\d,]+) params\s*")
_OUT = re.compile(r"(?:out_features|nf)=(\d+)")
_POSITIONAL = re.compile(r"\(?(\d+)(?:, (\d+))?")
_SAME_WIDTH: frozenset[LayerKind] = frozenset({"activation", "dropout", "norm", "batchnorm", "softmax"})


@dataclass(slots=True)
class _Open:
    """A module whose closing line has not been read; `inside` counts the parameters of its submodules."""

    name: str
    line: int
    inside: int = 0


def is_root(line: str) -> bool:
    """Whether a line is the root of a tree."""
    return _ROOT.fullmatch(line.rstrip()) is not None


def parse_tree(lines: Sequence[str], head: int, path: str, *, sequence: int | None = None) -> tuple[Layer, ...]:
    """The layers of the tree that begins at index `head`.

    A module's own weights (the projections of an attention) follow its submodules as a separate layer.

    Raises:
        SummaryError: a line is invalid; names it and what was expected.
    """
    reader = _TreeReader(path, sequence)
    reader.stack.append(_Open(lines[head].strip()[:-1], head + 1))
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        reader.take(line, number)
        if not reader.stack:
            return tuple(reader.layers)
    left = reader.stack[-1]
    raise SummaryError(path, len(lines), f"the summary ends here, `{left.name}` of line {left.line} is not closed")


class _TreeReader:
    """Reads the lines; a line that was read after the same widths is taken from a cache.

    `_widths`: the distinct output widths so far, newest last.
    """

    def __init__(self, path: str, sequence: int | None) -> None:
        self.path = path
        self.sequence = sequence
        self.stack: list[_Open] = []
        self.layers: list[Layer] = []
        self._widths: tuple[int, ...] = ()
        self._memo: dict[tuple[str, tuple[int, ...]], tuple[Layer, int]] = {}

    def take(self, line: str, number: int) -> None:
        key = (line, self._widths)
        found = self._memo.get(key)
        if found is None:
            found = self._leaf(line, number)
            if found is None:
                self._bracket(line, number)
                return
            self._memo[key] = found
        layer, width = found
        self.layers.append(layer)
        self.stack[-1].inside += layer.parameters
        self._remember(width)

    def _leaf(self, line: str, number: int) -> tuple[Layer, int] | None:
        match = _LEAF.fullmatch(line)
        if match is None:
            return None
        _, name, arguments, count = match.groups()
        kind, parameters = layer_kind(name), count_of(count, self.path, number)
        width = self._width(kind, name, arguments, parameters)
        return Layer(kind=kind, output_shape=self._shape(width), parameters=parameters, name=name), width

    def _bracket(self, line: str, number: int) -> None:
        opened = _OPEN.fullmatch(line.rstrip())
        if opened is not None:
            self.stack.append(_Open(opened.group(2), number))
            return
        closed = _CLOSE.fullmatch(line)
        if closed is None:
            wanted = "`(NAME): TYPE(...), N params`, `(NAME): TYPE(` or `)`"
            raise SummaryError(self.path, number, f"`{short(line)}` cannot be read, wanted {wanted}")
        module = self.stack.pop()
        total = module.inside if closed.group(1) is None else count_of(closed.group(1), self.path, number)
        if total > module.inside:
            kind: LayerKind = "attention" if layer_kind(module.name) == "attention" else "other"
            width = self._widths[-1] if self._widths else 0
            own = total - module.inside
            self.layers.append(Layer(kind=kind, output_shape=self._shape(width), parameters=own, name=module.name))
        if self.stack:
            self.stack[-1].inside += max(total, module.inside)

    def _remember(self, width: int) -> None:
        if width and (not self._widths or self._widths[-1] != width):
            self._widths = (*(known for known in self._widths if known != width), width)

    def _width(self, kind: LayerKind, name: str, arguments: str, parameters: int) -> int:
        """Width of the output; 0 where unknown."""
        match = _OUT.search(arguments)
        if match is not None:
            return int(match.group(1))
        if kind in {"embedding", "norm"}:
            numbers = _POSITIONAL.match(arguments)
            return 0 if numbers is None else int(numbers.group(2) or numbers.group(1))
        if name == "Conv1D":
            return next(
                (parameters // (width + 1) for width in reversed(self._widths) if not parameters % (width + 1)), 0
            )
        is_same_width = kind in _SAME_WIDTH or name == "Identity"
        return self._widths[-1] if is_same_width and self._widths else 0

    def _shape(self, width: int) -> Shape:
        if not width:
            return ()
        return (width,) if self.sequence is None else (self.sequence, width)
