"""What the default estimator answers: an estimate, with the trace and the replays that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.allocator import ReplayResult
from cotenant.core.estimate import Estimate
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.cudnn.sources import workspace_sources
from cotenant.estimators.fit import Fit, fits_on, worst
from cotenant.estimators.nccl import NcclBytes, nccl_bytes
from cotenant.estimators.replay_input import ReplayInput, make_replay_input
from cotenant.estimators.sensitivity import ReservedRange
from cotenant.gpu_specs import ContextBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedResult:
    """An estimate with the trace and the replays that it comes from.

    Attributes:
        replay: whose peaks are the estimate: on this GPU where the job fits, else with unlimited memory.
        replay_input: its input, for further replays; may have iterations that were not traced.
        reserved_range: of the reserved bytes with unlimited memory; `fit`: the verdict for the GPU.
        coverage: as requested; None: the default.
        from_cache: the trace comes from the cache.
        index: the GPU of the process that this is about; `gpus`: the results for each GPU, where it uses several.
    """

    estimate: Estimate
    trace: MemoryTrace
    replay: ReplayResult
    replay_input: ReplayInput
    reserved_range: ReservedRange
    fit: Fit
    coverage: float | None = None
    from_cache: bool = False
    index: int = 0
    gpus: tuple[TracedResult, ...] = ()

    @property
    def traced_input(self) -> ReplayInput:
        """`replay_input` without the iterations that were not traced."""
        return make_replay_input(self.trace, self.replay_input.gpu, self.replay_input.stack)

    @property
    def spread_bytes(self) -> int:
        """How far small changes raise the reserved bytes."""
        return self.reserved_range.high_bytes - self.fit.reserved_bytes

    @property
    def workspaces(self) -> str | None:
        """Where the workspaces of the convolutions come from, as a sentence; None without convolutions."""
        return workspace_sources(self.trace, self.replay_input.gpu, self.replay_input.stack.cudnn_workspaces)

    @property
    def context(self) -> ContextBytes:
        """The CUDA context as an interval, with NCCL's part."""
        return self.replay_input.gpu.context

    @property
    def nccl(self) -> NcclBytes | None:
        """NCCL's part of the context; None without process groups of several GPUs."""
        return nccl_bytes(self.trace.header, self.replay_input.gpu)

    @property
    def capacity_bytes(self) -> int | None:
        """Memory limit of `replay`: what the context leaves of the GPU; None: unlimited."""
        if self.fit.verdict == "no" or self.fit.eager:
            return None
        return max(0, self.fit.usable_bytes - self.estimate.context_bytes)

    def _repr_html_(self) -> str:
        """For Jupyter: the page of `estimators.estimate_page`, in a frame that keeps its styles to itself."""
        from html import escape

        from cotenant.estimators.estimate_page import estimate_page

        text = estimate_page(self, f"Estimate for {self.estimate.gpu}").text()
        return f'<iframe srcdoc="{escape(text)}" width="100%" height="900" frameborder="0"></iframe>'

    def fits_on(self) -> tuple[Fit, ...]:
        """Verdicts for all known GPUs, largest first; of several GPUs of the process, the worst counts.

        MIG instances are listed only for processes on one GPU: CUDA shows a process at most one instance.
        """
        by_name: dict[str, list[Fit]] = {}
        for gpu in self.gpus or (self,):
            for row in fits_on(
                gpu.trace,
                gpu.replay_input.stack,
                gpu.spread_bytes,
                gpu.coverage,
                split_bytes=gpu.reserved_range.split_bytes,
                instances=not self.gpus,
            ):
                by_name.setdefault(row.gpu, []).append(row)
        return tuple(map(worst, by_name.values()))
