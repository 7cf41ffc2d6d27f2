"""Types of the values of options: each reads a text, or says what is wrong with it and names the option."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from cotenant.core.errors import EMPTY_HINT, UnknownName, UsageError
from cotenant.core.units import shortened

if TYPE_CHECKING:
    Type: TypeAlias = click.ParamType[Any]
else:
    Type = click.ParamType  # generic only in recent releases of click


class _Path(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; `Path("")` would be the folder that the command is called in."""
        if value == "":
            raise UsageError(f"`{spelling_of(param) if param else 'path'}` names no file or folder", hint=EMPTY_HINT)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
"""Any path, there or not; a command checks itself what it needs of it."""


class Parsed(Type):
    """What a function of ours reads; its `UsageError` is raised again with the name of the option."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """The value of the text."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UnknownName:
            raise  # names the kind of thing itself, and what is known
        except UsageError as error:
            where = "" if param is None else f"`{spelling_of(param)}`: "
            raise UsageError(where + error.message, hint=error.hint) from error


class Cleared(Enum):
    """The word `none`, which takes a wish back."""

    NONE = "none"


NONE: Final = Cleared.NONE


class OrNone(Type):
    """Values of another type, or the word `none`."""

    def __init__(self, inner: Type) -> None:
        self.name = inner.name
        self.inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`NONE`, or what the other type makes of the text."""
        return NONE if value in (NONE, NONE.value) else self.inner.convert(value, param, ctx)


def _convert(
    kind: Type,
    read: Callable[[Any], float],
    noun: str,
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    """A number in the range of `kind`; never `nan` or `inf`, which pass every limit because they compare as false."""
    text = shortened(str(value))
    try:
        found = read(value)
    except ValueError:
        kind.fail(f"must be {noun}, got `{text}`", param, ctx)
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if not math.isfinite(found) or (low is not None and found < low) or (high is not None and found > high):
        wanted = [f"{sign} {limit:g}" for sign, limit in ((">=", low), ("<=", high)) if limit is not None]
        kind.fail(f"must be {' and '.join(wanted) or 'finite'}, got `{text}`", param, ctx)
    return found


class _Number(click.types.FloatParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _convert(self, float, "a number", value, param, ctx)


class _NumberRange(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _convert(self, float, "a number", value, param, ctx)


class _Integer(click.types.IntParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _convert(self, int, "a whole number", value, param, ctx)


class _IntegerRange(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _convert(self, int, "a whole number", value, param, ctx)


def number(*, minimum: float | None = None, maximum: float | None = None) -> Type:
    """Finite numbers, in a range if one is given."""
    return _Number() if minimum is None and maximum is None else _NumberRange(min=minimum, max=maximum)


def integer(*, minimum: int | None = None, maximum: int | None = None) -> Type:
    """Whole numbers, in a range if one is given."""
    return _Integer() if minimum is None and maximum is None else _IntegerRange(min=minimum, max=maximum)


def spelling_of(parameter: click.Parameter) -> str:
    """The long spelling of an option; the metavar of an argument."""
    longest = max(parameter.opts, key=len)
    if isinstance(parameter, click.Option):
        return longest
    return (parameter.metavar or longest.upper()).strip("[]")  # brackets say that it may be left out
