"""The margin on a traced estimate: with it the true peak stays below the bound with a chosen probability.

Split conformal prediction on our own errors: `data/margins.json` holds, for each family of jobs, how far measured
peaks were above the estimate or its range, divided by a scale of what is uncertain. A quantile of them covers another
job of that family with the requested probability, whatever the distribution, if it is drawn like the measured ones.
Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; decision 0011. The file is made by
`benchmarks/estimator/margins.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from cotenant.allocator import ReplayResult
from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.cudnn.query import CudnnWorkspaces
from cotenant.estimators.cudnn.sources import cudnn_calls
from cotenant.estimators.cudnn.table import cudnn_of_torch, is_cudnn_known
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.gpu_specs import GpuSpec

COVERAGE = 0.99
"""Default probability."""

COMPILED_FAMILY = "compiled code"
FAMILIES = ("no convolutions", "known convolutions", "guessed convolutions")
"""Jobs without convolutions of cuDNN; with only those that cuDNN was queried for; with others."""

_KNOWN_BYTES = 2048 * MiB
_GUESSED_BYTES = 1024 * MiB
_SPLIT_WEIGHT = 4
"""Added to the reserved bytes in the scale of jobs with convolutions, and of guessed ones (decision 0011)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Bytes to add to an estimate, and what they cover.

    Attributes:
        coverage: probability that the peak stays below the bound; less than requested where too few jobs of the
            family were measured.
        family: one of `FAMILIES`.
        rows: number of measured jobs that it is calibrated on.
    """

    bytes: int
    coverage: float
    family: str
    rows: int
    warnings: tuple[str, ...] = ()


def check_coverage(coverage: float | None) -> None:
    """Raises UsageError unless `coverage` is a probability between 0 and 1, or None: the default."""
    if coverage is not None and not 0 < coverage < 1:
        raise UsageError(f"`coverage` must be between 0 and 1, got {coverage:g}", hint="write 0.95 for 95 %")


def margin_of(
    trace: MemoryTrace,
    gpu: GpuSpec,
    free: ReplayResult,
    spread_bytes: int,
    coverage: float | None = None,
    cudnn_workspaces: CudnnWorkspaces | None = None,
    *,
    split_bytes: int = 0,
    torch_version: str | None = None,
) -> Margin:
    """The margin on a replay with unlimited memory that small changes raise by up to `spread_bytes`.

    `coverage`: None for the default. `cudnn_workspaces`, `torch_version`: as of `family_of`. `split_bytes`: as of
    `ReservedRange`. The margin also holds how far the context can exceed its typical size. Where code of
    `torch.compile` was compiled, it is the wider one of its family's and that of compiled jobs.
    """
    family = family_of(trace, gpu, cudnn_workspaces, torch_version=torch_version)
    scale = scale_bytes(family, free.peak_reserved_bytes, free.peak_allocated_bytes, split_bytes)
    margin = margin_by_scores(calibration()[family], family, gpu, spread_bytes, scale, coverage)
    if not trace.header.compiled:
        return margin
    scores = compiled_calibration()
    compiled = margin_by_scores(scores, COMPILED_FAMILY, gpu, spread_bytes, free.peak_reserved_bytes, coverage)
    wider = max(margin, compiled, key=lambda one: one.bytes)
    warnings = tuple(dict.fromkeys((*margin.warnings, *compiled.warnings)))
    return replace(wider, coverage=min(margin.coverage, compiled.coverage), warnings=warnings)


def margin_by_scores(
    scores: Sequence[float], family: str, gpu: GpuSpec, spread_bytes: int, scale: int, coverage: float | None = None
) -> Margin:
    """The margin by the ascending `scores` of `family`; `scale`: as of `scale_bytes`, the rest as of `margin_of`."""
    wanted = coverage or COVERAGE
    score, reached = quantile(scores, wanted)
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
    """The unit of a family's scores; `split_bytes`: as of `ReservedRange`.

    Without convolutions only the allocator's history is uncertain: the reserved bytes beyond the live blocks. A
    workspace can move all of them, and single ones are large beside a small network. Where workspaces are guessed, the
    main uncertainty is whether a few calls take several times their operands.
    """
    if family == FAMILIES[0]:
        return reserved_bytes - allocated_bytes + 16 * MiB
    if family == FAMILIES[1]:
        return reserved_bytes + _KNOWN_BYTES
    return reserved_bytes + _GUESSED_BYTES + _SPLIT_WEIGHT * split_bytes


def above_bytes(family: str, score: float, spread_bytes: int, scale: int) -> float:
    """The bytes above the estimate that a score stands for.

    They are added to the spread. Where workspaces are guessed the larger of both counts: there the spread is wide, and
    rarely too low and too narrow for the same reason.
    """
    return max(spread_bytes, score * scale) if family == FAMILIES[2] else spread_bytes + score * scale


def score_of(family: str, found_bytes: int, spread_bytes: int, scale: int) -> float:
    """The smallest score for which `above_bytes` gives `found_bytes`, the excess of a measured peak."""
    if family == FAMILIES[2]:
        return found_bytes / scale if found_bytes > spread_bytes else 0.0
    return (found_bytes - spread_bytes) / scale


def quantile(scores: Sequence[float], coverage: float) -> tuple[float, float]:
    """The smallest score that covers another job with this probability, and the probability that it reaches.

    With n scores that is the ceil((n + 1) coverage)-th smallest. None reaches more than n / (n + 1), the probability
    of the largest.
    """
    count = len(scores)
    rank = math.ceil((count + 1) * coverage - 1e-9)
    if rank > count:
        return scores[-1], count / (count + 1)
    return scores[rank - 1], coverage


def family_of(
    trace: MemoryTrace,
    gpu: GpuSpec,
    cudnn_workspaces: CudnnWorkspaces | None = None,
    *,
    torch_version: str | None = None,
) -> str:
    """The family of a trace on `gpu`.

    Calls that are in `cudnn_workspaces` count as known, and those in a shipped table of the cuDNN of `torch_version`
    (None: the torch that made the trace).
    """
    calls = cudnn_calls(trace, gpu)
    if not calls:
        return FAMILIES[0]
    version = torch_version or trace.header.torch_version
    rule = ConvRule(
        capability=gpu.compute_capability,
        sm_count=gpu.sm_count,
        cudnn_workspaces=cudnn_workspaces,
        version=cudnn_of_torch(version),
        other_sizes=is_cudnn_known(version),
    )
    return FAMILIES[2] if any(rule.guesses(op) for op in calls) else FAMILIES[1]


@lru_cache(maxsize=1)
def calibration() -> Mapping[str, tuple[float, ...]]:
    """Scores by family, ascending."""
    file = resources.files("cotenant.estimators") / "data" / "margins.json"
    families = json.loads(file.read_text(encoding="utf-8"))["families"]
    return {name: tuple(score / 10_000 for score in families[name]["scores"]) for name in FAMILIES}


@lru_cache(maxsize=1)
def compiled_calibration() -> tuple[float, ...]:
    """Scores of jobs with compiled code, ascending: (measured - estimated) / estimated reserved bytes.

    The file is made by `benchmarks/estimator/compiled_margins.py`.
    """
    file = resources.files("cotenant.estimators") / "data" / "compiled_margins.json"
    return tuple(score / 10_000 for score in json.loads(file.read_text(encoding="utf-8"))["scores"])
