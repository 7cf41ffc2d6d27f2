"""The value of `$(( ... ))`, and of the older `$[ ... ]`, in a shell script. Pure, and nothing is run.

Evaluated: integers, names, `+ - * / %`, brackets.
Not evaluated: assignments, comparisons, shifts, `**`, octal numbers, and values above 63 bits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

_MAX_CHARS = 200
_MAX_VALUE = 2**63 - 1
_START = re.compile(r"\$\(\(|\$\[")
_NAME = re.compile(r"\$\{?(\w+)\}?")


def parts(line: str) -> Iterator[tuple[str, bool]]:
    """The line in parts, in their order: text (False), and the expressions of `$(( ... ))` and `$[ ... ]` (True)."""
    while match := _START.search(line):
        opening, closing = ("(", "))") if match[0] == "$((" else ("[", "]")
        rest = line[match.end() :]
        end = _end(rest, opening, closing)
        if end is None:
            break
        yield line[: match.start()], False
        yield rest[:end], True
        line = rest[end + len(closing) :]
    yield line, False


def _end(text: str, opening: str, closing: str) -> int | None:
    """Where the brackets that close an expression are, which `text` begins with."""
    depth = 0
    for place, char in enumerate(text):
        if char == closing[0] and depth == 0:
            return place if text.startswith(closing, place) else None
        depth += {opening: 1, closing[0]: -1}.get(char, 0)
    return None


def evaluate(expression: str, value_of: Callable[[str], str | None]) -> int | None:
    """The value; None if it is not known. `value_of`: a variable's value, or None."""
    if len(expression) > _MAX_CHARS:
        return None
    try:
        tree = ast.parse(_NAME.sub(r" \1 ", expression).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _value(tree.body, value_of)


def _value(node: ast.expr, value_of: Callable[[str], str | None]) -> int | None:
    if isinstance(node, ast.Constant):
        found = node.value if type(node.value) is int else None
    elif isinstance(node, ast.Name):
        text = value_of(node.id) or ""
        found = int(text) if re.fullmatch(r"-?(0|[1-9]\d{0,18})", text, re.ASCII) else None
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, value_of)
        found = None if inner is None else -inner
    elif isinstance(node, ast.BinOp):
        found = _operation(node.op, _value(node.left, value_of), _value(node.right, value_of))
    else:
        found = None
    return found if found is not None and abs(found) <= _MAX_VALUE else None


def _operation(operator: ast.operator, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if not isinstance(operator, (ast.Div, ast.Mod)) or right == 0:
        return None
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # a shell rounds towards zero
    return quotient if isinstance(operator, ast.Div) else left - quotient * right
