"""Conditions that a script names before it uses them. A module of its own: two modules look for conditions."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping


class NamedConditions(ast.NodeTransformer):
    """Puts conditions in the places of the names that a loop or a function gives them: `is_due = step % 16 == 0`."""

    def __init__(self, conditions: Mapping[str, ast.expr]) -> None:
        """`conditions`: by their names."""
        self._conditions = conditions

    @classmethod
    def of(cls, statements: ast.AST) -> NamedConditions:
        """Those to which the statements give a name once."""
        assigned = [node for node in ast.walk(statements) if isinstance(node, ast.Assign)]
        names = Counter(ast.unparse(target) for node in assigned for target in node.targets)
        conditions = {
            node.targets[0].id: node.value
            for node in assigned
            if isinstance(node.targets[0], ast.Name)
            and names[node.targets[0].id] == 1
            and isinstance(node.value, (ast.Compare, ast.BoolOp))
        }
        return cls(conditions)

    def in_place(self, test: ast.expr) -> ast.expr:
        """A copy of `test` with them."""
        found: ast.expr = self.visit(copy.deepcopy(test))
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._conditions.get(node.id, node)
