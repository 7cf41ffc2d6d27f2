"""Ranges that configurations are drawn from: one TOML file per family, shipped or the user's own.

family = "mlp"
shape = ["pyramid", "uniform"]             # each as often as the others
inputs = { from = 4, to = 4096 }           # whole numbers, each equally likely
batch = { from = 4, to = 1024, by = "log" }  # each doubling equally likely
classes = { from = 2, of = "inputs", share = 0.25 }  # up to a quarter of what was drawn for `inputs`
feedforward = { from_share = 2, of = "width", share = 4 }  # 2 to 4 times `width`
dropout = { from = 100, to = 500, none = 0.5 }  # 0 in half of the cases
"""

from __future__ import annotations

import importlib.resources
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard

from cotenant.core.errors import UnknownName, UsageError
from cotenant.learn.data_collection.configs import fields_of
from cotenant.learn.datasets.dataset_row import FAMILIES, Extra, Family

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = {"from", "from_share", "to", "by", "of", "share", "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few values."""

    values: tuple[Extra, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A whole number from `low` to `high`, both included.

    Attributes:
        of: the setting whose value times `share` replaces `high`, and times `low_share`, unless 0, `low`; empty: none.
        none: share of draws that are 0.
    """

    low: int
    high: int
    by: Literal["even", "log"] = "even"
    of: str = ""
    share: float = 1.0
    low_share: float = 0.0
    none: float = 0.0

    def bounds(self, settings: Mapping[str, Extra]) -> tuple[int, int]:
        """The smallest and the largest value, where the other settings have these values."""
        if not self.of:
            return self.low, self.high
        bound = int(settings[self.of])
        low = max(self.low, math.ceil(bound * self.low_share))
        return low, max(int(bound * self.share), low)


Range: TypeAlias = Choice | Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The ranges of a family, in the order of its settings."""

    name: str
    family: Family
    ranges: Mapping[str, Range]


def shipped() -> tuple[str, ...]:
    """Names of the files in the package."""
    folder = importlib.resources.files("cotenant.learn").joinpath("data")
    return tuple(sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml")))


def load_ranges(name: str) -> Ranges:
    """The ranges of a shipped name (`mlp`, `cnn-small`), or of a file whose path ends in `.toml`.

    Raises:
        UsageError: there is none, or it is invalid; names the file and the key.
    """
    if not name.endswith(".toml"):
        if name not in shipped():
            raise UnknownName("file of ranges", name, shipped())
        text = importlib.resources.files("cotenant.learn").joinpath("data").joinpath(f"{name}.toml").read_text("utf-8")
        return parse_ranges(text, name)
    try:
        return parse_ranges(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot read `{name}`: {reason.lower()}") from error


def parse_ranges(text: str, name: str) -> Ranges:
    """The ranges in a TOML text.

    Raises:
        UsageError: the text is invalid; names the file and the key.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: invalid TOML: {error}") from error
    family = data.pop("family", None)
    if family not in FAMILIES:
        raise UsageError(f"{name}: `family` is {family!r}, wanted one of {', '.join(FAMILIES)}")
    fields = fields_of(family)
    for key in data.keys() ^ fields.keys():
        raise UsageError(f"{name}: `{key}` is {'not known' if key in data else 'missing'} for `{family}`")
    ranges = {key: _range(f"{name}: `{key}`", data[key], words) for key, words in fields.items()}
    for key, range_ in ranges.items():
        if isinstance(range_, Span) and range_.of and (range_.of not in ranges or _is_bound(ranges[range_.of])):
            raise UsageError(f"{name}: `{key}` is bound to `{range_.of}`, wanted a setting with a range of its own")
    return Ranges(name=name, family=family, ranges=ranges)


def _is_bound(range_: Range) -> bool:
    return isinstance(range_, Span) and range_.of != ""


def _range(where: str, value: object, words: tuple[str, ...]) -> Range:
    if isinstance(value, list):
        return _choice(where, value, words)
    if words or not isinstance(value, dict):
        wanted = f"a list of {', '.join(words)}" if words else "a list, or a table with `from` and `to`"
        raise UsageError(f"{where} is {value!r}, wanted {wanted}")
    for key in value.keys() - _KEYS:
        raise UsageError(f"{where}: `{key}` is not known", hint=f"known here: {', '.join(sorted(_KEYS))}")
    if ("to" in value) == ("of" in value):
        raise UsageError(f"{where}: wanted either `to` or `of`, which names another setting")
    if "from_share" in value and ("from" in value or "of" not in value):
        raise UsageError(f"{where}: `from_share` takes the place of `from`, and needs `of`")
    low, high = value.get("from", 1 if "from_share" in value else -1), value.get("to", 0)
    if not _is_count(low) or not _is_count(high) or ("to" in value and low > high):
        raise UsageError(f"{where}: from {low!r} to {high!r}, wanted whole numbers, the smaller first")
    share, low_share, none = value.get("share", 1.0), value.get("from_share", 0.0), value.get("none", 0.0)
    if not _is_number(share) or share <= 0 or not _is_number(none) or not 0 <= none <= 1:
        raise UsageError(f"{where}: `share` is {share!r} and `none` {none!r}, wanted above 0, and 0 to 1")
    if not _is_number(low_share) or not 0 <= low_share <= share:
        raise UsageError(f"{where}: `from_share` is {low_share!r}, wanted 0 to `share`, which is {share!r}")
    by = value.get("by", "even")
    if by not in ("even", "log") or (by == "log" and low == 0):
        raise UsageError(f"{where}: `by` is {by!r}, wanted `even` or, from 1 on, `log`")
    return Span(
        low=low,
        high=high,
        by=by,
        of=str(value.get("of", "")),
        share=float(share),
        low_share=float(low_share),
        none=float(none),
    )


def _choice(where: str, values: list[object], words: tuple[str, ...]) -> Choice:
    found: list[Extra] = []
    for value in values:
        if words and value not in words:
            raise UsageError(f"{where} holds {value!r}, wanted only {', '.join(words)}")
        if not words and not _is_count(value):
            raise UsageError(f"{where} holds {value!r}, wanted only whole numbers")
        assert isinstance(value, (str, int))
        found.append(value)
    if not found or len(set(found)) != len(found):
        raise UsageError(f"{where} is {values!r}, wanted one or more values, each once")
    return Choice(values=tuple(found))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
