"""Loops whose iterations make a data loader from what they count: progressively larger images, growing batches.

Found in the source of the frames that read the loader: in an iteration of a `for` loop a loader is assigned, or a loop
begins, from an expression with the loop's target, with a name that the loop counts up, or with one assigned from these,
also behind a call that passes them on. A loop over phases, as `for phase in ("train", "val")`, makes none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType

from torch.utils.data import DataLoader

from cotenant.tracing import script_location
from cotenant.tracing.training.source_bodies import function_body, inner_blocks
from cotenant.tracing.training.source_loops import LOOPS, contains, loops_around
from cotenant.tracing.training.source_values import value_of

_ABOUT_PROGRESS = {"desc", "description", "start", "initial", "total", "leave", "disable", "position"}
"""Arguments of `tqdm` and `enumerate` that say nothing of the data."""


def loader_loop(frames: Iterable[FrameType]) -> tuple[FrameType, ast.For] | None:
    """The innermost such loop around the present epoch, and its frame; `frames` from the innermost outwards."""
    inner: list[FrameType] = []
    for frame in frames:
        if not script_location.is_user_file(frame.f_code.co_filename):
            continue
        for loop in reversed(list(loops_around(function_body(frame), frame.f_lineno))):
            if isinstance(loop, ast.For) and not _is_over_phases(loop) and _makes_loader(frame, loop, inner):
                return frame, loop
        inner.append(frame)
    return None


def counted_values(frame: FrameType, loop: ast.For) -> tuple[object, ...]:
    """What the loop counts now, by value where that is plain, else by identity; alike iterations may have the same."""
    names = script_location.visible_names(frame)
    values = [names.get(name) for name in sorted(_counted(loop))]
    return tuple(value if isinstance(value, (int, float, str)) else id(value) for value in values)


def _counted(loop: ast.For) -> set[str]:
    """The names of the loop's target, and those that its body counts up."""
    counters = (part.target for part in loop.body if isinstance(part, ast.AugAssign))
    return {node.id for part in (loop.target, *counters) for node in ast.walk(part) if isinstance(node, ast.Name)}


def _is_over_phases(loop: ast.For) -> bool:
    """Whether the loop trains in some iterations only, by its target: `if phase == "train": loss.backward()`.

    Its other iterations are a validation, and the loop around it comes back to the same loaders.
    """
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return _trains(loop.body, set()) and not _trains(loop.body, names)


def _trains(nodes: Iterable[ast.AST], names: set[str]) -> bool:
    """Whether a backward pass is in the source, in both branches of conditions that mention `names`."""
    for node in nodes:
        if isinstance(node, ast.If) and _mentions(node.test, names):
            found = _trains(node.body, names) and _trains(node.orelse, names)
        else:
            is_pass = isinstance(node, ast.Attribute) and node.attr == "backward"
            found = is_pass or _trains(ast.iter_child_nodes(node), names)
        if found:
            return True
    return False


def _makes_loader(frame: FrameType, loop: ast.For, inner: list[FrameType]) -> bool:
    """Whether an iteration makes the loader, in the frame of the loop or in those `inner` ones that it called."""
    counted, body = _counted(loop), loop.body
    for here, callee in zip([frame, *reversed(inner)], [*reversed(inner), None], strict=True):
        if _makes_loader_in(here, body, counted):
            return True
        if callee is None:
            return False
        counted = _passed_on(body, here.f_lineno, counted, callee.f_code)
        if _has_loader(callee, counted):
            return True
        body = function_body(callee)
    return False


def _makes_loader_in(frame: FrameType, body: list[ast.stmt], counted: set[str]) -> bool:
    """Whether a statement up to the present line makes a loader of `counted` names, to which names from them go."""
    names = script_location.visible_names(frame)
    for statement in _until(body, frame.f_lineno):
        if isinstance(statement, ast.Assign) and _mentions(statement.value, counted):
            targets = [part for target in statement.targets for part in _parts(target)]
            if any(isinstance(value_of(part, names), DataLoader) for part in targets):
                return True
            counted |= {part.id for part in targets if isinstance(part, ast.Name)}
        elif (
            isinstance(statement, ast.For)
            and contains(statement, frame.f_lineno)
            and _reads_data(statement.iter)
            and _mentions(statement.iter, counted)
        ):
            return True
    return False


def _has_loader(frame: FrameType, parameters: set[str]) -> bool:
    """Whether a parameter is a loader, which was made in the call."""
    names = script_location.visible_names(frame) if parameters else {}
    return any(isinstance(names.get(name), DataLoader) for name in parameters)


def _until(body: list[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements that begin up to a line, of loops only those around it."""
    for statement in body:
        if statement.lineno > line:
            return
        yield statement
        if isinstance(statement, LOOPS) and not contains(statement, line):
            continue
        for block in inner_blocks(statement):
            yield from _until(block, line)


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _reads_data(over: ast.expr) -> bool:
    """Whether a loop calls something for what it iterates over, other than `range`."""
    calls = [node for node in ast.walk(over) if isinstance(node, ast.Call)]
    return bool(calls) and not any(isinstance(call.func, ast.Name) and "range" in call.func.id for call in calls)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether names are used, but in formatted strings and in what progress bars show."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in _ABOUT_PROGRESS):
        return False
    if isinstance(node, ast.Name):
        return node.id in names
    return any(_mentions(child, names) for child in ast.iter_child_nodes(node))


def _passed_on(body: list[ast.stmt], line: int, counted: set[str], code: CodeType) -> set[str]:
    """Parameters of the function `code` that get `counted` names where the present line calls it."""
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for call in (node for part in body if contains(part, line) for node in ast.walk(part)):
        if not isinstance(call, ast.Call) or not contains(call, line):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name != code.co_name:
            continue
        is_method = isinstance(call.func, ast.Attribute) and parameters[:1] in {("self",), ("cls",)}
        placed: Mapping[str | None, ast.expr] = {
            **dict(zip(parameters[is_method:], call.args, strict=False)),
            **{keyword.arg: keyword.value for keyword in call.keywords},
        }
        return {name for name, given in placed.items() if name is not None and _mentions(given, counted)}
    return set()
