"""Values of names, attributes and settings in a script's source, without running its code.

A module of its own: conditions, loops and calls of models are judged by them alike.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

_MAX_NUMBER = 10**9


def number_of(node: ast.expr, names: Mapping[str, Any]) -> int | float | None:
    """The value of a constant, name or attribute if it is a number below 1e9; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = number_of(node.operand, names)
        return None if operand is None else -operand
    value = node.value if isinstance(node, ast.Constant) else value_of(node, names)
    return value if isinstance(value, (int, float)) and abs(value) < _MAX_NUMBER else None


def number_in(text: str, names: Mapping[str, Any]) -> int | float | None:
    """The same for the source text of a name or an attribute."""
    return number_of(ast.parse(text, mode="eval").body, names)


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a name, an attribute or an entry by a constant, without running code of the script; None: not known.

    So are the settings of a dict, of its subclasses whose entries are attributes, of OmegaConf and ml_collections.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        own = getattr(owner, "__dict__", None)
        own = own if isinstance(own, dict) else {}
        modules = own.get("_modules")  # of a lazy package of Transformers it is a set of names
        found = own.get(node.attr, modules.get(node.attr) if isinstance(modules, dict) else None)
        return _entry(owner, own, node.attr) if found is None else found
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = value_of(node.value, names)
        own = getattr(owner, "__dict__", None)
        return _entry(owner, own if isinstance(own, dict) else {}, node.slice.value)
    return None


def _entry(owner: Any, own: Mapping[str, Any], key: object) -> Any:
    """Of a dict, or of a configuration, whose `own` attributes have the dict with its entries.

    Source: omegaconf/basecontainer.py, `_content`, and nodes.py, `_val`; ml_collections/config_dict/config_dict.py.
    """
    entries = owner if isinstance(owner, dict) else own.get("_content", own.get("_fields"))
    found = dict.get(entries, key) if isinstance(entries, dict) else None
    is_node = type(found).__module__.startswith("omegaconf.")
    return vars(found).get("_val", found) if is_node else found
