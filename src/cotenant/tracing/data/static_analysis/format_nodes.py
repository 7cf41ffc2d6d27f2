"""Values in a file as a script uses them, and small questions about its syntax tree, for `expected_format`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cotenant.tracing.data.static_analysis.source_tree import called_name, constant, last_name

FILE, WHOLE = "file", "whole text"
"""Values of an expression: an open file, and all of its text."""
NUMBERS = {"int": "int", "int32": "int", "int64": "int", "long": "int", "float": "float", "float32": "float"}
"""Names of functions and dtypes that read a number from a text."""
TENSORS = {
    "FloatTensor": "float", "DoubleTensor": "float", "HalfTensor": "float", "LongTensor": "int", "IntTensor": "int",
    "ByteTensor": "int",
}  # fmt: skip
"""Classes of tensors, made of a list of numbers."""
SAME_TEXT = frozenset({"strip", "rstrip", "lstrip", "lower", "upper", "decode", "encode", "str", "format", "zfill"})
SAME_SEQUENCE = frozenset(
    {"list", "tuple", "iter", "sorted", "reversed", "set", "tqdm", "array", "asarray", "shuffle", "copy", "deepcopy"}
)
PATHS = frozenset({"join", "Path", "open", "imread", "load", "read", "exists", "isfile", "read_image", "basename"})
SAME_TABLE = frozenset({"iloc", "loc", "ix", "values", "to_numpy", "tolist", "to_list", "reset_index", "dropna"})
_SPLITS = ("train", "val", "valid", "test")
_SPLIT_NAME = re.compile(r"(?:\w*_)?(?:split|phase|mode|subset|partition|set_name|set_type)(?:_\w*)?")
"""Members of a file that has several splits, and variables that say which of them is read."""
HARMLESS = frozenset({"print", "len", "isinstance", "type", "repr", "min", "max", "sum", "any", "all", "info", "debug"})
"""Functions that say nothing of what they are called with."""


@dataclass(eq=False)
class FormatNode:
    """A value in a file: a text, a number, a text of parts, a list, or an object.

    Attributes:
        separator: of its parts; None: white space; "": it is not split.
        fields: parts by index, from the end where it is negative, or members by name.
        elements: what all elements of a list are.
        count: parts, as far as the script says.
        rest: the part from which on there is any number of `elements`; None: there are `count` parts.
        uses: "int", "float", "size" (it is compared by order), "path", "suffix" (the script appends one), "json" (a
            text of JSON), "mapping" (an object of any names), "compared" (with what only the running script knows),
            "escapes" (a whole line, without its end, goes where it is not followed).
        choices: texts that it is compared with.
        is_stripped: whether a line's end was taken off.
        is_known: whether its uses say enough to make one.
    """

    separator: str | None = ""
    fields: dict[int | str, FormatNode] = field(default_factory=dict)
    elements: FormatNode | None = None
    count: int = 0
    rest: int | None = None
    uses: set[str] = field(default_factory=set)
    choices: list[str] = field(default_factory=list)
    is_stripped: bool = False
    is_known: bool = True

    def part(self, index: int | str) -> FormatNode:
        """The part or member at an index."""
        if isinstance(index, int):
            self.count = max(self.count, index + 1 if index >= 0 else -index)
        return self.fields.setdefault(index, FormatNode())

    def element(self) -> FormatNode:
        """What all elements are."""
        self.elements = self.elements or FormatNode()
        return self.elements

    def settle(self) -> None:
        """Give every part of a text what all of its parts are."""
        for node in (*self.fields.values(), *([self.elements] if self.elements is not None else [])):
            node.settle()
        if self.rest is not None:
            is_of_numbers = self.elements is not None and "int" in self.elements.uses
            from_the_end = any(isinstance(at, int) and at < 0 for at in self.fields)
            self.is_known = self.is_known and is_of_numbers and not from_the_end
            for node in self.fields.values():  # one that is stored only is an identity, as those behind it are
                node.uses |= set() if node.uses or node.choices else {"int"}
        elif self.separator != "" and self.count and self.elements is not None:
            ends = {at if at >= 0 else at + self.count for at in self.fields if isinstance(at, int)}
            for at in set(range(self.count)) - ends:
                self.fields[at] = FormatNode()
            for node in self.fields.values():
                node.uses |= self.elements.uses
            self.elements = None

    def is_words(self) -> bool:
        """Whether it is a text of any number of words, with which the script does not count or calculate."""
        is_split = self.separator in (None, " ") and not self.fields and not self.count
        return is_split and (self.elements is None or not self.elements.uses)

    def all_known(self) -> bool:
        """Whether everything in it is known."""
        inner = [*self.fields.values(), *([self.elements] if self.elements is not None else [])]
        is_counted = self.separator == "" or self.is_words() or self.count > 0 or bool(self.fields or self.rest)
        is_comparable = "compared" not in self.uses or bool(self.choices)
        return self.is_known and is_counted and is_comparable and all(node.all_known() for node in inner)


def member_of_split(node: FormatNode, name: str) -> FormatNode | None:
    """What every split is that a variable of this name says: `json.load(file)[split]`; None if it says none."""
    if not _SPLIT_NAME.fullmatch(name) or node.separator != "":
        return None
    member = node.part(_SPLITS[0])
    node.fields.update(dict.fromkeys(_SPLITS, member))
    return member


@dataclass
class Format:
    """Of a file. `kind`: "lines", "csv" (with `names` of columns, if the script reads them by name) or "json".

    `node`: a line, or the whole JSON value; `header`: lines that the script skips.
    """

    kind: str
    node: FormatNode
    header: int = 0


@dataclass(frozen=True, slots=True)
class Seq:
    """A sequence of `element`; `is_rows`: the lines of the file."""

    element: Any
    is_rows: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """The list that `split` makes."""

    node: FormatNode

    def sliced(self, first: Any, *, is_open: bool) -> Parts | Seq:
        """The parts from `first` on, `is_open`: to the last one, as of a user and all items: `parts[1:]`."""
        if not is_open or not isinstance(first, int) or first < 1 or self.node.rest not in (None, first):
            self.node.is_known = False  # how many there are is not said
            return self
        self.node.rest, self.node.count = first, max(self.node.count, first)
        return Seq(self.node.element())


def let_escape(node: FormatNode, form: Format | None) -> None:
    """A node goes where it is not followed: it stays known where it is a whole line, of which nothing is left to take.

    A line with its end will be taken apart there.
    """
    node.is_known = form is not None and form.kind == "lines" and node is form.node and node.is_stripped
    node.uses |= {"escapes"} if node.is_known else set()


def nodes_in(value: Any) -> list[FormatNode]:
    """The node that a value is, or those in a tuple."""
    if isinstance(value, FormatNode):
        return [value]
    return [node for item in value for node in nodes_in(item)] if isinstance(value, list) else []


def name_of(expression: ast.expr) -> str | None:
    """`x`, or `self.x`."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        return f"{expression.value.id}.{expression.attr}" if expression.value.id == "self" else None
    return None


def defaults(scope: Any) -> Iterator[tuple[str, Any]]:
    """Parameters of a function with a constant default; of a module none."""
    arguments = getattr(scope, "args", None)
    if arguments is not None and arguments.defaults:
        for argument, default in zip(arguments.args[-len(arguments.defaults) :], arguments.defaults, strict=True):
            yield argument.arg, constant(default)


def counted_parts(expression: ast.Compare) -> tuple[ast.expr, int] | None:
    """(what, number) of `len(what) == number`."""
    left, right = expression.left, constant(expression.comparators[0])
    is_length = isinstance(left, ast.Call) and called_name(left) == "len" and left.args
    if isinstance(left, ast.Call) and is_length and isinstance(expression.ops[0], ast.Eq) and isinstance(right, int):
        return left.args[0], right
    return None


def is_none(expression: ast.expr) -> bool:
    """Whether an expression is the constant None."""
    return isinstance(expression, ast.Constant) and expression.value is None


def dtype_of(call: ast.Call) -> str:
    """The last name of the `dtype` that a call gives; empty without one."""
    given = next((word.value for word in call.keywords if word.arg == "dtype"), None)
    return last_name(given)
