"""Sizes that grow later in a training: grids that are refined, points that are split, progressively larger patches.

Found in the source of the loops around the optimizer step: an `if` on the loop's counter that will be true and calls a
method with a name such as `upsample_volume_grid` or `densify_and_prune`; a size that is taken from a list by an index,
as in `patch = patch_sizes[stage]`, where the list has larger ones; one that is computed from the counter; and a list
of sizes that the loop runs over. What they need then is not known: a warning. Parameters that such an `if` unfreezes
are known when it has run, and a size when the loop has come to it, if its counter decides the size: `conditional_work`
seeks both.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.loop_conditions import when_true
from cotenant.tracing.training.loop_counters import Counters, unwrapped
from cotenant.tracing.training.loop_sizes import larger_sizes
from cotenant.tracing.training.source_loops import conditions_in, loops_around
from cotenant.tracing.training.source_values import value_of

_GROWING = re.compile(
    r"(?:up_?sample|up_?scale|scale|refine|subdivide)_\w*(?:grid|volume|voxel|plane|mesh|resolution)\w*"
    r"|densif\w*|grow\w*|(?:increase|raise|next|set|update)_(?:resolution|res|stage|level|patch_size|crop_size|seq_len"
    r"|img_size|image_size)",
    re.IGNORECASE,
)
_UNFREEZING = re.compile(r"_*(?:un_?freeze|thaw)\w*", re.IGNORECASE)
_ROUNDS_TRACED = 1  # that come after the present one: a second epoch with more parameters is traced
_MADE = frozenset({"randn", "rand", "zeros", "ones", "empty", "full", "randint"})
_SIZE = re.compile(
    r"(?:.*_)?(?:sizes?|resolutions?|res|crops?|patch(?:es)?|lengths?|batch(?:es)?"
    r"|sides?|scales?|heights?|widths?|shapes?)",
    re.IGNORECASE,
)


def growing_sizes() -> Iterator[str]:
    """Sentences for the user about the loops that run now; call it right after an optimizer step."""
    for frame in list(later_training.script_frames()):
        loops = list(loops_around(source_bodies.function_body(frame), frame.f_lineno))
        names = script_location.visible_names(frame) if loops else {}
        for loop in loops:
            yield from _later_calls(frame, loop, names)
        if loops:
            yield from _larger_sizes(frame, loops[0], Counters.of(loops[0], names), names)


def _later_calls(frame: FrameType, loop: ast.stmt, names: Mapping[str, Any]) -> Iterator[str]:
    counters = Counters.of(loop, names)
    for branch in conditions_in(loop):
        call = next((name for part in branch.body for name in _methods(part) if _GROWING.fullmatch(name)), None)
        first = 0 if branch.lineno > frame.f_lineno else 1
        if call is not None and when_true(branch.test, counters, names, first=first) is not None:
            yield f"`{call}` at {_place(frame, branch)}, may need more memory later in the training than was traced"


def unfreezes(branch: ast.If, rounds: int | None) -> bool:
    """Whether parameters are unfrozen in a branch that runs after so many rounds of its loop, and not soon."""
    return (
        rounds is not None
        and rounds > _ROUNDS_TRACED
        and any(_unfreezes(node) for part in branch.body for node in _parts_that_unfreeze(part))
    )


def _parts_that_unfreeze(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of a statement, but for values that are bound to a name: `images = images.requires_grad_()` is of data."""
    values = [node.value for node in ast.walk(statement) if isinstance(node, ast.Assign)]
    of_data = {id(inner) for value in values for inner in ast.walk(value)}
    return (node for node in ast.walk(statement) if id(node) not in of_data)


def _unfreezes(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        is_flag = any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in node.targets)
        return is_flag and _constant(node.value) is True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if name == "requires_grad_":
        return all(_constant(value) is True for value in given)
    return bool(_UNFREEZING.fullmatch(name))


def _constant(expression: ast.expr) -> Any:
    """The value of a constant; None for another expression."""
    return expression.value if isinstance(expression, ast.Constant) else None


def _methods(tree: ast.AST) -> Iterator[str]:
    """Names of methods that are called, but not of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


@functools.cache  # of each loop once, and not at each step
def indexed(loop: ast.AST) -> list[tuple[ast.Assign, ast.Subscript]]:
    """Sizes, by their name or that of their list, that a loop takes by an index: `size = sizes[step % 3]`."""
    return [
        (node, node.value)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and not isinstance(node.value.slice, (ast.Constant, ast.Slice))
        and any(_SIZE.fullmatch(name) for name in _names(node.targets[0], node.value.value))
    ]


@functools.cache
def computed(loop: ast.AST) -> list[tuple[ast.Assign, ast.expr]]:
    """Sizes that a loop computes by a function, `//` or a condition: `length = min(512, 64 + step // 100 * 64)`.

    A size by its name, or by what the loop does with it.
    """
    sizes = {text for node in ast.walk(loop) for text in _uses(node)}
    return [
        (node, node.value)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], (ast.Name, ast.Attribute))
        and any(_bounds(part) for part in ast.walk(node.value))
        and (any(map(_SIZE.fullmatch, _names(node.targets[0]))) or ast.unparse(node.targets[0]) in sizes)
    ]


@functools.cache
def iterated(loop: ast.AST) -> list[tuple[ast.Assign, ast.expr]]:
    """The sizes that a loop runs over, as if it assigned its list to its target: `for length in (64, 128, 256)`."""
    if not isinstance(loop, ast.For):
        return []
    target, over = loop.target, unwrapped(loop.iter)
    if isinstance(over, ast.Call) and ast.unparse(over.func) == "enumerate" and isinstance(target, ast.Tuple):
        target, over = target.elts[-1], unwrapped(over.args[0])
    sizes = {text for node in ast.walk(loop) for text in _uses(node)}
    if not any(_SIZE.fullmatch(name) or name in sizes for name in _names(target)):
        return []
    return [(ast.copy_location(ast.Assign([target], over), loop), over)]


def _bounds(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return bool(node.args or node.keywords)
    return isinstance(node, ast.IfExp) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv))


def _uses(node: ast.AST) -> Iterator[str]:
    """Source texts of the numbers that end a slice from the first element on, or that a new tensor's shape has."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.Slice) and node.lower is None:
        found = [node.upper]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("torch.") in _MADE:
        found = [*node.args]
    return (ast.unparse(part) for part in found if isinstance(part, (ast.Name, ast.Attribute)))


def _names(*parts: ast.expr) -> Iterator[str]:
    for part in parts:
        for one in part.elts if isinstance(part, ast.Tuple) else [part]:
            yield getattr(one, "id", getattr(one, "attr", ""))


def _larger_sizes(frame: FrameType, loop: ast.stmt, counters: Counters, names: Mapping[str, Any]) -> Iterator[str]:
    for node, source in indexed(loop):
        if larger_sizes(source, counters, names):
            continue
        sizes, now = value_of(source.value, names), value_of(node.targets[0], names)
        if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) for size in sizes) or not sizes:
            continue
        if isinstance(now, int) and now < max(sizes):
            yield larger_size(ast.unparse(node.targets[0]), _place(frame, node), now, max(sizes))


def larger_size(name: str, place: str, now: object, largest: object) -> str:
    """What to say of a size that is not reached."""
    return f"`{name}` at {place}, was {now} in the traced steps and grows to {largest}"


def _place(frame: FrameType, node: ast.stmt) -> str:
    return f"{Path(frame.f_code.co_filename).name}, line {node.lineno}"
