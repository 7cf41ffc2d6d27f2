"""What is added to a traced estimate, so that the true peak stays below it with a chosen probability.

Split conformal prediction on our own errors: `data/margins.json` holds, for each family of jobs, what measured peaks
were above the estimate or its interval, on a scale that follows what is uncertain. A quantile of them covers a further
job of that family with the probability asked for, whatever the distribution, if it is drawn like those measured.
Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; decision 0011. The file is made by
`benchmarks/estimator/margins.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from cotenant.allocator import ReplayResult
from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.cudnn.query import CudnnWorkspaces
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.gpu_specs import GpuSpec

COVERAGE = 0.99
CONV_COVERAGE = 0.95
"""Probability asked for unless said otherwise; the second where cuDNN chooses algorithms, since a few of its choices
are far off any rule, and 99 % of networks would cost twice the margin."""

FAMILIES = ("no convolutions", "known convolutions", "guessed convolutions")
"""Jobs without cuDNN's convolutions; with only such as cuDNN was asked for; with others."""

_GUESSED_BYTES = 2048 * MiB
_SPLIT_WEIGHT = 8
"""What a guessed job's scale has beside the reserved bytes (decision 0011)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Bytes to add, and what for.

    Attributes:
        coverage: probability that the peak stays below the bound; less than was asked for where too few jobs of the
            family were measured.
        family: one of `FAMILIES`.
        rows: measured jobs behind it.
    """

    bytes: int
    coverage: float
    family: str
    rows: int
    warnings: tuple[str, ...] = ()


def check_coverage(coverage: float | None) -> None:
    """Raises UsageError: not a probability between 0 and 1; None is the usual."""
    if coverage is not None and not 0 < coverage < 1:
        raise UsageError(f"a coverage of {coverage:g} is not between 0 and 1", hint="for 95 % say 0.95")


def margin_of(
    trace: MemoryTrace,
    gpu: GpuSpec,
    free: ReplayResult,
    spread_bytes: int,
    coverage: float | None = None,
    answers: CudnnWorkspaces | None = None,
    *,
    split_bytes: int = 0,
) -> Margin:
    """The margin of a replay without end that small changes raised by up to `spread_bytes`.

    `coverage`: None for the usual one. `answers`: as of `family_of`. `split_bytes`: as of `Interval`. Beside spread and
    quantile: how far the context can exceed its typical size.
    """
    family = family_of(trace, gpu, answers)
    wanted = coverage or (COVERAGE if family == FAMILIES[0] else CONV_COVERAGE)
    scores = calibration()[family]
    score, reached = quantile(scores, wanted)
    scale = scale_bytes(family, free.peak_reserved_bytes, free.peak_allocated_bytes, split_bytes)
    warnings = []
    if reached < wanted:
        warnings.append(
            f"the bound holds for {reached:.1%} of jobs, not {wanted:.1%}: only {len(scores)} like it were measured "
            f"(family: {family})"
        )
    context = gpu.context.high_bytes - gpu.context.typical_bytes
    return Margin(
        bytes=max(0, round(above_bytes(family, score, spread_bytes, scale))) + context,
        coverage=min(wanted, reached),
        family=family,
        rows=len(scores),
        warnings=tuple(warnings),
    )


def scale_bytes(family: str, reserved_bytes: int, allocated_bytes: int, split_bytes: int) -> int:
    """What a family's scores are counted in; `split_bytes`: as of `Interval`.

    Without convolutions only the allocator's history is uncertain, and that is what it holds beyond the live blocks;
    a workspace can move all of it. Where workspaces are guessed, most of what is uncertain is whether a few calls take
    several times their operands.
    """
    if family == FAMILIES[0]:
        return reserved_bytes - allocated_bytes + 16 * MiB
    if family == FAMILIES[1]:
        return reserved_bytes + 128 * MiB
    return reserved_bytes + _GUESSED_BYTES + _SPLIT_WEIGHT * split_bytes


def above_bytes(family: str, score: float, spread_bytes: int, scale: int) -> float:
    """What a score stands for, above the estimate.

    It comes on top of the interval; where workspaces are guessed it is the larger of both, since there the interval is
    wide and rarely too low and too narrow for the same reason.
    """
    return max(spread_bytes, score * scale) if family == FAMILIES[2] else spread_bytes + score * scale


def score_of(family: str, found_bytes: int, spread_bytes: int, scale: int) -> float:
    """The least score for which `above_bytes` gives `found_bytes`, of a measured peak above its estimate."""
    if family == FAMILIES[2]:
        return found_bytes / scale if found_bytes > spread_bytes else 0.0
    return (found_bytes - spread_bytes) / scale


def quantile(scores: Sequence[float], coverage: float) -> tuple[float, float]:
    """(The least score that covers one more job with this probability, the probability it stands for.)

    With n scores that is the ceil((n + 1) coverage)-th least; none covers more than n / (n + 1), which is what the
    largest one then stands for.
    """
    count = len(scores)
    rank = math.ceil((count + 1) * coverage - 1e-9)
    if rank > count:
        return scores[-1], count / (count + 1)
    return scores[rank - 1], coverage


def family_of(trace: MemoryTrace, gpu: GpuSpec, answers: CudnnWorkspaces | None = None) -> str:
    """Which of `FAMILIES` a trace belongs to on `gpu`; `answers`: of the job's own cuDNN, which then are known."""
    calls = [op for op in trace.ops if op.kind.startswith("conv") and op.params["groups"] == 1]
    if not calls:
        return FAMILIES[0]
    rule = ConvRule(capability=gpu.compute_capability, sm_count=gpu.sm_count, answers=answers)
    return FAMILIES[2] if any(rule.guesses(op) for op in calls) else FAMILIES[1]


@lru_cache(maxsize=1)
def calibration() -> Mapping[str, tuple[float, ...]]:
    """Scores by family, ascending."""
    file = resources.files("cotenant.estimators") / "data" / "margins.json"
    families = json.loads(file.read_text(encoding="utf-8"))["families"]
    return {name: tuple(score / 10_000 for score in families[name]["scores"]) for name in FAMILIES}
