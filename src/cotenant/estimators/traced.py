"""The default estimator: it traces the script, and replays the trace on the requested GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cotenant.allocator import ReplayResult
from cotenant.core.errors import TraceError, UsageError
from cotenant.core.estimate import Estimate, GpuEstimate
from cotenant.core.ports import EstimateRequest, TraceOptions
from cotenant.core.trace import Backend, MemoryTrace
from cotenant.core.units import format_bytes
from cotenant.estimators import null_gpu, several_programs
from cotenant.estimators.cudnn.query import CudnnQuery, installed_cudnn, query_cudnn
from cotenant.estimators.cudnn.sources import benchmark_warnings, query_warnings
from cotenant.estimators.fit import COMPILED, Fit, capability_of, judge, of_trace, worst
from cotenant.estimators.further_epochs import continue_training
from cotenant.estimators.margin import Margin, check_coverage, margin_of
from cotenant.estimators.replay_input import (
    context_warnings,
    devices_of,
    make_replay_input,
    on_device,
    software_stack,
    with_context,
)
from cotenant.estimators.roofline import with_activity
from cotenant.estimators.sensitivity import reserved_range_of
from cotenant.estimators.trace_cache import TraceCache, trace_key
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import GpuSpec, gpu_spec, sizes_of
from cotenant.osutil.cache_folder import cache_folder
from cotenant.tracing.data import data_options, length_histogram
from cotenant.tracing.process import shell_script
from cotenant.tracing.process.forkserver_client import ForkServerClient
from cotenant.tracing.process.program import Program, find_interpreter, find_program
from cotenant.tracing.process.provenance import SETTINGS
from cotenant.tracing.process.trace_script import trace_script as trace_program


class TracedEstimator:
    """Runs the job's script on fake CUDA tensors in the job's own Python.

    `cache` stores traces; without one, every estimate runs the script. With `show_output` the script always runs, since
    a cached trace prints nothing. `forkserver` runs scripts in forks of a process that has torch loaded. `coverage`:
    see `estimators.margin`; None: the default. `backend`: `trace`; `null-gpu`, see `estimators.null_gpu`; `auto`: the
    null GPU where a trace would leave out compiled code or an extension, and its environment is a CUDA build.
    `null_gpu_timeout_s`: its time limit; None: that of the request.

    Raises:
        UsageError: `coverage` is not a probability.
    """

    name = "traced"
    version = "30"

    def __init__(
        self,
        *,
        steps: int = 3,
        python: str | None = None,
        show_output: bool = False,
        torch_version: str | None = None,
        cache: TraceCache | None = None,
        coverage: float | None = None,
        forkserver: ForkServerClient | None = None,
        backend: Backend = "trace",
        null_gpu_timeout_s: float | None = None,
    ) -> None:
        check_coverage(coverage)
        self._forkserver = forkserver
        self._coverage = coverage
        self._steps = steps
        self._python = python
        self._show_output = show_output
        self._torch_version = torch_version
        self._cache = cache
        self._backend = backend
        self._null_gpu_timeout_s = null_gpu_timeout_s

    @classmethod
    def from_tracer(cls, tracer: TracedEstimator) -> TracedEstimator:
        """`tracer` itself: the options and the cache that scripts are run with are its own."""
        return tracer

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate; see `core.ports.Estimator`."""
        return self.explain(request).estimate

    def explain(self, request: EstimateRequest) -> TracedResult:
        """The estimate with its trace and replay."""
        gpu = gpu_spec(request.gpu)
        env: Mapping[str, str] = dict(request.env) or dict(os.environ)
        python = sys.executable
        if self._python is not None:  # as if its environment were activated: `torchrun` and `pip`'s tools are beside it
            python = find_interpreter(self._python, workdir=request.workdir, env=env)
            env = {**env, "PATH": f"{Path(python).parent}{os.pathsep}{env.get('PATH', os.defpath)}"}

        def explain_one(program: shell_script.ResolvedCommand) -> TracedResult:
            wanted = replace(request, command=program.command, workdir=program.workdir)
            recorded, from_cache = self._trace(wanted, gpu, program.env, python)
            return replace(self.on(recorded, gpu, env=program.env), from_cache=from_cache)

        commands = shell_script.resolve(request.command, workdir=request.workdir, env=env, gpus=request.gpus)
        return _with_warnings(several_programs.largest(commands, explain_one), _name_warnings(request.gpu, gpu))

    def _trace(
        self, request: EstimateRequest, gpu: GpuSpec, env: Mapping[str, str], python: str
    ) -> tuple[MemoryTrace, bool]:
        """The trace, and whether it comes from the cache. `python` runs what names no interpreter by a path."""
        is_chosen = self._python is not None
        program = find_program(request.command, workdir=request.workdir, env=env, python=python, is_chosen=is_chosen)
        if self._backend == "null-gpu":
            return self._run_on_null_gpu(program, request, gpu, env)
        try:
            recorded, from_cache = self._record(program, request, gpu, env)
        except TraceError as error:
            if self._backend != "auto" or error.kind != "unsupported":
                raise
            return self._prefer_null_gpu(program, request, gpu, env, "cannot be traced", error)
        why = null_gpu.why_not_traced(recorded) if self._backend == "auto" else ""
        if not why:
            return recorded, from_cache
        return self._prefer_null_gpu(program, request, gpu, env, why, (recorded, from_cache))

    def _prefer_null_gpu(
        self,
        program: Program,
        request: EstimateRequest,
        gpu: GpuSpec,
        env: Mapping[str, str],
        why: str,
        otherwise: tuple[MemoryTrace, bool] | TraceError,
    ) -> tuple[MemoryTrace, bool]:
        """The run on the null GPU, since the script `why`; where there is none, the trace or error `otherwise`."""
        try:
            recorded, from_cache = self._run_on_null_gpu(program, request, gpu, env)
        except (TraceError, UsageError) as error:
            if isinstance(otherwise, TraceError):
                raise otherwise from error
            recorded, from_cache = otherwise
            note = f"the script {why}, and was only traced: {error.message}"
        else:
            note = f"the script {why}, so that it ran on a null GPU in place of a trace (`--backend auto`)"
        return replace(recorded, warnings=(note, *recorded.warnings)), from_cache

    def _run_on_null_gpu(
        self, program: Program, request: EstimateRequest, gpu: GpuSpec, env: Mapping[str, str]
    ) -> tuple[MemoryTrace, bool]:
        """The run on the null GPU as a trace, and whether it comes from the cache."""
        runner = null_gpu.NullGpuRunner(null_gpu.default_cache())
        libraries = runner.libraries_for(program.python, sandbox=request.trace.sandbox)
        if self._null_gpu_timeout_s is not None:
            request = replace(request, timeout_s=self._null_gpu_timeout_s)

        def run(options: TraceOptions) -> MemoryTrace:
            return runner.run(
                program, libraries, request, gpu, fake_gpu=fake_gpu_of(gpu), options=options, env=env,
                show_output=self._show_output,
            )  # fmt: skip

        # Its trace depends on all that the libraries say of the GPU, and on the libraries.
        return self._through_cache(
            program, request, gpu, env, run, backend=f"null-gpu {libraries.preload[0].parent.name} {gpu.name}"
        )

    def _record(
        self, program: Program, request: EstimateRequest, gpu: GpuSpec, env: Mapping[str, str]
    ) -> tuple[MemoryTrace, bool]:
        """The trace, and whether it comes from the cache."""

        def run(options: TraceOptions) -> MemoryTrace:
            return trace_program(
                program,
                gpu=fake_gpu_of(gpu, request.gpus),
                options=options,
                workdir=request.workdir,
                env=env,
                timeout_s=request.timeout_s,
                show_output=self._show_output,
                forkserver=self._forkserver,
            )

        return self._through_cache(program, request, gpu, env, run)

    def _through_cache(
        self,
        program: Program,
        request: EstimateRequest,
        gpu: GpuSpec,
        env: Mapping[str, str],
        run: Callable[[TraceOptions], MemoryTrace],
        *,
        backend: str = "trace",
    ) -> tuple[MemoryTrace, bool]:
        """The cached trace, or that of `run`, which is then cached; and whether it was cached."""
        key = ""
        options = replace(options_of(request), steps=self._steps)
        if self._cache is not None:
            key = trace_key(
                program,
                workdir=request.workdir,
                env=env,
                capability=gpu.compute_capability,
                devices=request.gpus,
                steps=options.steps,
                options={**asdict(options), "backend": backend},
            )
            cached = None if self._show_output else self._cache.get(key, env)
            if cached is not None:
                return cached, True
        recorded = run(options)
        before = {name: env[name] for name in SETTINGS if name in env}
        recorded = replace(recorded, header=replace(recorded.header, settings_before=before))
        if self._cache is not None:
            self._cache.put(key, recorded, env)
        return recorded, False

    def on(self, recorded: MemoryTrace, gpu: GpuSpec, *, env: Mapping[str, str] | None = None) -> TracedResult:
        """The estimate of a recorded trace on `gpu`; no script runs.

        `env`: environment with the allocator settings; None: those that the trace was made with. Of several GPUs, the
        result is for the one with the largest bound; `estimate.per_gpu` lists all.
        """
        found = [
            replace(self._on_one(on_device(recorded, index), gpu, env), index=index) for index in devices_of(recorded)
        ]
        largest = max(found, key=lambda result: result.fit.bound_bytes)
        estimate = replace(largest.estimate, processes=recorded.header.processes or 1)
        estimate = with_activity(estimate, recorded, gpu)
        if len(found) == 1:
            return replace(largest, estimate=estimate)
        estimate = replace(
            estimate,
            per_gpu=tuple(map(_gpu_estimate, found)),
            warnings=(*estimate.warnings, *_other_gpu_warnings(found, largest)),
        )
        return replace(largest, estimate=estimate, gpus=tuple(found))

    def _on_one(self, recorded: MemoryTrace, gpu: GpuSpec, env: Mapping[str, str] | None = None) -> TracedResult:
        stack = software_stack(recorded.header, env=env, torch_version=self._torch_version)
        context = context_warnings(gpu, stack, recorded.header)
        gpu = with_context(gpu, stack, recorded.header)
        queried = self._query_cudnn(recorded, gpu)
        stack = replace(stack, cudnn_workspaces=queried.workspaces)
        continued = continue_training(recorded, gpu, stack)
        replay_input = make_replay_input(continued, gpu, stack)
        free = replay_input.replay()
        interval = reserved_range_of(continued, gpu, stack, free.peak_reserved_bytes)
        spread = interval.high_bytes - free.peak_reserved_bytes
        margin = margin_of(
            recorded,
            gpu,
            free,
            spread,
            self._coverage,
            stack.cudnn_workspaces,
            split_bytes=interval.split_bytes,
            torch_version=stack.torch_version,
        )
        fit, result = judge(replay_input, free, margin.bytes)
        cudnn = (*query_warnings(queried), *benchmark_warnings(recorded, gpu, stack.cudnn_workspaces))
        traced = free.peak_reserved_bytes
        if continued is not recorded:
            traced = make_replay_input(recorded, gpu, stack).peak_reserved_bytes()
        own = null_gpu.warnings_of(recorded, traced)
        made = capability_of(recorded)
        if made is not None and made != gpu.compute_capability:
            fit = replace(fit, capability_differs=True)
        fit = of_trace(fit, recorded)
        return TracedResult(
            estimate=_estimate(result, fit, gpu, recorded, margin, (*stack.warnings, *context, *cudnn, *own)),
            trace=recorded,
            replay=result,
            replay_input=replay_input,
            reserved_range=interval,
            fit=fit,
            coverage=self._coverage,
        )

    def _query_cudnn(self, recorded: MemoryTrace, gpu: GpuSpec) -> CudnnQuery:
        """Workspaces from the cuDNN that the job would load; none if it is another torch's or cannot be queried."""
        calls = [op for op in recorded.ops if op.kind.startswith("conv")]
        torch_folder = recorded.header.torch_folder
        if not calls or torch_folder is None or self._torch_version is not None:
            return CudnnQuery()
        library = installed_cudnn(torch_folder)
        if library is None:
            return CudnnQuery()
        folder = None if self._cache is None else self._cache.folder.parent / "cudnn"
        # A new trace needs new answers, but no new libraries: the compiler takes 0.6 s of CPU time for them.
        return query_cudnn(library, gpu, calls, folder=folder, libraries=folder or _writable_cache("cudnn"))


def _name_warnings(name: str, gpu: GpuSpec) -> tuple[str, ...]:
    """That `name` may mean another GPU than `gpu`, if it may."""
    others = " or ".join(size for size in sizes_of(name) if not gpu.name.startswith(size))
    return (f"`{name}` is taken as {gpu.name}; write {others} if it is that",) if others else ()


def _with_warnings(result: TracedResult, warnings: tuple[str, ...]) -> TracedResult:
    if not warnings:
        return result
    return replace(result, estimate=replace(result.estimate, warnings=(*result.estimate.warnings, *warnings)))


def _writable_cache(name: str) -> Path | None:
    """The user's folder for files of a kind, if this process can write there; None: it cannot, or there is no home."""
    folder = cache_folder(name)
    if folder is None:
        return None
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return folder if os.access(existing, os.W_OK | os.X_OK) else None


def _other_gpu_warnings(found: Sequence[TracedResult], largest: TracedResult) -> tuple[str, ...]:
    """A warning for a GPU whose verdict is worse than that of `largest`."""
    least = worst([result.fit for result in found])
    if least.verdict == largest.fit.verdict:
        return ()
    index = next(result.index for result in found if result.fit is least)
    return (f"GPU {index} {least.sentence}",)


def _gpu_estimate(result: TracedResult) -> GpuEstimate:
    estimate = result.estimate
    return GpuEstimate(
        index=result.index,
        peak_allocated_bytes=result.replay.peak_allocated_bytes,
        peak_reserved_bytes=estimate.peak_reserved_bytes,
        device_bytes=estimate.device_bytes,
        bound_bytes=estimate.bound_bytes,
    )


def options_of(request: EstimateRequest) -> TraceOptions:
    """The request's options for the tracer, with the content of a file of lengths.

    Raises:
        UsageError: `synthetic_data` or `sequence_lengths` cannot be parsed.
    """
    options = request.trace
    lengths = length_histogram.inline_histogram(options.sequence_lengths, request.workdir)
    data_options.validate_options(options.synthetic_data, lengths)
    return replace(options, sequence_lengths=lengths)


def _fit_warnings(fit: Fit) -> tuple[str, ...]:
    """Warnings that follow from a verdict."""
    found = [f"traced as for another compute capability than {fit.gpu}'s"] if fit.capability_differs else []
    if fit.verdict == "no" or fit.eager:
        found.append(f"{fit.sentence}; the estimate is for unlimited memory")
    elif fit.verdict != "fits":
        found.append(f"{fit.sentence}; with unlimited memory it would reserve {format_bytes(fit.reserved_bytes)}")
    return tuple(found)


def _estimate(
    result: ReplayResult,
    fit: Fit,
    gpu: GpuSpec,
    recorded: MemoryTrace,
    margin: Margin,
    warnings: tuple[str, ...],
) -> Estimate:
    """The estimate from `result`; the bound is that of the verdict, at most the whole GPU where the job fits."""
    device = result.peak_reserved_bytes + gpu.context.typical_bytes
    bound = min(fit.bound_bytes, fit.usable_bytes) if fit.verdict in {"fits", "tight"} else fit.bound_bytes
    return Estimate(
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        context_bytes=gpu.context.typical_bytes,
        margin_bytes=max(0, bound - device),
        coverage=margin.coverage,
        estimator=TracedEstimator.name,
        version=TracedEstimator.version,
        gpu=gpu.name,
        breakdown_bytes=dict(result.breakdown_bytes),
        warnings=(*recorded.warnings, *warnings, *margin.warnings, *_fit_warnings(fit)),
        partial=recorded.partial,
        eager=COMPILED in recorded.header.runs_otherwise,
    )


def fake_gpu_of(gpu: GpuSpec, count: int = 1) -> dict[str, object]:
    """The GPU that a traced script sees, for `tracing.device.cuda_api`."""
    return {
        "name": gpu.nvml_names[0] if gpu.nvml_names else gpu.name,
        "total_bytes": gpu.torch_total_bytes or gpu.memory_total_bytes,
        "capability": list(gpu.compute_capability),
        "sm_count": gpu.sm_count,
        "count": count,
        "allocator_bytes": gpu.usable_bytes - gpu.context.typical_bytes,
        "nvml_total_bytes": gpu.memory_total_bytes,
    }
