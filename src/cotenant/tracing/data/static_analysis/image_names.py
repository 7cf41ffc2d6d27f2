r"""Names of made-up images, as the code that lists them takes them apart: by a regular expression.

Data sets for re-identification have the person and the camera in the name, such as `0002_c1s1_000451_03.jpg`, and their
readers search it for `([-\d]+)_c(\d)`. Where the function that lists a folder has a regular expression, names match
it: the first number in it is the class, all others are 1 or 2. Where the module reads names of files as numbers, as in
`int(name.split(".")[0])` for the frames of a video, they count up. Otherwise a name is `3_17`: class, then number.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.static_analysis.source_tree import FUNCTIONS, innermost, parsed_source

try:
    from re import _constants as op  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as op
    import sre_parse as parser

_USES = frozenset({"compile", "match", "fullmatch", "search", "findall", "finditer"})
_CLASSES = {op.CATEGORY_DIGIT: "0", op.CATEGORY_WORD: "a", op.CATEGORY_SPACE: " "}
_MAX_LENGTH = 100  # of a name
_STEM = re.compile(r"\.split\('\.'\)\[0\]$|\bsplitext\(.*\)\[0\]$|\.stem$")


def names(count: int, classes: int, suffix: str) -> list[str]:
    """`count` different names without `suffix`, of `classes` classes, for the user's line that lists a folder now."""
    for pattern in _patterns(*script_location.calling_line()):
        if _matching(pattern, 0, 1) is None:
            continue
        for end in ("_{}", ""):
            made = [
                f"{_matching(pattern, index % classes, 1 + index % 2)}{end.format(index)}" for index in range(count)
            ]
            made = sorted({name.removesuffix(suffix) for name in made})
            if len(made) == count and all(re.search(pattern, name + suffix) for name in made):
                return made
    if _reads_numbers(script_location.calling_file()):
        return [str(index) for index in range(count)]
    return [f"{index % classes}_{index}" for index in range(count)]


@functools.cache
def _reads_numbers(path: str) -> bool:
    """Whether a module makes whole numbers of names of files without their suffix."""
    calls = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.Call) and len(node.args) == 1)
    return any(ast.unparse(call.func) == "int" and _STEM.search(ast.unparse(call.args[0])) for call in calls)


@functools.cache
def _patterns(path: str, line: int) -> Sequence[str]:
    """Regular expressions in the function that a line belongs to."""
    tree = parsed_source(path)
    return tuple(_patterns_in(innermost(tree, line, FUNCTIONS) or tree))


def _patterns_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _USES:
            is_of_re = isinstance(node.func.value, ast.Name) and node.func.value.id in {"re", "regex"}
            first = node.args[0] if node.args else None
            if is_of_re and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _matching(pattern: str, label: int, other: int) -> str | None:
    """A text that a regular expression may match, with `label` as its first number; None for one that is not known."""
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    numbers = iter([label])
    try:
        made = "".join(_texts(parsed, numbers, other))
    except NotImplementedError:
        return None
    return made if len(made) <= _MAX_LENGTH and "/" not in made else None


def _texts(items: Iterable[Any], numbers: Iterator[int], other: int) -> Iterator[str]:
    """Texts for the parts of a parsed regular expression."""
    for kind, value in items:
        if kind is op.LITERAL:
            yield chr(value)
        elif kind is op.ANY:
            yield "a"
        elif kind is op.AT:
            continue
        elif kind is op.SUBPATTERN:
            yield from _texts(value[-1], numbers, other)
        elif kind is op.BRANCH:
            yield from _texts(value[1][0], numbers, other)
        elif kind is op.IN:
            found = _one_of(value)
            yield str(next(numbers, other))[-1] if found == "0" else found
        elif kind in {op.MAX_REPEAT, op.MIN_REPEAT}:
            least, most, items = value
            yield from _repeated(least, most, items, numbers, other)
        else:
            raise NotImplementedError(kind)


def _repeated(least: int, most: Any, items: Any, numbers: Iterator[int], other: int) -> Iterator[str]:
    parts = list(items)
    if len(parts) == 1 and parts[0][0] is op.IN and _one_of(parts[0][1]) == "0":
        text = str(next(numbers, other)).zfill(min(least, _MAX_LENGTH))
        yield text[-int(most) :]
        return
    for _ in range(min(least, _MAX_LENGTH)):
        yield from _texts(parts, numbers, other)


def _one_of(items: Sequence[Any]) -> str:
    """A character of a set; `0` where it has digits."""
    found = []
    for kind, value in items:
        if kind is op.CATEGORY and value in _CLASSES:
            found.append(_CLASSES[value])
        elif kind is op.LITERAL:
            found.append(chr(value))
        elif kind is op.RANGE:
            found.append("0" if value == (ord("0"), ord("9")) else chr(value[0]))
        else:
            raise NotImplementedError(kind)
    return "0" if "0" in found else found[0]
