"""Texts that a script compares a table's column with: `table[table["split"] == "train"]` keeps the rows of a split.

A made-up table has rows of each of them, and of one more text where there is one alone.
A module of its own: what a syntax tree says about a column, as `listed_suffixes` has what it says about file names.
"""

from __future__ import annotations

import ast
import functools

from cotenant.tracing.data.static_analysis.source_tree import parsed_source

_OTHER = "other"


@functools.cache
def compared_texts(path: str, name: str) -> tuple[str, ...]:
    """The texts that the file `path` compares the column `name` with, in the order of the file."""
    found: list[str] = []
    for node in ast.walk(parsed_source(path)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            sides = (node.left, node.comparators[0])
            if any(_is_column(side, name) for side in sides):
                found += [text for side in sides for text in _texts(side)]
        elif isinstance(node, ast.Call) and _is_membership(node.func, name):
            found += [text for argument in node.args for text in _texts(argument)]
    distinct = tuple(dict.fromkeys(found))
    return (*distinct, _OTHER) if len(distinct) == 1 else distinct


def _is_membership(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "isin" and _is_column(function.value, name)


def _is_column(node: ast.expr, name: str) -> bool:
    """Whether an expression is `table["name"]`, `table.name`, or `table.loc[:, "name"]`."""
    if isinstance(node, ast.Subscript):
        key = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return isinstance(key, ast.Constant) and key.value == name
    return isinstance(node, ast.Attribute) and node.attr == name


def _texts(node: ast.expr) -> list[str]:
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
