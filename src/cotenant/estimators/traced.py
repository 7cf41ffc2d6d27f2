"""The estimator of the product: the script is traced, and its trace replayed on the wanted GPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from cotenant.allocator import ReplayResult, parse_options, replay, rules_for
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB, format_bytes
from cotenant.estimators.lowering import blas_workspaces, lower
from cotenant.estimators.profiles import DeviceProfile, profile
from cotenant.estimators.workspaces import ConvRule
from cotenant.tracing.program import find_program
from cotenant.tracing.run import trace as trace_program

COVERAGE = 0.99
_MARGIN = 0.01
_CONV_MARGIN = 0.04
_CONV_MARGIN_BYTES = 48 * MiB
"""Shares of the reserved bytes; the second, and the bytes, for traces with convolutions, whose workspaces are a rule.

On 32 published measurements (A100, 2025-09) the rule is low by 2.5 % at most, but for two small networks at 7.5 and
5.2 %, that is 64 and 56 MiB.
"""
_DRIVER_BYTES = 150 * MiB
"""Of a GPU that an allocator never gets, beside the context: measured on two cards by others (xMem)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedResult:
    """An estimate with what it came from."""

    estimate: Estimate
    trace: MemoryTrace
    replay: ReplayResult


class TracedEstimator:
    """Runs the job's script on fake CUDA tensors in the job's own Python."""

    name = "traced"
    version = "1"

    def __init__(
        self, *, steps: int = 3, python: str | None = None, show_output: bool = False, torch_version: str | None = None
    ) -> None:
        self._steps = steps
        self._python = python
        self._show_output = show_output
        self._torch_version = torch_version

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate; see `core.ports.Estimator`."""
        return self.explain(request).estimate

    def explain(self, request: EstimateRequest) -> TracedResult:
        """The same, with trace and replay."""
        gpu = profile(request.gpu)
        env = dict(request.env) or dict(os.environ)
        program = find_program(request.command, workdir=request.workdir, env=env, python=self._python or sys.executable)
        recorded = trace_program(
            program,
            card=card_of(gpu),
            workdir=request.workdir,
            env=env,
            steps=self._steps,
            timeout_s=request.timeout_s,
            show_output=self._show_output,
        )
        return self.on(recorded, gpu)

    def on(self, recorded: MemoryTrace, gpu: DeviceProfile) -> TracedResult:
        """What a recorded trace needs on `gpu`; no script is run."""
        header = recorded.header
        version = self._torch_version or str(header["torch"])
        rules = rules_for(version)
        options = parse_options(str(header.get("alloc_conf", "")), version)
        blas = blas_workspaces(gpu.cublas_workspace_bytes, version, str(header.get("cublas_workspace_config", "")))
        conv = ConvRule(capability=gpu.compute_capability, sm_count=gpu.sm_count)
        events = tuple(lower(recorded, blas=blas, conv=conv))
        capacity = (gpu.torch_total_bytes or gpu.memory_total_bytes) - gpu.context.typical_bytes - _DRIVER_BYTES
        result = replay(events, options=options, rules=rules, capacity_bytes=capacity)
        warnings = list(recorded.warnings)
        if result.oom is not None:
            warnings.append(
                f"does not fit {gpu.name}: out of memory in {result.oom.phase}"
                f"{f' of `{result.oom.module}`' if result.oom.module else ''}, with "
                f"{format_bytes(result.reserved_bytes)} reserved; the estimate is for a card without limit"
            )
            result = replay(events, options=options, rules=rules)
        elif result.retries:
            warnings.append(f"close to the limit of {gpu.name}: the allocator must give back its cache to go on")
        estimate = _estimate(result, gpu, recorded, tuple(warnings))
        return TracedResult(estimate=estimate, trace=recorded, replay=result)


def _estimate(result: ReplayResult, gpu: DeviceProfile, recorded: MemoryTrace, warnings: tuple[str, ...]) -> Estimate:
    convolves = any(op.kind.startswith("conv") for op in recorded.ops)
    share, extra_bytes = (_CONV_MARGIN, _CONV_MARGIN_BYTES) if convolves else (_MARGIN, 0)
    context = gpu.context
    margin = int(result.peak_reserved_bytes * share) + extra_bytes + context.high_bytes - context.typical_bytes
    return Estimate(
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        context_bytes=context.typical_bytes,
        margin_bytes=margin,
        coverage=COVERAGE,
        estimator=TracedEstimator.name,
        version=TracedEstimator.version,
        gpu=gpu.name,
        breakdown_bytes=dict(result.breakdown_bytes),
        warnings=warnings,
        partial=recorded.partial,
    )


def card_of(gpu: DeviceProfile, count: int = 1) -> dict[str, object]:
    """What a script sees of `gpu`."""
    return {
        "name": gpu.nvml_names[0] if gpu.nvml_names else gpu.name,
        "total_bytes": gpu.torch_total_bytes or gpu.memory_total_bytes,
        "capability": list(gpu.compute_capability),
        "sm_count": gpu.sm_count,
        "count": count,
    }
