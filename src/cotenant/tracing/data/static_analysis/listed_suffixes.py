"""The suffix of the files that a script keeps of a folder that it lists, by its own code.

`[name for name in os.listdir(folder) if name.endswith(".png")]` keeps names that end in `.png`. The statement that
lists is read, what its function does with the result, and functions that it calls with the names, as `is_image_file`.
Names and attributes have the values that they have now, as `suffix` in `name.endswith(suffix)`. A suffix that the
module, or one that called it, replaces by another is one of the names, too: `name.replace(".png", ".json")`. Where it
says nothing of names, the functions that open files say which they are.

A name may have to end in more than a suffix, as the labels of Cityscapes do: `name.endswith("_labelTrainIds.png")`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from cotenant.tracing import script_location
from cotenant.tracing.data.static_analysis.source_tree import FUNCTIONS, called_name, constant, innermost, parsed_source

_CALLERS = 4  # a class that lists folders may be in another module than the one that reads the files
_SUFFIX = re.compile(r"\*?(\.?[A-Za-z]\w*(?:\.gz)?)$")
_MARK = re.compile(r"\*?([\w-]+)(\.[A-Za-z]\w*(?:\.gz)?)$")
_IMAGE_READER = re.compile(r"imread$|\bImage\.open$|read_image$|default_loader$|pil_loader$")
_OTHER_READERS = (
    (re.compile(r"^(?:nib|nibabel)\.load$|^(?:sitk|SimpleITK)\.ReadImage$"), ".nii.gz"),
    (re.compile(r"^h5py\.File$"), ".h5"),
)
_ARRAY_READER = re.compile(r"^(?:np|numpy)\.load$")
"""Functions that read files of a data set, and the suffix of those."""


class _NameTest(NamedTuple):
    """What names are tested with, whether at their ends alone, and whether the script goes on with those that pass."""

    text: ast.expr
    is_end: bool
    is_passed: bool


def wanted_suffix(known: Collection[str], default: str) -> str:
    """The suffix, one of `known`, of the names that the user's line which lists a folder now goes on with.

    Where it says nothing, that of the names that its module keeps anywhere: one function lists the classes, another the
    files in them. `default` where that one is wanted, too, or nothing is said.
    """
    frame = script_location.calling_frame()
    wanted = list(_wanted(frame))
    found = [suffix for text, _ in wanted if (suffix := _known(text, known))]
    marks = [match for text, is_end in wanted if is_end and (match := _MARK.match(text))]
    found = found or [match[2] for match in marks if match[2] in known]
    found = found or [suffix for text in _wanted_by_module(frame) if (suffix := _known(text, known))]
    found = found or [suffix for text in _replaced(frame) if (suffix := _known(text, known))]
    found = found or [suffix for suffix in (suffix_of_readers(frame.f_code.co_filename, default),) if suffix in known]
    return default if not found or default in found else found[0]


def marked(stems: Sequence[str], suffix: str) -> Sequence[str]:
    """Names without `suffix` that the user's line which lists a folder now goes on with, as `3_17_mask` for `3_17`."""
    ends = [text for text, is_end in _wanted(script_location.calling_frame()) if is_end]
    marks = [match[1] for text in dict.fromkeys(ends) if (match := _MARK.match(text)) and match[2] == suffix]
    if not marks or any(_known(text, (suffix,)) for text in ends):
        return stems
    return [f"{stem}{mark}" for stem in stems[: max(1, len(stems) // len(marks))] for mark in marks]


@functools.cache
def suffix_of_readers(path: str, default: str) -> str:
    """The suffix of the files that a module reads: of scans, HDF5 or arrays, where it reads no images."""
    calls = {ast.unparse(node.func) for node in ast.walk(parsed_source(path)) if isinstance(node, ast.Call)}
    if any(_IMAGE_READER.search(call) for call in calls):
        return default
    suffix = next((suffix for reader, suffix in _OTHER_READERS if any(reader.search(call) for call in calls)), None)
    if suffix is None and any(_ARRAY_READER.search(call) for call in calls):
        suffix = ".npz" if _has_named_arrays(parsed_source(path)) else ".npy"
    return suffix or default


def _has_named_arrays(tree: ast.Module) -> bool:
    """Whether a module takes arrays by name out of what `numpy.load` returns."""
    nodes = list(ast.walk(tree))
    made = [(target, node.value) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    made += [(item.optional_vars, item.context_expr) for node in nodes for item in getattr(node, "items", ())]
    loaded = {getattr(target, "id", "") for target, value in made if _is_array(value)}
    parts = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(constant(node.slice), str)]
    return any(_is_array(part.value) or getattr(part.value, "id", None) in loaded for part in parts)


def _is_array(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _ARRAY_READER.search(ast.unparse(node.func)) is not None


def _known(text: str, known: Collection[str]) -> str:
    """A suffix as the script writes it, with a point; empty where it is none of `known`."""
    match = _SUFFIX.match(text)
    suffix = "" if match is None else match[1] if match[1].startswith(".") else f".{match[1]}"
    return suffix if suffix.lower() in known else ""


def _wanted(frame: FrameType) -> Iterator[tuple[str, bool]]:
    """Texts that the code around the line of a frame tests names with, and whether names that it keeps end in them."""
    nodes = _nodes(frame.f_code.co_filename, frame.f_lineno)
    tests = [test for node in nodes for test in _tests(node)]
    calls = {called_name(part) for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call)}
    names = script_location.visible_names(frame) if tests or calls else {}
    for test in tests:
        for text in _texts(test.text, names):
            yield text, test.is_passed and (test.is_end or text.startswith("*"))
    for name in calls:
        function = names.get(name)
        if isinstance(function, FunctionType) and script_location.is_user_file(function.__code__.co_filename):
            for test in _tests_of(function.__code__.co_filename, function.__code__.co_firstlineno):
                yield from ((text, test.is_end) for text in _texts(test.text, function.__globals__))


def _wanted_by_module(frame: FrameType) -> Iterator[str]:
    """Texts that a module compares the ends of names with."""
    for test in _tests_of_module(frame.f_code.co_filename):
        yield from _texts(test, frame.f_globals)


def _replaced(frame: FrameType) -> Iterator[str]:
    """Suffixes that the module of a frame replaces by others, then those that the modules do that called it."""
    for path in dict.fromkeys([frame.f_code.co_filename, *(at[0] for at in script_location.user_callers(_CALLERS))]):
        yield from _replaced_in(path)


@functools.cache
def _replaced_in(path: str) -> tuple[str, ...]:
    calls = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.Call) and len(node.args) == 2)
    pairs = [[constant(part) for part in call.args] for call in calls if called_name(call) == "replace"]
    return tuple(old for old, new in pairs if all(isinstance(text, str) and text[:1] == "." for text in (old, new)))


@functools.cache
def _tests_of_module(path: str) -> tuple[ast.expr, ...]:
    tree = parsed_source(path)
    return tuple(test.text for test in _tests(tree) if test.is_end)


@functools.cache
def _nodes(path: str, line: int) -> tuple[ast.AST, ...]:
    """The statement of a line, and loops of its function over what it assigns."""
    tree = parsed_source(path)
    function = innermost(tree, line, FUNCTIONS) or tree
    statement = innermost(function, line, (ast.stmt,))
    if statement is None:
        return ()
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    listed = {target.id for target in targets if isinstance(target, ast.Name)}
    return statement, *(node for node in ast.walk(function) if _is_over(node, listed))


@functools.cache
def _tests_of(path: str, line: int) -> tuple[_NameTest, ...]:
    """Those of the function that begins in a line."""
    found = innermost(parsed_source(path), line, FUNCTIONS)
    return tuple(_tests(found)) if found is not None else ()


def _is_over(node: Any, names: set[str]) -> bool:
    """Whether a loop or a comprehension goes over one of `names`."""
    heads = [node.iter] if isinstance(node, ast.For) else [part.iter for part in getattr(node, "generators", ())]
    return any(isinstance(part, ast.Name) and part.id in names for head in heads for part in ast.walk(head))


def _tests(tree: ast.AST) -> Iterator[_NameTest]:
    """What names are tested with: `.endswith(X)`, `... == X`, `... in X`, `fnmatch.filter(names, X)`."""
    loops = {
        loop.target.id: loop.iter
        for node in ast.walk(tree)
        for loop in getattr(node, "generators", ())
        if isinstance(loop.target, ast.Name)
    }
    written = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Tuple, ast.Set))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    skips = (node for node in ast.walk(tree) if isinstance(node, ast.If) and isinstance(node.body[0], ast.Continue))
    skipping = {part for node in skips for part in ast.walk(node.test)}
    negations = (node for node in ast.walk(tree) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
    negated = {part for node in negations for part in ast.walk(node)}
    for node in ast.walk(tree):
        test: ast.expr | None = None
        is_end = isinstance(node, ast.Call) and called_name(node) == "endswith"
        if isinstance(node, ast.Call) and is_end and node.args:
            test = node.args[0]
        elif isinstance(node, ast.Call) and called_name(node) in ("filter", "fnmatch") and len(node.args) > 1:
            test = node.args[1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.In)):
            test = node.comparators[0]
        if test is not None:
            test = loops.get(test.id, test) if isinstance(test, ast.Name) else test
            text = written.get(test.id, test) if isinstance(test, ast.Name) else test
            yield _NameTest(text, is_end, (node in skipping) == (node in negated))


def _texts(node: ast.expr, names: Mapping[str, Any]) -> Iterator[str]:
    """The text that an expression is, or those in it."""
    value = _value(node, names)
    for text in (value,) if isinstance(value, str) else value if isinstance(value, (tuple, list, set)) else ():
        if isinstance(text, str):
            yield text


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value that a constant, a name or an attribute has now; None for another expression."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [_value(element, names) for element in node.elts]
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return vars(owner).get(node.attr) if hasattr(owner, "__dict__") else None
    return node.value if isinstance(node, ast.Constant) else None
