"""Sentences about data that were made up: a script may miss hundreds of files, of which a few stand for all.

A module of its own: it reads sentences alone, and imports no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_NAMED = 5  # files or folders, for each kind of sample
_MIDDLE = " is not on this machine; replaced by synthetic data: "


def made_up(what: str, made: str) -> str:
    """The warning that `what` was replaced by `made`."""
    return f"{what}{_MIDDLE}{made}"


def shortened(warnings: Iterable[str]) -> tuple[str, ...]:
    """The warnings, where the sixth and further ones of files that were replaced alike are one."""
    named, seen = [], Counter[str]()
    for sentence in warnings:
        _, middle, made = sentence.partition(_MIDDLE)
        if middle:
            seen[made] += 1
        if not middle or seen[made] <= _NAMED:
            named.append(sentence)
    more = {made: count - _NAMED for made, count in seen.items() if count > _NAMED}
    for made, count in more.items():
        last = max(place for place, sentence in enumerate(named) if sentence.endswith(f"{_MIDDLE}{made}"))
        named.insert(last + 1, made_up(f"{count} more such files", made).replace(" is not ", " are not ", 1))
    return tuple(named)
