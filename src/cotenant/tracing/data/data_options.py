"""The values of `--synthetic-data` and `--sequence-lengths`, parsed without torch: a wrong one is refused early."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cotenant.core.errors import UsageError
from cotenant.tracing.data import length_histogram

CLASSES = 10
MIN_AUDIO_SAMPLES = 4000
"""A floating-point sample of one dimension that is as long as this is audio: a quarter of a second at 16 kHz."""
DTYPES = frozenset(
    (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    )
)  # fmt: skip
"""Names of dtypes in torch."""
_SAMPLE_SYNTAX = re.compile(r"(?:([^=]+)=)?(\d+(?:x\d+)*)(?::([a-z]+\d+))?(?::(\d+))?")
_GROWING_QUANTILES = (0.8, 0.9, 1.0)
"""Quantiles of lengths of the first batches; the last one holds for all later batches."""
_QUANTILE_SYNTAX = re.compile(r"longest|p(\d{1,2}(?:\.\d+)?|100)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSample:
    """One sample: its shape, the name of its dtype, and the number of classes (of whole numbers: of values).

    `path_part`: is in the path of every file that the sample is for; empty: it is for all others.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int = CLASSES
    path_part: str = ""

    @property
    def is_image(self) -> bool:
        """Whether it has the three dimensions of an image."""
        return len(self.shape) == 3

    @property
    def is_text(self) -> bool:
        """Whether it is a line of tokens: of whole numbers."""
        return len(self.shape) == 1 and not self._is_floating

    @property
    def is_recording_or_row(self) -> bool:
        """Whether it is a line of numbers: a recording, or a row of a table."""
        return len(self.shape) == 1 and self._is_floating

    @property
    def _is_floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))


def recordings_and_rows(samples: Iterable[SyntheticSample]) -> list[SyntheticSample]:
    """Samples that are lines of numbers, a recording of one channel, as `1x16384`, without its channel."""
    found = []
    for sample in samples:
        channels, length = sample.shape if len(sample.shape) == 2 else (0, 0)
        line = replace(sample, shape=(length,)) if channels == 1 and length >= MIN_AUDIO_SAMPLES else sample
        found += [line] if line.is_recording_or_row else []
    return found


def first_image(samples: Iterable[SyntheticSample]) -> SyntheticSample | None:
    """The first sample that is an image; None without one."""
    return next((sample for sample in samples if sample.is_image), None)


def first_text(samples: Iterable[SyntheticSample]) -> SyntheticSample | None:
    """The first sample of tokens; None without one."""
    return next((sample for sample in samples if sample.is_text), None)


def image_size(sample: SyntheticSample) -> tuple[int, int, int]:
    """Channels, height and width."""
    shape = sample.shape
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (3, shape[-2] if len(shape) > 1 else 1, shape[-1])


def validate_options(synthetic_data: Sequence[str], lengths: str) -> None:
    """Refuse values that cannot be parsed; `lengths` is a word, or a file's content from `inline_histogram`.

    Raises:
        UsageError: one of them cannot be parsed.
    """
    for text in synthetic_data:
        parse_sample(text)
    if length_histogram.parse_histogram(lengths) is None:
        length_quantiles(lengths)


def parse_sample(text: str) -> SyntheticSample:
    """The sample that `[PATH=]SHAPE[:DTYPE[:CLASSES]]` describes.

    Raises:
        UsageError: it has another form.
    """
    match = _SAMPLE_SYNTAX.fullmatch(text.strip())
    part, shape, dtype, classes = match.groups() if match else (None, "0", None, None)
    sample = SyntheticSample(
        shape=tuple(map(int, shape.split("x"))),
        dtype=dtype or "float32",
        classes=int(classes or CLASSES),
        path_part=part or "",
    )
    if sample.dtype not in DTYPES or not all(sample.shape) or not sample.classes:
        raise UsageError(
            f"`--synthetic-data`: `{text}` describes no sample",
            hint="write SHAPE[:DTYPE[:CLASSES]], e.g. `3x224x224:uint8:1000`; `masks=1x224x224` for some paths alone",
        )
    return sample


def length_quantiles(which: str) -> tuple[float, ...]:
    """Quantiles of lengths of the first batches, of which the last holds for all later ones: `p95` is (0.95,).

    `longest` is (1.0,). `growing` begins with shorter batches: the blocks of each are too small for the next, and the
    allocator caches them. Empty for the empty text: samples in their own order.

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
            f"`--sequence-lengths`: `{which}` is no length",
            hint="write `longest`, `growing`, a percentile such as `p95`, or a file of lengths, e.g. `lengths.csv`",
        )
    return (float(match.group(1)) / 100 if match.group(1) else 1.0,)
