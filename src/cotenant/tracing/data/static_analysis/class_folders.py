"""Whether a script that lists a folder of data expects folders in it, one for each class, or files, or perhaps nothing.

Its own code says so: the names that it lists are tested by `isdir`, or listed in turn. `ImageFolder` of torchvision
expects such folders, and scripts that balance or filter classes list them themselves. Names that the code compares the
listed ones with are those of folders: `if kind == "good"`. A folder whose absence the script
handles is not of data: those of earlier runs are listed in a `try` statement, to resume the last one. Where a script
downloads what is absent, the folder is of data.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.static_analysis.source_tree import FUNCTIONS, called_name, innermost, parsed_source, spans

_LISTING = frozenset({"listdir", "scandir", "walk", "glob", "iglob", "rglob", "iterdir"})
_TESTING = frozenset({"isdir", "is_dir"})
_ABSENCE = frozenset({"OSError", "IOError", "EnvironmentError", "FileNotFoundError", "Exception", "BaseException"})
_EXITS = frozenset({"exit", "_exit", "quit", "abort"})
_DOWNLOADING = re.compile(r"download|wget|curl|urlretrieve|gdown", re.IGNORECASE)
_RUNNERS = frozenset({"system", "run", "call", "check_call", "check_output", "Popen"})
_NORMAL = re.compile(r"good|normal|ok", re.IGNORECASE)
"""The class that detectors of anomalies train on alone. Source: the MVTec AD data set."""
_TRAINING = re.compile(r"(?<![a-z])train(?:ing)?(?![a-z])", re.IGNORECASE)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def caller_expects_folders() -> bool:
    """Whether the user's line that lists a folder now goes on to the folders in it."""
    return _expects_folders(*script_location.calling_line())


def names_of_folders(folder: str, classes: int) -> list[str]:
    """Names of the folders in one that the user's line lists now: those that its code compares them with, or numbers.

    Beside one name there are as many numbers as it takes for `classes`.
    """
    named = _names_compared(*script_location.calling_line())
    normal = [name for name in named if _NORMAL.fullmatch(name)]
    if normal and _TRAINING.search(folder):
        return normal
    is_whole = len(named) > 1
    return [*named, *map(str, range(0 if is_whole else max(1, classes) - len(named)))]


def caller_handles_absence() -> bool:
    """Whether the user's line that lists a folder now is in a `try` statement that goes on without the folder."""
    return _handles_absence(*script_location.calling_line())


def opener_handles_absence() -> bool:
    """The same of the user's line that opens a file now."""
    frame = script_location.opening_frame()
    return _handles_absence(frame.f_code.co_filename, frame.f_lineno)


def caller_has_values_of_its_own() -> bool:
    """Whether the user's line that loads a file now assigns it to names in a `try` statement that goes on without it.

    Its handler assigns none of the names, so the script has given them values before, such as new models.
    """
    return _has_values(*script_location.calling_line())


def caller_downloads_what_is_absent() -> bool:
    """Whether the user's line asks for a folder now in the condition of an `if` statement that downloads it."""
    return _downloads(*script_location.calling_line())


def caller_ends_at_absence() -> bool:
    """Whether the user's line is in a loop without an end of its own: `while True`, left where nothing is found."""
    return _ends_at_absence(*script_location.calling_line())


@functools.cache
def _ends_at_absence(path: str, line: int) -> bool:
    loops = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.While) and spans(node, line))
    return any(isinstance(loop.test, ast.Constant) and loop.test.value for loop in loops)


@functools.cache
def _has_values(path: str, line: int) -> bool:
    tree = parsed_source(path)
    function = innermost(tree, line, FUNCTIONS) or tree
    statement = innermost(function, line, (ast.stmt,))
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    names = {name for target in targets for name in _stored(target)}
    return bool(names) and any(names.isdisjoint(_stored(handler)) for handler in _handlers_of_absence(function, line))


def _stored(tree: ast.AST) -> set[str]:
    """Variables that get a value."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


@functools.cache
def _downloads(path: str, line: int) -> bool:
    choices = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.If) and spans(node.test, line))
    return any(_is_negated(node.test) and _has_download(node.body) for node in choices)


def _is_negated(test: ast.expr) -> bool:
    """Whether a condition is `not ...`, or `not ... or ...`."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    return any(isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in parts)


def _has_download(statements: Iterable[ast.stmt]) -> bool:
    """Whether statements call a function for downloads, or run a command for them."""
    calls = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(
        _DOWNLOADING.search(ast.unparse(node) if called_name(node) in _RUNNERS else called_name(node)) for node in calls
    )


@functools.cache
def _handles_absence(path: str, line: int) -> bool:
    tree = parsed_source(path)
    return any(_handlers_of_absence(innermost(tree, line, FUNCTIONS) or tree, line))


def _handlers_of_absence(function: Any, line: int) -> Iterator[ast.ExceptHandler]:
    """Handlers of the `try` statements around a line that go on without what is missing."""
    tries = (node for node in ast.walk(function) if isinstance(node, ast.Try))
    around = (node for node in tries if any(spans(statement, line) for statement in node.body))
    yield from (handler for node in around for handler in node.handlers if _goes_on(handler))


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for missing folders, and neither raises nor exits."""
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(handler.type or ast.Pass())}
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    ends = any(isinstance(node, ast.Raise) or called_name(node) in _EXITS for node in nodes)
    return (handler.type is None or not names.isdisjoint(_ABSENCE)) and not ends


@functools.cache
def _expects_folders(path: str, line: int) -> bool:
    return any(_goes_into(names, body) for names, body in _loops_over_listing(path, line))


@functools.cache
def _names_compared(path: str, line: int) -> tuple[str, ...]:
    """Texts that the names which a line lists are compared with, but for those that the script leaves out."""
    nodes = [
        (node, names) for names, body in _loops_over_listing(path, line) for part in body for node in ast.walk(part)
    ]
    skips = (node for node, _ in nodes if isinstance(node, ast.If) and isinstance(node.body[0], ast.Continue))
    skipping = {part for node in skips for part in ast.walk(node.test)}
    found = (
        side.value
        for node, names in nodes
        if isinstance(node, ast.Compare) and node not in skipping and isinstance(node.ops[0], (ast.Eq, ast.NotEq))
        for side, other in itertools.permutations((node.left, node.comparators[0]))
        if isinstance(side, ast.Constant) and isinstance(other, ast.Name) and other.id in names
    )
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name[:1].isalnum()))


def _loops_over_listing(path: str, line: int) -> Iterator[tuple[set[str], list[ast.AST]]]:
    """(variables, body) of loops over what a line lists."""
    tree = parsed_source(path)
    function = innermost(tree, line, FUNCTIONS) or tree
    statement = innermost(function, line, (ast.stmt,))
    listed = {name.id for name in _targets(statement)}
    calls = [node for node in ast.walk(function) if called_name(node) in _LISTING and spans(node, line)]
    folders = {folder for call in calls for folder in _folders_of(call)}
    yield from (loop for node in ast.walk(function) for loop in _loops(node, listed, folders))


def _targets(statement: Any) -> Iterator[ast.Name]:
    """Variables that a statement assigns."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if isinstance(target, ast.Name):
            yield target


def _loops(node: Any, listed: set[str], folders: set[str]) -> Iterator[tuple[set[str], list[ast.AST]]]:
    """(variables, body) of loops over a list of one of `folders`, directly or by a variable of `listed`."""
    parts: list[tuple[Any, list[ast.AST]]] = []
    if isinstance(node, ast.For):
        parts = [(node, [*node.body])]
    elif isinstance(node, _COMPREHENSIONS):
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inner = [part.iter for part in node.generators[1:]]
        parts = [(part, [*part.ifs, *inner, *values]) for part in node.generators]
    for loop, body in parts:
        for part in ast.walk(loop.iter):
            is_listing = called_name(part) in _LISTING and not folders.isdisjoint(_folders_of(part))
            if is_listing or (isinstance(part, ast.Name) and part.id in listed):
                yield {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}, body
                break


def _folders_of(call: Any) -> list[str]:
    """What a call lists, as text: its arguments, or the object whose method it is."""
    return [ast.dump(part) for part in call.args or [call.func]]


def _goes_into(names: set[str], body: list[Any]) -> bool:
    """Whether a body tests that a variable, or a path made of it, is a folder, or lists it."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    for node in nodes:
        if isinstance(node, ast.Assign) and _uses(node.value, names):
            names = names | {target.id for target in _targets(node)}
    for statement in body:
        wanted = _is_folder_test(statement, names) if isinstance(statement, ast.expr) else None
        if wanted is not None:
            return wanted
    for node in nodes:
        if isinstance(node, ast.If) and (wanted := _is_folder_test(node.test, names)) is not None:
            skips = isinstance(node.body[0], ast.Continue)
            return not node.orelse and wanted != skips
        if called_name(node) in _LISTING and _uses(node, names):
            return True
    return False


def _is_folder_test(expression: ast.AST, names: set[str]) -> bool | None:
    """Whether an expression is true for folders, or, where it is negated, for others; None for another expression."""
    parts = list(ast.walk(expression))
    if not any(called_name(part) in _TESTING and _uses(part, names) for part in parts):
        return None
    return not any(isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in parts)


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
