"""What pipes make of a text, as in `$(echo $GPUS | tr ',' ' ' | wc -w)`. Pure, and nothing is run.

Known are `wc`, `tr` of single characters, `cut -d -f`, `head`, `tail`, `awk '{print NF}'` and `awk '{if ($1 > 0) print
"yes"; else print "no"}'`, `sed s/a/b/` and `grep -o a` of plain texts, `bc`, `sort`, `uniq`, `xargs`, `cat` and `tee`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence

_SUBSTITUTION = re.compile(r"s([/|#,])(\^?[\w /:.-]+?\$?)\1([\w /:.-]*)\1(g?)")
_PRINTED = re.compile(r"\s*\{\s*print\s+(NF|\$\d{1,3}|\$NF)\s*;?\s*\}\s*")
_CHOSEN = re.compile(
    r"\s*\{\s*if\s*\(\s*\$(\w+)\s*([=!]=|[<>]=?)\s*(-?\d{1,9})\s*\)\s*print\s*\"([^\"$\\]*)\"\s*;"
    r"\s*else\s+print\s*\"([^\"$\\]*)\"\s*;?\s*\}\s*"
)
_PLAIN = re.compile(r"[\w ,:;/=@%-]+")
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_BEGIN = re.compile(r"\s*BEGIN\s*\{\s*(?:print|printf\s+\"%[.\d]*[fgd]\"\s*,)\s*([^{};]+?)\s*;?\s*\}\s*")
_SCALE = re.compile(r"\s*(?:scale\s*=\s*(\d{1,2})\s*;)?([^;=]+)")
_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ESCAPES = {"\\n": "\n", "\\t": "\t"}
_MAX_LINES = 10_000
_MAX_CHARS = 200


def filtered(text: str, words: Sequence[str]) -> str | None:
    """What a filter prints that reads `text`; None: not known."""
    name, options = words[0].rpartition("/")[2], list(words[1:])
    lines = text.split("\n")[:_MAX_LINES]
    if name in ("cat", "tee", "sort"):
        return text if not any(option.startswith("-") for option in options) else None
    if name == "uniq" and not options:
        return "\n".join(line for place, line in enumerate(lines) if place == 0 or line != lines[place - 1])
    if name == "xargs":
        return " ".join([*options, *text.split()]) if not options or options[0] == "echo" else None
    if name == "wc":
        counted = {"-l": len(lines) if text else 0, "-w": len(text.split()), "-c": len(text) + 1}
        return str(counted[options[0]]) if len(options) == 1 and options[0] in counted else None
    if name == "grep":
        is_plain = len(options) == 2 and options[0] == "-o" and _PLAIN.fullmatch(options[1])
        return "\n".join(options[1] for line in lines for _ in range(line.count(options[1]))) if is_plain else None
    if name in ("head", "tail"):
        count = _count(options)
        return None if count is None else "\n".join(lines[:count] if name == "head" else lines[-count:])
    if name == "bc":
        match = _SCALE.fullmatch(text.strip())
        return None if match is None else _number(match[2], int(match[1] or (8 if "-l" in options else 0)))
    chosen = {"awk": _awk, "cut": _cut, "sed": _sed, "tr": _tr}.get(name)
    return None if chosen is None else chosen(lines, options)


def computed(program: str) -> str | None:
    """What `awk "BEGIN {print 1 / 4}"` prints; None: not known."""
    match = _BEGIN.fullmatch(program)
    return None if match is None else _number(match[1], 8)


def _number(expression: str, digits: int) -> str | None:
    """The value of a sum or a product, cut off after some digits; None: not known."""
    try:
        tree = ast.parse(expression.strip()[:_MAX_CHARS], mode="eval")
        value = _value(tree.body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    if value is None:
        return None
    scale = 10**digits
    rounded = int(value * scale) / scale
    return str(int(rounded)) if rounded == int(rounded) else f"{rounded:.{digits}f}".rstrip("0")


def _value(node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return None if inner is None else -inner
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = _value(node.left), _value(node.right)
    return None if left is None or right is None else _OPERATIONS[type(node.op)](left, right)


def _count(options: list[str]) -> int | None:
    digits = "".join(options).removeprefix("-n").removeprefix("-") or "10"
    return int(digits) if re.fullmatch(r"[1-9]\d{0,5}", digits) else None


def _tr(lines: list[str], options: list[str]) -> str | None:
    before, after = ([*(_ESCAPES.get(option, option) for option in options if option != "-d"), ""])[:2]
    if len(before) != 1 or len(after) != (0 if "-d" in options else 1):
        return None
    return "\n".join(lines).replace(before, after)


def _cut(lines: list[str], options: list[str]) -> str | None:
    match = re.fullmatch(r"-d ?(.) ?-f ?(\d{1,3})", " ".join(options)) or re.fullmatch(
        r"(-f)(\d{1,3})", "".join(options)
    )
    if match is None:
        return None
    mark, place = "\t" if match[1] == "-f" else match[1], int(match[2])
    fields = [line.split(mark) if mark in line else [line] * place for line in lines]
    return "\n".join(parts[place - 1] if 0 < place <= len(parts) else "" for parts in fields)


def _awk(lines: list[str], options: list[str]) -> str | None:
    mark = None
    if options and options[0].startswith("-F"):
        mark = options[0][2:] or "".join(options[1:2])
        options = options[1 if options[0][2:] else 2 :]
    chosen = _CHOSEN.fullmatch(options[0]) if len(options) == 1 and mark is None else None
    if chosen is not None:
        return _awk_chosen(lines, chosen)
    match = _PRINTED.fullmatch(options[0]) if len(options) == 1 else None
    if match is None or (mark is not None and len(mark) != 1):
        return None
    printed = []
    for line in lines:
        fields = line.split(mark)
        which = len(fields) if match[1] == "$NF" else 0 if match[1] == "NF" else int(match[1][1:])
        found = str(len(fields)) if match[1] == "NF" else line
        printed.append(found if which == 0 else fields[which - 1] if which <= len(fields) else "")
    return "\n".join(printed)


def _awk_chosen(lines: list[str], match: re.Match[str]) -> str | None:
    """One of two texts for each line, by a number in it; a name that is not set, as in `$e`, is the whole line."""
    printed = []
    for line in lines:
        fields, place = line.split(), int(match[1]) if match[1].isdecimal() else 0
        field = line.strip() if place == 0 else fields[place - 1] if place <= len(fields) else ""
        if not re.fullmatch(r"-?\d{1,9}", field):
            return None
        printed.append(match[4] if _COMPARED[match[2]](int(field), int(match[3])) else match[5])
    return "\n".join(printed)


def _sed(lines: list[str], options: list[str]) -> str | None:
    match = _SUBSTITUTION.fullmatch(options[-1]) if options and options[:-1] in ([], ["-e"]) else None
    if match is None:
        return None
    return "\n".join(re.sub(match[2], match[3], line, count=0 if match[4] else 1) for line in lines)
