"""What expressions make of a file's text, for `expected_format`: calls, subscripts, comprehensions, comparisons."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing.data.static_analysis.format_nodes import (
    FILE,
    HARMLESS,
    NUMBERS,
    PATHS,
    SAME_SEQUENCE,
    SAME_TABLE,
    SAME_TEXT,
    TENSORS,
    WHOLE,
    Format,
    FormatNode,
    Parts,
    Seq,
    counted_parts,
    defaults,
    dtype_of,
    is_none,
    let_escape,
    member_of_split,
    name_of,
    nodes_in,
)
from cotenant.tracing.data.static_analysis.source_tree import called_name, constant, last_name, spans


class ExpressionReader:
    """Follows what a file's text becomes. Values: `FILE`, `WHOLE`, a `Seq`, `Parts`, a `FormatNode`, or None."""

    def __init__(self, line: int, scope: Any) -> None:
        self.format: Format | None = None
        self._line, self._own = line, scope
        self._names: dict[str, Any] = {}
        self._globals: dict[str, Any] = {}
        self._scope: Any = scope
        self._returned: Any = None
        self._constants = dict(defaults(scope))

    def _bind_optional(self, target: ast.expr | None, value: Any) -> None:
        if target is not None:
            self._bind(target, value)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif (name := name_of(target)) is not None:
            self._names[name] = value
        else:
            self._value(target)

    def _unpack(self, targets: Sequence[ast.expr], value: Any) -> None:
        starred = next((at for at, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        node = value.node if isinstance(value, Parts) else value
        for index, target in enumerate(targets):
            item = value[index] if isinstance(value, list) and index < len(value) else None
            if isinstance(node, FormatNode) and index != starred:
                after = starred is not None and index > starred
                item = node.part(index - len(targets) if after else index)
            self._bind(target.value if isinstance(target, ast.Starred) else target, item)
        if isinstance(node, FormatNode):
            node.count = max(node.count, len(targets) - (starred is not None))

    def _bind_loop(self, target: ast.expr, iterated: ast.expr) -> None:
        self._bind(target, self._element(self._value(iterated)))

    def _element(self, value: Any) -> Any:
        """What a loop over a value has."""
        if value == FILE:
            return self._lines()
        if isinstance(value, Seq):
            return value.element
        if isinstance(value, Parts):
            return value.node.element()
        return value.element() if isinstance(value, FormatNode) else None

    def _escape(self, value: Any) -> None:
        """A whole sequence goes where its elements are not followed; known are those that were split or opened."""
        element = value.element if isinstance(value, Seq) else value
        node = element.node if isinstance(element, Parts) else element
        if isinstance(node, FormatNode) and not (node.uses or node.fields or node.elements or node.separator != ""):
            let_escape(node, self.format)

    def _lines(self) -> FormatNode:
        self.format = self.format or Format("lines", FormatNode())
        return self.format.node

    def _value(self, expression: ast.expr | None) -> Any:
        method = getattr(self, f"_of_{type(expression).__name__.lower()}", None)
        if method is not None:
            return method(expression)
        if expression is not None:
            self._inner(expression)
        return None

    def _inner(self, node: ast.AST) -> None:
        """Follow the expressions in a node, whose own value is not followed."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child)

    def _of_name(self, expression: ast.Name) -> Any:
        return self._names.get(expression.id, self._globals.get(expression.id))

    def _of_attribute(self, expression: ast.Attribute) -> Any:
        name = name_of(expression)
        if name is not None and name in self._names:
            return self._names[name]
        value = self._value(expression.value)
        return value if isinstance(value, Seq) and expression.attr in SAME_TABLE else None

    def _of_tuple(self, expression: ast.Tuple | ast.List) -> Any:
        return [self._value(element) for element in expression.elts] or None

    _of_list = _of_tuple

    def _of_starred(self, expression: ast.Starred) -> None:
        self._value(expression.value)

    def _of_subscript(self, expression: ast.Subscript) -> Any:
        value, index = self._value(expression.value), expression.slice
        if isinstance(index, ast.Slice):
            return self._sliced(value, index)
        self._value(index)
        key = constant(index)
        if isinstance(value, Seq):
            return self._of_rows(value, key, index)
        node = value.node if isinstance(value, Parts) else value
        if not isinstance(node, FormatNode):
            return None
        if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
            return node.part(key)
        if isinstance(value, Parts):
            node.is_known = False
        return member_of_split(node, last_name(index)) or node.element()

    def _of_rows(self, rows: Seq, key: Any, index: ast.expr) -> Any:
        """A row, or a column by name or by the second index, as in `table[:, 1]` and `table.iloc[7, 0]`."""
        node = rows.element.node if isinstance(rows.element, Parts) else None
        second = index.elts[1] if isinstance(index, ast.Tuple) and len(index.elts) == 2 else None
        if node is None or (second is None and not isinstance(key, str)):
            return rows.element
        if isinstance(second, ast.Slice):
            end = constant(second.upper)
            node.count = max(node.count, end) if isinstance(end, int) else node.count
            node.is_known = node.is_known and isinstance(end, int) and end > 0
            return rows
        column = key if second is None else constant(second)
        node.count = max(node.count, 2 if isinstance(column, int) else 0)  # a table of one column has no second index
        if not isinstance(column, (int, str)):
            return None
        is_column = not isinstance(index, ast.Tuple) or isinstance(index.elts[0], ast.Slice)
        return Seq(node.part(column)) if is_column else node.part(column)

    def _sliced(self, value: Any, index: ast.Slice) -> Any:
        first = constant(index.lower)
        if isinstance(value, Seq):
            if value.is_rows and isinstance(first, int) and first > 0 and self.format is not None:
                self.format.header = max(self.format.header, first)
            return value
        if isinstance(value, Parts):
            return value.sliced(first, is_open=index.upper is None and index.step is None)
        if isinstance(value, FormatNode) and value.separator == "" and (index.lower or index.upper):
            value.uses.add("text")
        return value

    def _of_listcomp(self, expression: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Any:
        iterated = [self._value(part.iter) for part in expression.generators[:1]]
        self._generators(expression.generators)
        element = self._value(expression.elt)
        is_rows = iterated[0] == FILE or (isinstance(iterated[0], Seq) and iterated[0].is_rows)
        if isinstance(iterated[0], Parts) and isinstance(element, FormatNode):
            return iterated[0]
        return Seq(element, is_rows) if element is not None else None

    _of_setcomp = _of_generatorexp = _of_listcomp

    def _of_dictcomp(self, expression: ast.DictComp) -> None:
        self._generators(expression.generators)
        self._value(expression.key)
        self._value(expression.value)

    def _generators(self, generators: Sequence[ast.comprehension]) -> None:
        for part in generators:
            self._bind_loop(part.target, part.iter)
            for condition in part.ifs:
                self._value(condition)

    def _of_compare(self, expression: ast.Compare) -> None:
        compared = (expression.left, *expression.comparators)
        values = [self._value(part) for part in compared]
        constants = [constant(part) for part in compared]
        texts = [text for text in constants if isinstance(text, str) and text]
        is_equality = all(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in expression.ops)
        is_order = all(isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for operator in expression.ops)
        for node in nodes_in(values):
            node.choices += [text for text in texts if is_equality and text not in node.choices]
            node.uses |= {"size"} if is_order else set()
            node.uses |= {"compared"} if is_equality and all(value is None for value in constants) else set()
        counted = counted_parts(expression)
        rows = self._value(counted[0]) if counted else None
        if counted and isinstance(rows, Parts):
            rows.node.count = max(rows.node.count, counted[1])

    def _of_binop(self, expression: ast.BinOp) -> Any:
        left, right = self._value(expression.left), self._value(expression.right)
        texts = [text for text in (constant(expression.left), constant(expression.right)) if isinstance(text, str)]
        for node in nodes_in([left, right]):
            is_last = node is right and isinstance(expression.op, (ast.Add, ast.Div))
            if isinstance(expression.op, ast.Div) or any("/" in text for text in texts) or (is_last and not texts):
                node.uses.add("path")
            if texts and Path("x" + texts[-1].replace("%s", "x").replace("%d", "0")).suffix:
                node.uses |= {"path", "suffix"}
        is_other = isinstance(expression.op, ast.Div) or any(map(str.isspace, texts))  # a line that the script writes
        return left if isinstance(left, FormatNode) and not is_other else None

    def _of_joinedstr(self, expression: ast.JoinedStr) -> None:
        texts = [str(part.value) if isinstance(part, ast.Constant) else "" for part in expression.values]
        for part, following in zip(expression.values, [*texts[1:], ""], strict=True):
            value = self._value(part.value) if isinstance(part, ast.FormattedValue) else None
            if isinstance(value, FormatNode):
                value.uses |= {"path"} if any("/" in text for text in texts) else set()
                value.uses |= {"path", "suffix"} if Path(f"x{following}").suffix else set()

    def _of_call(self, call: ast.Call) -> Any:
        name = called_name(call)
        if name == "open" and spans(call, self._line):
            return FILE
        if name in ("loadtxt", "genfromtxt", "read_csv") and spans(call, self._line):
            return self._of_table(name, call)
        receiver = self._value(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if receiver is not None:
            return self._of_method(receiver, name, call)
        if name in ("map", "filter") and len(call.args) == 2:
            return self._mapped(call.args[0], self._value(call.args[1]))
        values = [self._value(part) for part in (*call.args, *(keyword.value for keyword in call.keywords))]
        for value, keyword in zip(values[len(call.args) :], call.keywords, strict=True):
            if keyword.arg is None and isinstance(value, FormatNode):  # its keys are not in this file
                value.is_known = False
        if name == "append" and isinstance(call.func, ast.Attribute):
            target = name_of(call.func.value)
            if target is not None and values and values[0] is not None:
                self._names[target] = Seq(values[0])
            return None
        return self._of_function(name, values, call)

    def _of_function(self, name: str, values: list[Any], call: ast.Call) -> Any:
        first = values[0] if values else None
        if first == FILE and name in ("reader", "DictReader", "load"):
            return self._of_library(name, call)
        if name == "next":
            return self._skip_line(first)
        if name in ("enumerate", "zip"):
            return self._zipped(name, values, call)
        if name in SAME_SEQUENCE or name in SAME_TEXT or name in NUMBERS:
            self._convert(first, name if name in NUMBERS else dtype_of(call))
            return first
        if name in TENSORS and isinstance(first, FormatNode) and self.format is not None and self.format.kind == "json":
            first.element().uses.add(TENSORS[name])
            return None
        if name == "loads" and isinstance(first, FormatNode):
            first.uses.add("json")
            return first
        if name == getattr(self._own, "name", "") and self._scope is not self._own:
            return self._returned
        return self._pass_on(name, values)

    def _skip_line(self, value: Any) -> None:
        if value == FILE:
            self._lines()
        if self.format is not None and (value == FILE or getattr(value, "is_rows", False)):
            self.format.header = max(1, self.format.header)

    def _zipped(self, name: str, values: list[Any], call: ast.Call) -> Any:
        if name == "enumerate":
            return Seq([None, self._element(values[0] if values else None)])
        if call.args and isinstance(call.args[0], ast.Starred):
            rows = self._value(call.args[0].value)
            return rows.element if isinstance(rows, Seq) else None  # columns: of each part of a row
        return Seq([self._element(value) for value in values])

    def _pass_on(self, name: str, values: list[Any]) -> None:
        """Values are given to a function that is not followed."""
        for node in nodes_in(values):
            if name in PATHS:
                node.uses.add("path")
            node.is_known = node.is_known and name not in ("eval", "literal_eval")
        for value in values:
            if isinstance(value, (Seq, Parts)) and name not in HARMLESS:
                self._escape(value)

    def _of_library(self, name: str, call: ast.Call) -> Any:
        if name == "load":
            module = call.func.value if isinstance(call.func, ast.Attribute) else None
            self.format = self.format or Format(
                "json" if getattr(module, "id", "") == "json" else "other", FormatNode()
            )
            self.format.node.is_known = self.format.kind == "json"
            return self.format.node
        given = next((word.value for word in call.keywords if word.arg == "delimiter"), None)
        separator = self._text_of(given) if given is not None else ","
        self.format = self.format or Format("csv", FormatNode())
        node = self.format.node
        node.separator, node.is_known = (separator, node.is_known) if separator else (",", False)
        if name == "DictReader":
            self.format.header = 1
            return Seq(node, is_rows=True)
        return Seq(Parts(node), is_rows=True)

    def _of_table(self, name: str, call: ast.Call) -> Any:
        """Rows of a table that `numpy` or `pandas` reads."""
        is_numpy = name != "read_csv"
        self.format = self.format or Format("lines" if is_numpy else "table", FormatNode())
        node = self.format.node
        given = next((word.value for word in call.keywords if word.arg == "delimiter"), None)
        node.separator = self._text_of(given) if given is not None else None
        kind = NUMBERS.get(dtype_of(call) or "float") if is_numpy else None
        node.is_known = node.is_known and not (is_numpy and kind is None)
        if kind is not None:
            node.element().uses.add(kind)
        return Seq(Parts(node), is_rows=True)

    def _of_method(self, value: Any, name: str, call: ast.Call) -> Any:
        values = [self._value(part) for part in call.args]
        if value == FILE and name in ("read", "readlines", "readline"):
            return WHOLE if name == "read" else self._rows() if name == "readlines" else self._lines()
        if value == WHOLE:
            first = call.args[0] if call.args else None
            is_lines = name == "splitlines" or (name == "split" and self._text_of(first) == "\n")
            return self._rows(is_stripped=True) if is_lines else WHOLE if name in SAME_TEXT else None
        if isinstance(value, FormatNode):
            return self._of_text(value, name, call)
        if name in ("append", "extend") and isinstance(value, Seq):
            return None
        if name == "astype":
            self._convert(value, last_name(call.args[0]) if call.args else "")
        if name == "join" and not isinstance(value, FormatNode):
            for node in nodes_in(values):
                node.uses.add("path")
        if name == "iterrows" and isinstance(value, Seq):
            return Seq([None, value.element])
        return value if isinstance(value, (Seq, Parts)) else None

    def _of_text(self, node: FormatNode, name: str, call: ast.Call) -> Any:
        if name in ("split", "rsplit"):
            separator = self._text_of(call.args[0]) if call.args else None
            if call.args and separator is None:
                node.is_known = node.is_known and is_none(call.args[0])
            if node.separator not in ("", separator):
                node.is_known = False
            node.separator = separator
            return Parts(node)
        if name in ("items", "values", "keys"):
            element = node.element()
            node.uses.add("mapping")
            return Seq([None, element]) if name == "items" else Seq(element) if name == "values" else None
        if name == "get" and call.args and isinstance(key := constant(call.args[0]), str):
            return node.part(key)
        node.is_stripped = node.is_stripped or name in ("strip", "rstrip")
        return node if name in SAME_TEXT or name in ("replace", "removesuffix", "removeprefix") else None

    def _rows(self, *, is_stripped: bool = False) -> Seq:
        self._lines().is_stripped |= is_stripped
        return Seq(self._lines(), is_rows=True)

    def _mapped(self, function: ast.expr, value: Any) -> Any:
        name = last_name(function)
        if name in NUMBERS:
            self._convert(value, name)
        elif isinstance(function, ast.Lambda) and function.args.args:
            self._names[function.args.args[0].arg] = self._element(value)
            element = self._value(function.body)
            return value if isinstance(value, Parts) else Seq(element)
        return value

    def _convert(self, value: Any, to: str) -> None:
        """Note that a value, or each element of it, is read as a number."""
        kind = NUMBERS.get(to)
        if kind is None:
            return
        for node in (value.node,) if isinstance(value, Parts) else ():
            for part in (*node.fields.values(), node.element()):
                part.uses.add(kind)
        for node in nodes_in(value):
            node.uses.add(kind)

    def _text_of(self, expression: ast.expr | None) -> str | None:
        """A text that is a constant, or a variable or parameter whose value is one."""
        found = constant(expression)
        if found is None and isinstance(expression, ast.Name):
            found = self._constants.get(expression.id)
        return found if isinstance(found, str) else None
