"""A histogram of sequence lengths, for data sets that are not on this machine or too large to inspect.

A file has one line per length: the length, and the number of samples with it (default: one), separated by commas,
blanks or tabs. A first line of words, and lines that begin with `#`, are skipped.
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
    """Ascending lengths; `cumulative[i]` samples are at most `lengths[i]` long."""

    lengths: tuple[int, ...]
    cumulative: tuple[int, ...]

    def quantile(self, share: float) -> int:
        """The length that this share of the samples does not exceed."""
        index = bisect_left(self.cumulative, share * self.cumulative[-1])
        return self.lengths[min(len(self.lengths) - 1, index)]

    def batch(self, size: int, *, with_longest: bool) -> list[int]:
        """Lengths of a batch, distributed like all; `with_longest`: the last is the longest of all."""
        lengths = [self.quantile((index + 0.5) / size) for index in range(size)]
        return [*lengths[:-1], self.lengths[-1]] if with_longest else lengths

    def summary(self) -> str:
        """A sentence on the distribution."""
        return (
            f"lengths in batches are distributed as in the histogram, and one is its longest: shortest "
            f"{self.lengths[0]}, median {self.quantile(0.5)}, P95 {self.quantile(0.95)}, longest {self.lengths[-1]}"
        )


def inline_histogram(which: str, workdir: str) -> str:
    """`which` unchanged, or the content of the file that it names, in the form that `parse_histogram` reads.

    Raises:
        UsageError: the file cannot be read, or is no histogram.
    """
    if Path(which).suffix.lower() not in _SUFFIXES:
        return which
    try:
        lines = Path(workdir, which).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is not text").lower()
        raise UsageError(f"cannot read lengths from `{which}`: {reason}") from error
    counts: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        words = re.split(r"[,;\s]+", line.strip())
        if words == [""] or words[0].startswith("#") or (number == 1 and not words[0][:1].isdigit()):
            continue
        if len(words) > 2 or not all(word.isdecimal() for word in words) or int(words[0]) < 1:
            raise UsageError(
                f"`{which}`, line {number}: `{line.strip()[:60]}` is no length",
                hint="write e.g. `128,4000` in every line",
            )
        counts[int(words[0])] += int(words[1]) if len(words) == 2 else 1
    pairs = [f"{length}x{count}" for length, count in sorted(counts.items()) if count]
    if not pairs:
        raise UsageError(f"`{which}` has no lengths", hint="write e.g. `128,4000` in every line")
    return _PREFIX + ",".join(pairs)


def parse_histogram(which: str) -> LengthHistogram | None:
    """The histogram that `inline_histogram` read from a file; None if `which` is something else."""
    if not which.startswith(_PREFIX):
        return None
    pairs = [tuple(map(int, pair.split("x"))) for pair in which.removeprefix(_PREFIX).split(",")]
    cumulative = tuple(accumulate(count for _, count in pairs))
    return LengthHistogram(lengths=tuple(length for length, _ in pairs), cumulative=cumulative)


def resized(sample: Any, before: int, after: int) -> Any:
    """The sample, with every part of length `before` cut or repeated to length `after`."""
    if isinstance(sample, Mapping):
        return {key: resized(value, before, after) for key, value in sample.items()}
    if isinstance(sample, list) and len(sample) == before and all(isinstance(item, (int, float)) for item in sample):
        return (sample * -(-after // before))[:after]
    if isinstance(sample, (list, tuple)):
        parts = [resized(part, before, after) for part in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)
    shape: Sequence[int] = getattr(sample, "shape", ())
    if len(shape) and shape[0] == before:
        return sample[[index % before for index in range(after)]]
    return sample
