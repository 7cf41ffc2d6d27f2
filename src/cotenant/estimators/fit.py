"""Whether a traced job fits on a GPU, and which known GPUs it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cotenant.allocator import OomReport, ReplayResult
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import format_bytes
from cotenant.estimators.further_epochs import continue_training
from cotenant.estimators.margin import margin_of
from cotenant.estimators.replay_input import ReplayInput, SoftwareStack, conv_of, make_replay_input, with_context
from cotenant.gpu_specs import GpuSpec, all_gpu_specs

FitVerdict = Literal["fits", "tight", "unsure", "no"]
"""`fits`: with the margin. `tight`: with the margin, but the allocator must release its cache. `unsure`: only without
the margin, or the trace ran code eagerly that is compiled on a GPU. `no`: not even without the margin."""
_CELLS = {"fits": "fits", "tight": "only just", "unsure": "may not fit", "no": "does not fit"}
COMPILED = "compiled"
"""The kind of `TraceHeader.runs_otherwise` for which a trace is usually an upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The verdict for a GPU that runs only this job.

    Attributes:
        gpu: its name.
        usable_bytes: what processes can allocate on it.
        reserved_bytes: peak with unlimited memory; `bound_bytes`: that plus context and margin.
        retries: how often the allocator released its cache in a replay on this GPU.
        oom: the request that failed; for `unsure`, in the replay with the margin subtracted from the memory.
        capability_differs: the trace was made for another compute capability, so other kernels may run here.
        eager: the job does not fit as traced, eagerly; compiled code often needs less.
    """

    gpu: str
    verdict: FitVerdict
    usable_bytes: int
    reserved_bytes: int
    bound_bytes: int
    retries: int = 0
    oom: OomReport | None = None
    capability_differs: bool = False
    eager: bool = False

    @property
    def spare_bytes(self) -> int:
        """Usable bytes minus the bound; negative where the bound does not fit."""
        return self.usable_bytes - self.bound_bytes

    def cell(self, made_for: tuple[int, int] | None) -> str:
        """The verdict in a table; `made_for`: the compute capability that the trace was made for."""
        traced = f" (as traced for sm{made_for[0]}{made_for[1]})" if made_for and self.capability_differs else ""
        return _CELLS[self.verdict] + traced

    @property
    def sentence(self) -> str:
        """The verdict, for people."""
        if self.verdict == "fits":
            return f"fits {self.gpu}, {format_bytes(self.spare_bytes)} to spare"
        if self.verdict == "tight":
            return f"fits {self.gpu} only just: the allocator gives back its cache {times(self.retries)} to go on"
        if self.eager:
            return f"may not fit {self.gpu}: its compiled code, traced eagerly, runs out of memory{where(self.oom)}"
        if self.verdict == "unsure":
            return f"may not fit {self.gpu}: within its margin it runs out of memory{where(self.oom)}"
        return f"does not fit {self.gpu}: out of memory{where(self.oom)}"


def times(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def where(oom: OomReport | None) -> str:
    """Where a request failed, and its numbers, to follow `out of memory`."""
    if oom is None:
        return ""
    place = f" of `{oom.module}`" if oom.module else ""
    return (
        f" in {oom.phase or 'the beginning'}{place}, asking for {format_bytes(oom.request_bytes)} with "
        f"{format_bytes(oom.allocated_bytes)} allocated and {format_bytes(oom.reserved_bytes)} reserved"
    )


def judge(replay_input: ReplayInput, free: ReplayResult, margin: int) -> tuple[Fit, ReplayResult]:
    """The verdict for `replay_input.gpu`, and the replay whose numbers are reported.

    `free`: the replay with unlimited memory; `margin`: as of `margin_of`. Two more replays run only where the bound
    does not fit: one with the memory that a typical context leaves, one with that minus the margin.
    """
    gpu = replay_input.gpu
    usable, device = gpu.usable_bytes, free.peak_reserved_bytes + gpu.context.typical_bytes
    verdict: FitVerdict = "fits"
    retries, oom, result = 0, None, free
    if device + margin > usable or replay_input.stack.options.per_process_memory_fraction < 1:
        capacity = max(0, usable - gpu.context.typical_bytes)
        result = replay_input.replay(capacity)
        careful = replay_input.replay(max(0, capacity - margin))
        retries = max(result.retries, careful.retries)
        verdict = "tight" if retries or device + margin > usable else "fits"
        if careful.oom is not None:
            verdict, oom = "unsure", careful.oom
        if result.oom is not None:
            verdict, oom, result = "no", result.oom, free
    fit = Fit(
        gpu=gpu.name,
        verdict=verdict,
        usable_bytes=usable,
        reserved_bytes=free.peak_reserved_bytes,
        bound_bytes=device + margin,
        retries=retries,
        oom=oom,
    )
    return fit, result


def of_trace(fit: Fit, trace: MemoryTrace) -> Fit:
    """The verdict for what `trace` stands for: code that is compiled on a GPU and ran eagerly may need less."""
    if fit.verdict != "no" or COMPILED not in trace.header.runs_otherwise:
        return fit
    return replace(fit, verdict="unsure", eager=True)


def worst(fits: Sequence[Fit]) -> Fit:
    """The worst of a job's verdicts for one model of GPU; of equal ones, that with the larger bound."""
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

    `spread_bytes` and `split_bytes` are those of the `ReservedRange` on the requested GPU, used for all GPUs.
    `coverage`: as of `margin_of`. `instances`: include MIG instances.
    """
    made = capability_of(trace)
    seen: dict[object, tuple[ReplayInput, ReplayResult]] = {}
    found = []
    for gpu in (with_context(spec, stack, trace.header) for spec in _all_gpus(instances=instances)):
        replay_input, free = _replayed(trace, gpu, stack, seen)
        margin = margin_of(
            trace,
            gpu,
            free,
            spread_bytes,
            coverage,
            stack.cudnn_workspaces,
            split_bytes=split_bytes,
            torch_version=stack.torch_version,
        )
        fit, _ = judge(replay_input, free, margin.bytes)
        differs = made is not None and gpu.compute_capability != made
        found.append(of_trace(replace(fit, capability_differs=differs), trace))
    return tuple(sorted(found, key=lambda verdict: (-verdict.usable_bytes, verdict.gpu)))


def capability_of(trace: MemoryTrace) -> tuple[int, int] | None:
    """The compute capability that a trace was made for; None if unknown."""
    return trace.header.capability


def _all_gpus(*, instances: bool) -> Iterator[GpuSpec]:
    for spec in all_gpu_specs():
        yield spec
        for profile in spec.mig if instances else ():
            yield spec.instance(profile.name)


def _replayed(
    trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack, seen: dict[object, tuple[ReplayInput, ReplayResult]]
) -> tuple[ReplayInput, ReplayResult]:
    """The trace on `gpu`; GPUs with the same workspaces share one replay."""
    conv = conv_of(gpu, stack)
    sizes = tuple(conv(op) for op in trace.ops if op.kind.startswith("conv"))
    key = (gpu.cublas_workspace_bytes, sizes)
    if key not in seen:
        replay_input = make_replay_input(continue_training(trace, gpu, stack), gpu, stack)
        seen[key] = replay_input, replay_input.replay()
    replay_input, free = seen[key]
    return replace(replay_input, gpu=gpu), free
