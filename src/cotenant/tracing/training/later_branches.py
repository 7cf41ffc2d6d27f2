"""Lets a script enter branches that it would come to only in a later iteration, such as a validation every 500 steps.

After the traced steps the script runs to the end of its iteration, and of its epoch. Where it comes to an `if` whose
condition is false now and will be true, its body runs, as if the counter were there already: by setting the line at
which the frame goes on, or, where the body stands in the line of its condition, before that line. So is passed what
leaves a function or an iteration early: `if epoch % 5: return`. Only branches are entered that run a model and did not
so far, and of which is known, or likely, that their time comes:

- by the counters of the loops that go on (`loop_counters`), also where the loop cannot go on at that iteration;
- by a remainder, `step % every == 0`, or the time, `time.time() - last > 600`, of what may change, or by a counter that
  is compared with what is not known, `step >= next_step`.

And those that note an improvement, `if loss < best: best = loss`: the checkpoint that they save may be read later. Not
those that a loop is known never to come to, and those inside a model's forward.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.line_watch import LINES
from cotenant.tracing.training.loop_conditions import becomes_true, may_be_true
from cotenant.tracing.training.loop_counters import assigned_in
from cotenant.tracing.training.loop_levels import levels
from cotenant.tracing.training.model_calls import (
    all_called,
    computes_matrices,
    function_code,
    functions_called,
    infers,
    puts_on_gpu,
    runs_model,
)
from cotenant.tracing.training.run_in_place import run_in_place
from cotenant.tracing.training.source_branches import ORDERS, Branch, branches_of, names_in
from cotenant.tracing.training.source_loops import LOOPS, contains, loops_around
from cotenant.tracing.training.source_values import value_of
from cotenant.tracing.training.statements_behind import places

_MAX_ENTERED = 16
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "process_time", "now", "utcnow"})
_MODULE_CALL = inspect.unwrap(torch.nn.Module._call_impl).__code__


class LaterBranches:
    """Enters the later branches of one script; a watcher of lines."""

    def __init__(self, was_entered: Callable[[str, range], bool], miss: Callable[[str, range], object]) -> None:
        """`was_entered`: whether lines of a file have run a model, as they would in a later step.

        `miss`: called with lines of a file which may run then, and cannot be entered now.
        """
        self._was_entered = was_entered
        self._miss = miss
        self._entered: set[tuple[str, int]] = set()
        self._models_around = 0
        self._does_work: Callable[[list[ast.stmt], Mapping[str, Any]], bool] = _runs_any_model
        self._training: tuple[FrameType, ast.AST] | None = None  # the outermost loop around it, and its frame

    def begin_last_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter branches that compute with matrices, in the loops that go on and in the script's own optimizer.

        What an earlier round left is beside their results then, as in every later one.
        """
        step = inspect.unwrap(getattr(type(optimizer), "step", _recurring))
        seen = [(frame.f_code, script_location.visible_names(frame)) for frame in later_training.script_frames()]
        if isinstance(step, FunctionType):
            seen.append((step.__code__, {**step.__globals__, "self": optimizer}))
        branches = ((branch, names) for code, names in seen for of in branches_of(code).values() for branch in of)
        if any(computes_matrices(branch.body, names) for branch, names in branches):
            self._begin(computes_matrices)

    def begin(self) -> None:
        """Enter branches that run models from now on, until the loops around the training are over."""
        self._begin(_runs_any_model)

    def _begin(self, does_work: Callable[[list[ast.stmt], Mapping[str, Any]], bool]) -> None:
        LINES.remove(self)
        frames = list(later_training.script_frames())
        if not frames:
            return
        self._does_work = does_work
        self._models_around = _running_models(frames[0])
        loops = [(loop.frame, loop.node) for loop, _inside, _innermost in levels()]
        around, loop = loops[-1] if loops else (frames[-1], _statement(frames[-1]))
        self._training = around, loop
        LINES.add(self, [frame for frame in frames if branches_of(frame.f_code) or frame is around])

    def end(self) -> None:
        """Enter no more."""
        self._training = None
        LINES.remove(self)

    def expected(self) -> bool:
        """Whether the functions that run now have such branches, or those that they call in their innermost loops.

        This iteration, or the next one, may come to them.
        """
        self._does_work = _runs_any_model
        for frame in list(later_training.script_frames()):
            names = script_location.visible_names(frame)
            branches = (branch for there in branches_of(frame.f_code).values() for branch in there)
            if any(self._is_due(frame, names, branch) for branch in branches if frame.f_lineno not in branch.lines):
                return True
            for code, names_there in functions_called(_repeated(frame), names):
                branches = (branch for there in branches_of(code).values() for branch in there)
                if any(self._may_be_due(code, names_there, branch) for branch in branches):
                    return True
        return False

    def _may_be_due(self, code: CodeType, names: Mapping[str, Any], branch: Branch) -> bool:
        """As `_is_due`, for a function that does not run now."""
        is_new = not self._was_entered(code.co_filename, branch.lines) and self._does_work(branch.body, names)
        changing = frozenset(_recurring(branch.test, code, names)) if is_new else frozenset()
        return bool(changing) and may_be_true(branch.test, changing, names)

    def follows(self, code: CodeType) -> bool:
        return bool(branches_of(code))

    def returns(self, frame: FrameType) -> None:
        """A frame ends: maybe that of the training."""
        if self._training is not None and frame is self._training[0]:
            self.end()

    def line_runs(self, frame: FrameType) -> None:
        """Go on in a branch of the present line that is due."""
        if (
            self._training is not None
            and frame is self._training[0]
            and not contains(self._training[1], frame.f_lineno)
        ):
            self.end()
            return
        for branch in branches_of(frame.f_code).get(frame.f_lineno, ()):
            names = {**frame.f_globals, **frame.f_locals}  # not `visible_names`: this is in a trace function
            if self._is_due(frame, names, branch) and _running_models(frame) <= self._models_around:
                path = frame.f_code.co_filename
                self._entered.add((path, branch.lines.start))
                if _enter(frame, branch):
                    return
                self._miss(path, branch.lines)

    def _is_due(self, frame: FrameType, names: Mapping[str, Any], branch: Branch) -> bool:
        path = frame.f_code.co_filename
        if len(self._entered) >= _MAX_ENTERED or (path, branch.lines.start) in self._entered:
            return False
        if self._was_entered(path, branch.lines):
            return False
        if branch.improves and self._does_work is _runs_any_model:
            return may_be_true(branch.test, frozenset(names_in(branch.test)), names)
        return self._does_work(branch.body, names) and _comes(frame, names, branch.test)


def _runs_any_model(body: list[ast.stmt], names: Mapping[str, Any]) -> bool:
    return runs_model(body, names) or infers(body, names) or puts_on_gpu(body, names)


def _repeated(frame: FrameType) -> list[ast.stmt]:
    """The innermost loop of a frame; without one, all of its function, which the loop of a caller repeats."""
    body = source_bodies.function_body(frame)
    return list(loops_around(body, frame.f_lineno))[-1:] or ([] if frame.f_code.co_name == "<module>" else body)


def _statement(frame: FrameType) -> ast.stmt:
    """The innermost statement that a frame is in."""
    running = list(places(source_bodies.function_body(frame), frame.f_lineno))
    return running[-1][0][running[-1][1]] if running else ast.Pass()


def _enter(frame: FrameType, branch: Branch) -> bool:
    """Go on in a branch, or run it here where there is no line to go on at; False where neither is possible."""
    if not branch.has_own_lines:
        return run_in_place(frame, branch.body)
    try:
        frame.f_lineno = branch.lines.start  # type: ignore[misc]  # trace functions may
    except ValueError:  # Python finds none
        return False
    return True


def _comes(frame: FrameType, names: Mapping[str, Any], test: ast.expr) -> bool:
    """Whether a condition of a frame will be true in a later iteration of some loop."""
    known: list[bool | None] = []
    counted: set[str] = set()
    for loop, inside, _innermost in levels(frame, names):
        counters = inside[0].counters_of(loop, inside)
        counted.update(counters.strides)
        known.append(becomes_true(test, counters, names))
    if any(found is not None for found in known):
        return any(known)
    changing = frozenset(_recurring(test, frame.f_code, names, counted))
    return bool(changing) and may_be_true(test, changing, names)


def _running_models(frame: FrameType | None) -> int:
    """How many calls of modules are under way."""
    found = 0
    while frame is not None:
        found += frame.f_code is _MODULE_CALL
        frame = frame.f_back
    return found


# -- conditions ---------------------------------------------------------------------------------------------------


def _recurring(
    test: ast.expr, code: CodeType, names: Mapping[str, Any], counted: Collection[str] | None = None
) -> Iterator[str]:
    """Source texts of what makes a condition true from time to time: what a remainder is taken of, or compared times.

    So do a number that is `counted` and compared with what is not known, `step >= next_step`, and a function of the
    script that returns such a condition; there any number may be counted.
    """
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            yield from (text for text in names_in(node.left) if _may_change(text, code))
        elif isinstance(node, ast.Compare) and any(_asks_time(part, code) for part in ast.walk(node)):
            yield from names_in(node)
            yield ast.unparse(node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ORDERS):
            texts = list(names_in(node))
            if counted is None or any(text in counted for text in texts):
                yield from texts
        elif isinstance(node, ast.Attribute) and _is_recurring_property(node, names):
            yield ast.unparse(node)
    for called, call in all_called(ast.walk(test), names):
        function = function_code(called)
        if function is not None and _returns_recurring(function):
            yield ast.unparse(call)


def _is_recurring_property(node: ast.Attribute, names: Mapping[str, Any]) -> bool:
    """Whether it is a property of the script that returns such a condition."""
    owner = value_of(node.value, names)
    found = None if owner is None else inspect.getattr_static(type(owner), node.attr, None)
    code = function_code(found.fget) if isinstance(found, property) else None
    return code is not None and _returns_recurring(code)


@functools.cache
def _returns_recurring(code: CodeType) -> bool:
    if not script_location.is_user_file(code.co_filename):
        return False
    parts = list(ast.walk(source_bodies.function_node(code)))
    tests = [part.value for part in parts if isinstance(part, ast.Return) and part.value is not None]
    conditions = (part for part in parts if isinstance(part, ast.If))
    tests += [part.test for part in conditions if any(isinstance(inner, ast.Return) for inner in part.body)]
    return any(any(_recurring(test, code, {})) for test in tests)


def _asks_time(node: ast.AST, code: CodeType) -> bool:
    """Whether it is a call of a clock, or a name for the difference of its times."""
    if isinstance(node, ast.Name):
        return node.id in _times(code)
    name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name in _CLOCKS and isinstance(node, ast.Call) and not node.args


@functools.cache
def _times(code: CodeType) -> frozenset[str]:
    """Names that a function gives to differences with the present time."""
    return frozenset(
        ast.unparse(node.targets[0])
        for node in ast.walk(source_bodies.function_node(code))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and any(isinstance(part, ast.Call) and _asks_time(part, code) for part in ast.walk(node.value))
    )


def _may_change(text: str, code: CodeType) -> bool:
    """Whether a number may have another value when its function runs again, or the loop that it is used in.

    Not a local name that the function sets outside of its loops; its arguments, attributes and entries may.
    """
    own = code.co_varnames if code.co_name != "<module>" else code.co_names
    is_argument = text in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return text not in own or is_argument or text in _set_in_loops(code)


@functools.cache
def _set_in_loops(code: CodeType) -> frozenset[str]:
    loops = (node for node in ast.walk(source_bodies.function_node(code)) if isinstance(node, LOOPS))
    return frozenset().union(*map(assigned_in, loops))
