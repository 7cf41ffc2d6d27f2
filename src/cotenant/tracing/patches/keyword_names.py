"""Replacements that take their arguments by the names that the replaced function has for them, too.

A wrapper names its parameters for its reader: `glob(pattern)` stands for `glob.glob(pathname)`, and a script may call
`glob.glob(pathname="*.png")`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any


def with_names_of(present: Any, new: Any) -> Any:
    """`new`, or a function that calls it and knows the names of `present`; a static method stays one."""
    if isinstance(new, staticmethod):
        inner = with_names_of(present, new.__func__)
        return new if inner is new.__func__ else staticmethod(inner)
    if not isinstance(new, FunctionType):
        return new
    renamed = _renamed(_names(present), new.__code__)
    return _renaming(new, renamed) if renamed else new


def _renaming(new: Callable[..., Any], renamed: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys().isdisjoint(renamed):
            kwargs = {renamed.get(name, name): value for name, value in kwargs.items()}
        return new(*args, **kwargs)

    return call


def _renamed(theirs: Iterable[str], ours: CodeType) -> dict[str, str]:
    """Our names of parameters by theirs, where they differ; none of what we take by position alone."""
    names = ours.co_varnames[: ours.co_argcount]
    pairs = list(zip(theirs, names, strict=False))[ours.co_posonlyargcount :]
    return {their: our for their, our in pairs if their not in (*names, "self", "")}


def _names(present: Any) -> Sequence[str]:
    """Names of the parameters in order, empty for those by position alone; none of a function in C that says none."""
    if isinstance(present, type):
        return _names(vars(present).get("__init__"))[1:]
    function: Any = inspect.unwrap(present) if callable(present) else None
    if isinstance(function, FunctionType):
        code = function.__code__
        return [""] * code.co_posonlyargcount + [*code.co_varnames[code.co_posonlyargcount : code.co_argcount]]
    if getattr(function, "__text_signature__", None) is None:  # it takes `inspect` long to find that out
        return ()
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return ()
    kinds = {inspect.Parameter.POSITIONAL_ONLY: False, inspect.Parameter.POSITIONAL_OR_KEYWORD: True}
    return [parameter.name * kinds[parameter.kind] for parameter in parameters if parameter.kind in kinds]
