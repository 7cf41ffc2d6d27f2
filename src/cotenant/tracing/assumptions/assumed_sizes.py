"""Whole numbers that a script reads from the GPU and takes for a size: `x[:n]`, `torch.zeros(n)`, `range(n)`.

Their values are not computed. 1 is assumed, so what they cut, make or repeat is too small: a warning. The number of
elements that a mask selects is as large as what selecting by it gives (see `mask_counts`), but not for `range`: a loop
over all anchors of a detector does not end. A number counts as a size by the source of the function that reads it:
where it is read in such a place, or where a name that the statement gives it is used in one. A slice from `n` to
`n + 8` has its size. Not found: what another function uses. A module of its own: one assumption, as the others here.
"""

from __future__ import annotations

import ast
import dis
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from cotenant.tracing import script_location
from cotenant.tracing.torch_location import TORCH_DIR
from cotenant.tracing.training import source_bodies

_BOTH = 2  # bounds of a slice
_READS = frozenset({"item", "tolist", "int"})
_MAKERS = frozenset(
    {
        *("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "expand", "range", "repeat", "repeat_interleave"),
    }
)
"""Functions and methods whose arguments are sizes, or how often something comes."""


@dataclass(frozen=True, slots=True)
class AssumedSize:
    """A number that is read as a size: where, and whether a loop is repeated so often."""

    place: str
    repeats: bool

    def warning(self, *, counted: bool) -> str:
        """What to say of it; `counted`: it is the number of elements that a mask selects."""
        if counted:
            return f"{self.place}, reads how many elements a mask selects; not computed; assumed: as many as it may"
        return f"{self.place}, reads a size that is not computed; assumed: 1, so what has this size may need more"


def size_read_now() -> AssumedSize | None:
    """The whole number that is read now, if it is a size; None if it is none, as far as the source shows."""
    frame = _reading_frame()
    if frame is None or not _is_size(frame.f_code, frame.f_lineno, frame.f_lasti):
        return None
    place = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    return AssumedSize(place, _is_size(frame.f_code, frame.f_lineno, frame.f_lasti, repeats=True))


def _reading_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(
        (script_location.PACKAGE_DIR, TORCH_DIR, "<frozen")
    ):
        frame = frame.f_back
    return frame


@functools.cache
def _is_size(code: CodeType, line: int, instruction: int, repeats: bool = False) -> bool:
    """Whether it is one; with `repeats`, whether it is one of `range`."""
    found = _statement(source_bodies.code_body(code), line)
    if found is None:
        return False
    statement, parts = found
    sizes = [size for part in parts for size in _sizes(part, repeats)]
    if _is_subscript(code, instruction):  # `tensor.__index__`, which Python's own code calls
        return any(_names(size) - {"len"} for size in sizes)
    if any(_reads(node) for size in sizes for node in ast.walk(size)):
        return True
    names = {ast.unparse(target) for target in _targets(statement)}
    whole = source_bodies.function_node(code)
    return bool(names) and any(_names(size) & names for size in _sizes(whole, repeats))


def _statement(body: list[ast.stmt], line: int) -> tuple[ast.stmt, list[ast.expr]] | None:
    """The innermost statement at a line, with its own expressions: of a loop or a condition, those of its header."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        inner = next((found for block in blocks if (found := _statement(block, line)) is not None), None)
        own = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
        return inner or (statement, own)
    return None


def _is_subscript(code: CodeType, instruction: int) -> bool:
    names = (step.opname for step in dis.get_instructions(code) if step.offset == instruction)
    return any("SUBSCR" in name or "SLICE" in name for name in names)


def _sizes(node: ast.AST, repeats: bool) -> Iterator[ast.expr]:
    """Expressions within `node` that are sizes; with `repeats`, only those of `range`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Slice) and not repeats:
            bounds = [bound for bound in (part.lower, part.upper) if bound is not None]
            if len(bounds) < _BOTH or not _names(bounds[0]) & _names(bounds[-1]):
                yield from bounds
        elif isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else ast.unparse(part.func)
            if name in (("range",) if repeats else _MAKERS):
                yield from part.args


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))}


def _reads(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return name in _READS


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return [part for target in statement.targets for part in getattr(target, "elts", [target])]
    return [statement.target] if isinstance(statement, (ast.AnnAssign, ast.AugAssign)) else []
