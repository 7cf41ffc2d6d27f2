"""What `--synthetic-data` and `--sequence-lengths` say, read without torch: a wrong one is told before anything is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.tracing.data import length_histogram

CLASSES = 10
DTYPES = frozenset(
    (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    )
)
"""Names of types in torch."""
_SAMPLE_SYNTAX = re.compile(r"(\d+(?:x\d+)*)(?::([a-z]+\d+))?(?::(\d+))?")
_GROWING_QUANTILES = (0.8, 0.9, 1.0)
"""Shares of the first batches and all later ones where lengths grow."""
_QUANTILE_SYNTAX = re.compile(r"longest|p(\d{1,2}(?:\.\d+)?|100)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSample:
    """One sample: its shape, the name of its type in torch, and how many classes or values there are."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int = CLASSES


def validate_options(synthetic_data: Sequence[str], lengths: str) -> None:
    """Refuse what cannot be understood; `lengths` is a word, or what `histogram.spelled` gave of a file.

    Raises:
        UsageError: names the option, what was given for it, and what is wanted.
    """
    for each in synthetic_data:
        parse_sample(each)
    if length_histogram.parse_histogram(lengths) is None:
        length_quantiles(lengths)


def parse_sample(text: str) -> SyntheticSample:
    """The stand-in that `SHAPE[:DTYPE[:CLASSES]]` describes.

    Raises:
        UsageError: it describes none.
    """
    match = _SAMPLE_SYNTAX.fullmatch(text.strip())
    shape, dtype, classes = match.groups() if match else ("0", None, None)
    made = SyntheticSample(
        shape=tuple(map(int, shape.split("x"))), dtype=dtype or "float32", classes=int(classes or CLASSES)
    )
    if made.dtype not in DTYPES or not all(made.shape) or not made.classes:
        raise UsageError(
            f"`--synthetic-data`: `{text}` is no stand-in for data",
            hint="write SHAPE[:DTYPE[:CLASSES]], e.g. `3x224x224:uint8:1000`",
        )
    return made


def length_quantiles(which: str) -> tuple[float, ...]:
    """Shares of the first batches, of which the last holds for all later ones: `longest` is 1, `p95` 0.95.

    `growing` begins with shorter ones: blocks of each batch are then too small for the next, and the allocator keeps
    them. Empty for the empty text: samples as they come.

    Raises:
        UsageError: it is none of these.
    """
    if not which:
        return ()
    if which == "growing":
        return _GROWING_QUANTILES
    match = _QUANTILE_SYNTAX.fullmatch(which)
    if match is None:
        raise UsageError(
            f"`--sequence-lengths`: `{which}` names no length",
            hint="write `longest`, `growing`, a percentile such as `p95`, or a file of lengths, e.g. `lengths.csv`",
        )
    return (float(match.group(1)) / 100 if match.group(1) else 1.0,)
