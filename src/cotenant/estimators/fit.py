"""Whether a traced job fits on a GPU, and on which of all known ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cotenant.allocator import OomReport, ReplayResult
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import format_bytes
from cotenant.estimators.margin import margin_of
from cotenant.estimators.nccl import with_nccl
from cotenant.estimators.replay_input import ReplayInput, SoftwareStack, conv_of, make_replay_input
from cotenant.gpu_specs import GpuSpec, all_gpu_specs

FitVerdict = Literal["fits", "tight", "unsure", "no"]
"""`fits`: with the margin. `tight`: with the margin, if the allocator gives back its cache on the way. `unsure`: only
without the margin. `no`: not even then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A verdict for a GPU that the job has for itself.

    Attributes:
        gpu: name of the profile.
        usable_bytes: what processes can get of it.
        reserved_bytes: most that the allocator would hold on a GPU without end; `bound_bytes`: that with context and
            margin.
        retries: most times that the cache was given back in a replay on this GPU; 0 where none was needed.
        oom: the request that found no memory, for `unsure` in the replay with less memory by the margin.
        capability_differs: the trace was made for another compute capability, so another kernel may be chosen here.
    """

    gpu: str
    verdict: FitVerdict
    usable_bytes: int
    reserved_bytes: int
    bound_bytes: int
    retries: int = 0
    oom: OomReport | None = None
    capability_differs: bool = False

    @property
    def spare_bytes(self) -> int:
        """Left beside the bound; below 0 where the bound does not fit."""
        return self.usable_bytes - self.bound_bytes

    @property
    def sentence(self) -> str:
        """The verdict, for people."""
        if self.verdict == "fits":
            return f"fits {self.gpu}, {format_bytes(self.spare_bytes)} to spare"
        if self.verdict == "tight":
            return f"fits {self.gpu} only just: the allocator gives back its cache {times(self.retries)} to go on"
        if self.verdict == "unsure":
            return f"may not fit {self.gpu}: within its margin it runs out of memory{where(self.oom)}"
        return f"does not fit {self.gpu}: out of memory{where(self.oom)}"


def times(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def where(oom: OomReport | None) -> str:
    """The place of a failed request and its numbers, to stand behind `out of memory`."""
    if oom is None:
        return ""
    place = f" of `{oom.module}`" if oom.module else ""
    return (
        f" in {oom.phase or 'the beginning'}{place}, asking for {format_bytes(oom.request_bytes)} with "
        f"{format_bytes(oom.allocated_bytes)} allocated and {format_bytes(oom.reserved_bytes)} reserved"
    )


def judge(scene: ReplayInput, free: ReplayResult, margin: int) -> tuple[Fit, ReplayResult]:
    """The verdict for `scene.gpu`, and the replay whose numbers are to be told.

    `free`: the replay without end; `margin`: as of `margin_of`. A second and third replay are made only where the
    bound does not fit. The first has what an expected context leaves, the other less by the margin.
    """
    gpu = scene.gpu
    usable, device = gpu.usable_bytes, free.peak_reserved_bytes + gpu.context.typical_bytes
    told: FitVerdict = "fits"
    retries, oom, result = 0, None, free
    if device + margin > usable or scene.stack.options.per_process_memory_fraction < 1:
        capacity = max(0, usable - gpu.context.typical_bytes)
        result = scene.replay(capacity)
        careful = scene.replay(max(0, capacity - margin))
        retries = max(result.retries, careful.retries)
        told = "tight" if retries or device + margin > usable else "fits"
        if careful.oom is not None:
            told, oom = "unsure", careful.oom
        if result.oom is not None:
            told, oom, result = "no", result.oom, free
    fit = Fit(
        gpu=gpu.name,
        verdict=told,
        usable_bytes=usable,
        reserved_bytes=free.peak_reserved_bytes,
        bound_bytes=device + margin,
        retries=retries,
        oom=oom,
    )
    return fit, result


def worst(fits: Sequence[Fit]) -> Fit:
    """Of verdicts for one kind of GPU, that of the job's GPU that fits least; the one with the larger bound of two."""
    return max(fits, key=lambda fit: (get_args(FitVerdict).index(fit.verdict), fit.bound_bytes))


def fits_on(
    trace: MemoryTrace,
    stack: SoftwareStack,
    spread_bytes: int,
    coverage: float | None = None,
    *,
    split_bytes: int = 0,
    instances: bool = True,
) -> tuple[Fit, ...]:
    """Verdicts for every known GPU and its MIG instances, largest first; for one GPU of the job.

    `spread_bytes`: of the interval on the GPU that was asked for, above its middle; `split_bytes`: of that interval;
    both are taken for all. `coverage`: as of `margin_of`. `instances`: of MIG, too.
    """
    made = capability_of(trace)
    seen: dict[object, tuple[ReplayInput, ReplayResult]] = {}
    found = []
    for gpu in (with_nccl(spec, trace.header) for spec in _all_gpus(instances=instances)):
        scene, free = _replayed(trace, gpu, stack, seen)
        margin = margin_of(trace, gpu, free, spread_bytes, coverage, stack.answers, split_bytes=split_bytes)
        fit, _ = judge(scene, free, margin.bytes)
        differs = made is not None and gpu.compute_capability != made
        found.append(replace(fit, capability_differs=differs))
    return tuple(sorted(found, key=lambda verdict: (-verdict.usable_bytes, verdict.gpu)))


def capability_of(trace: MemoryTrace) -> tuple[int, int] | None:
    """The compute capability that a trace was made for; None if it does not say."""
    return trace.header.capability


def _all_gpus(*, instances: bool) -> Iterator[GpuSpec]:
    for card in all_gpu_specs():
        yield card
        for profile in card.mig if instances else ():
            yield card.instance(profile.name)


def _replayed(
    trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack, seen: dict[object, tuple[ReplayInput, ReplayResult]]
) -> tuple[ReplayInput, ReplayResult]:
    """The trace on `gpu`; GPUs that take the same workspaces share one replay."""
    conv = conv_of(gpu, stack)
    sizes = tuple(conv(op) for op in trace.ops if op.kind.startswith("conv"))
    key = (gpu.cublas_workspace_bytes, sizes)
    if key not in seen:
        scene = make_replay_input(trace, gpu, stack)
        seen[key] = scene, scene.replay()
    scene, free = seen[key]
    return replace(scene, gpu=gpu), free
