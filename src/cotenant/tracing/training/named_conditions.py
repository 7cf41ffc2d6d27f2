"""Conditions that a script names before it uses them. A module of its own: two modules look for conditions."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping

from cotenant.tracing.training.source_loops import LOOPS


class NamedConditions(ast.NodeTransformer):
    """Puts conditions in the places of the names that a loop or a function gives them: `is_due = step % 16 == 0`.

    So it does with arithmetic that a loop repeats: `epoch, batch = divmod(step, 32)`, `progress = step / steps`.
    """

    def __init__(self, conditions: Mapping[str, ast.expr]) -> None:
        """`conditions`: by their names."""
        self._conditions = conditions

    @classmethod
    def of(cls, statements: ast.AST) -> NamedConditions:
        """Those to which the statements give a name once."""
        nodes = list(ast.walk(statements))
        repeated = {inner for node in nodes if isinstance(node, LOOPS) for inner in ast.walk(node)}
        values = [pair for node in nodes if isinstance(node, ast.Assign) for pair in _named(node, node in repeated)]
        names = Counter(name for name, _value in values)
        return cls({name: value for name, value in values if value is not None and names[name] == 1})

    def in_place(self, test: ast.expr) -> ast.expr:
        """A copy of `test` with them."""
        found: ast.expr = self.visit(copy.deepcopy(test))
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._conditions.get(node.id, node)


def _named(node: ast.Assign, is_repeated: bool) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that an assignment gives, and the conditions or the arithmetic that they stand for, if any."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple):
        parts: list[ast.expr | None] = [None] * len(target.elts)
        is_divmod = isinstance(value, ast.Call) and ast.unparse(value.func) == "divmod" and len(value.args) == 2
        if is_divmod and is_repeated and isinstance(value, ast.Call):
            left, right = value.args
            parts = [ast.BinOp(left=left, op=op, right=right) for op in (ast.FloorDiv(), ast.Mod())]
        yield from zip(map(ast.unparse, target.elts), parts, strict=False)
        return
    kinds = (ast.Compare, ast.BoolOp, *((ast.BinOp,) if is_repeated else ()))
    for one in node.targets:
        is_known = isinstance(one, ast.Name) and len(node.targets) == 1 and isinstance(value, kinds)
        yield ast.unparse(one), value if is_known and not _is_other(value, target) else None


def _is_other(value: ast.expr, name: ast.expr) -> bool:
    """Whether it is no arithmetic of what stays until the condition: `step = step + 1`, `loss = model(x) + 1`."""
    if not isinstance(value, ast.BinOp):
        return False
    return any(isinstance(part, ast.Call) or ast.unparse(part) == ast.unparse(name) for part in ast.walk(value))
