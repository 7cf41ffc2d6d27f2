"""Parses the answer of an estimator process.

The process runs the submitter's code as the submitter, so its answer is untrusted: every number is checked for type and
range before it reaches the scheduler or the journal. A refused answer fails the estimate of that job only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from cotenant.core.codec import CodecError, decode
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate, MemoryProfile

IMPORT_ERROR = "import"
"""Kind of an error that the script raises wherever it runs; see `TraceError`."""


class EstimateAnswer(NamedTuple):
    """An estimate, or the sentence that says why there is none; `is_fatal` as in `EstimateReady`.

    `profile`: its memory over the traced steps, if the estimator has that.
    """

    estimate: Estimate | None
    error: str | None = None
    is_fatal: bool = False
    profile: MemoryProfile | None = None


MAX_BYTES = 2**50
MAX_GPUS = 1024
MAX_ITEMS = 1000
MAX_TEXT_CHARS = 10_000
MAX_ERROR_CHARS = 2000
MAX_CATEGORIES, MAX_POINTS, MAX_NAME_CHARS = 20, 500, 100
"""Of a profile."""


REFUSED = "the estimator's answer is refused: "
"""How the reason begins where an answer cannot be one."""


class _AnswerError(CotenantError):
    """A value of the answer is out of range."""


def parse_answer(answer: bytes) -> EstimateAnswer:
    """Return the estimate in the line that an estimator process wrote, or why there is none."""
    try:
        message = json.loads(answer)
        if "estimate" not in message:
            error = message["error"]
            return EstimateAnswer(None, str(error["message"])[:MAX_ERROR_CHARS], error.get("kind") == IMPORT_ERROR)
        estimate: Estimate = decode(Estimate, message["estimate"])
        _check(estimate)
        profile: MemoryProfile | None = decode(MemoryProfile | None, message.get("profile"))
        if profile is not None:
            check_profile(profile)
    except (CodecError, _AnswerError) as error:
        return EstimateAnswer(None, f"{REFUSED}{error.message}"[:MAX_ERROR_CHARS])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        return EstimateAnswer(None, f"{REFUSED}{error}"[:MAX_ERROR_CHARS])
    return EstimateAnswer(estimate, profile=profile)


def check_profile(profile: MemoryProfile) -> None:
    """Check that a profile can be stored and drawn.

    Raises:
        CotenantError: it cannot.
    """
    columns = profile.category_bytes
    lengths = {len(column) for column in columns.values()}
    if len(columns) > MAX_CATEGORIES or len(lengths) > 1 or max(lengths, default=0) > MAX_POINTS:
        raise _AnswerError(
            f"`profile` is not at most {MAX_CATEGORIES} categories of as many points, {MAX_POINTS} or less"
        )
    if any(not 0 <= count < MAX_BYTES for column in columns.values() for count in column):
        raise _AnswerError("`profile` has a value that is not 0 to 2**50 bytes")
    places = [place for place, _ in profile.phases]
    if (
        len(places) > MAX_POINTS
        or places != sorted(set(places))
        or not all(0 <= place < MAX_POINTS for place in places)
    ):
        raise _AnswerError("`profile.phases` are not in order, or too many")
    if any(len(name) > MAX_NAME_CHARS for name in (*columns, *(name for _, name in profile.phases))):
        raise _AnswerError(f"a name in `profile` has more than {MAX_NAME_CHARS} characters")


def _check(estimate: Estimate) -> None:
    for name, count in _byte_counts(estimate):
        if not 0 <= count < MAX_BYTES:
            raise _AnswerError(f"`{name}` is {_short(count)}, wanted 0 to 2**50 bytes")
    for name in ("coverage", "smact", "smact_low", "smact_high", "smocc"):
        ratio = getattr(estimate, name)
        if ratio is not None and not 0.0 <= ratio <= 1.0:  # false for NaN too
            raise _AnswerError(f"`{name}` is {_short(ratio)}, wanted 0 to 1")
    if not 1 <= estimate.processes <= MAX_GPUS:
        raise _AnswerError(f"`processes` is {_short(estimate.processes)}, wanted 1 to {MAX_GPUS}")
    for need in estimate.per_gpu:
        if not 0 <= need.index < MAX_GPUS:
            raise _AnswerError(f"`per_gpu.index` is {_short(need.index)}, wanted 0 to {MAX_GPUS - 1}")
    lengths = {
        "per_gpu": len(estimate.per_gpu),
        "warnings": len(estimate.warnings),
        "breakdown_bytes": len(estimate.breakdown_bytes),
    }
    for name, length in lengths.items():
        if length > MAX_ITEMS:
            raise _AnswerError(f"`{name}` has {length} items, wanted at most {MAX_ITEMS}")
    texts = (estimate.estimator, estimate.version, estimate.gpu, *estimate.warnings, *estimate.breakdown_bytes)
    if any(len(text) > MAX_TEXT_CHARS for text in texts):
        raise _AnswerError(f"a text has more than {MAX_TEXT_CHARS} characters")


def _byte_counts(estimate: Estimate) -> Iterator[tuple[str, int]]:
    for name in ("peak_reserved_bytes", "context_bytes", "margin_bytes"):
        yield name, getattr(estimate, name)
    if estimate.peak_allocated_bytes is not None:
        yield "peak_allocated_bytes", estimate.peak_allocated_bytes
    for category, count in estimate.breakdown_bytes.items():
        yield f"breakdown_bytes.{category[:40]}", count
    for need in estimate.per_gpu:
        for name in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "bound_bytes"):
            yield f"per_gpu.{name}", getattr(need, name)


def _short(number: Any) -> str:
    if isinstance(number, int) and abs(number) >= 10**20:  # str() refuses integers of more than 4300 digits
        return f"a number of {number.bit_length()} bits"
    return f"{number!r}"
