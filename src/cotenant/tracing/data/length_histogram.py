"""A histogram of lengths, where the data set itself is not here or says too little: which lengths a batch is made of.

A file has a line for each length: the length, and how many samples have it (one, if nothing follows). Commas, blanks
and tabs separate; a first line of words and lines that begin with `#` are passed over.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError

_PREFIX = "histogram:"
_SUFFIXES = {".csv", ".tsv", ".txt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthHistogram:
    """How many samples have each length; `lengths` ascend, `up_to[i]` samples have at most `lengths[i]`."""

    lengths: tuple[int, ...]
    up_to: tuple[int, ...]

    def at(self, share: float) -> int:
        """The length that this share of the samples does not exceed."""
        return self.lengths[min(len(self.lengths) - 1, bisect_left(self.up_to, share * self.up_to[-1]))]

    def batch(self, size: int, *, longest: bool) -> list[int]:
        """Lengths of a batch of `size`: spread as all are; the last is the longest of all if asked for."""
        found = [self.at((index + 0.5) / size) for index in range(size)]
        return [*found[:-1], self.lengths[-1]] if longest else found

    def told(self) -> str:
        """A sentence on how lengths are spread."""
        return (
            f"lengths in batches are spread as in the histogram, and one is its longest: the shortest has "
            f"{self.lengths[0]}, half have up to {self.at(0.5)}, 95 % up to {self.at(0.95)}, the longest has "
            f"{self.lengths[-1]}"
        )


def inline_histogram(which: str, workdir: str) -> str:
    """`which` as it is, or the contents of the file that it names, as `parse_histogram` reads them.

    Raises:
        UsageError: the file cannot be read, or is no histogram.
    """
    if Path(which).suffix.lower() not in _SUFFIXES:
        return which
    try:
        lines = Path(workdir, which).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is no text").lower()
        raise UsageError(f"cannot read lengths from `{which}`: {reason}") from error
    counts: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        words = re.split(r"[,;\s]+", line.strip())
        if words == [""] or words[0].startswith("#") or (number == 1 and not words[0][:1].isdigit()):
            continue
        if len(words) > 2 or not all(each.isdecimal() for each in words) or int(words[0]) < 1:
            raise UsageError(
                f"`{which}`, line {number}: `{line.strip()[:60]}` is no length",
                hint="write e.g. `128,4000` in each line",
            )
        counts[int(words[0])] += int(words[1]) if len(words) == 2 else 1
    pairs = [f"{length}x{count}" for length, count in sorted(counts.items()) if count]
    if not pairs:
        raise UsageError(f"`{which}` has no lengths", hint="write e.g. `128,4000` in each line")
    return _PREFIX + ",".join(pairs)


def parse_histogram(which: str) -> LengthHistogram | None:
    """What `inline_histogram` gave of a file; None of anything else."""
    if not which.startswith(_PREFIX):
        return None
    pairs = [tuple(map(int, each.split("x"))) for each in which.removeprefix(_PREFIX).split(",")]
    return LengthHistogram(
        lengths=tuple(length for length, _ in pairs), up_to=tuple(accumulate(count for _, count in pairs))
    )


def resized(sample: Any, before: int, after: int) -> Any:
    """The sample with every part of the length `before` cut or repeated to `after`."""
    if isinstance(sample, Mapping):
        return {key: resized(value, before, after) for key, value in sample.items()}
    if isinstance(sample, list) and len(sample) == before and all(isinstance(each, (int, float)) for each in sample):
        return (sample * -(-after // before))[:after]
    if isinstance(sample, (list, tuple)):
        parts = [resized(each, before, after) for each in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)
    shape: Sequence[int] = getattr(sample, "shape", ())
    if len(shape) and shape[0] == before:
        return sample[[index % before for index in range(after)]]
    return sample
