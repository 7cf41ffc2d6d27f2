"""A trace on one GPU, under one set of allocator settings: the input of every replay."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cotenant.allocator import (
    AllocatorOptions,
    AllocatorRules,
    ReplayResult,
    count_growing_repeats,
    parse_options,
    peak_reserved_bytes,
    replay,
    rules_for,
)
from cotenant.allocator import settings_text as allocator_text
from cotenant.core.trace import MemoryEvent, MemoryTrace, TraceHeader
from cotenant.core.units import format_bytes
from cotenant.estimators.attention_splits import split_buffers
from cotenant.estimators.cudnn.query import CudnnWorkspaces
from cotenant.estimators.cudnn.table import cudnn_of_torch, is_cudnn_known
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.estimators.lowering import BlasWorkspaces, ConvWorkspace, blas_workspaces, lower
from cotenant.estimators.nccl import nccl_warnings, with_nccl
from cotenant.estimators.reductions import ReductionRule, threads_of_sm
from cotenant.gpu_specs import GpuSpec

_ASYNC = re.compile(r"backend\s*:\s*cudaMallocAsync\s*,?")
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_CACHE = "TORCH_CUBLAS_WORKSPACE_CACHE"
_LOADING = "CUDA_MODULE_LOADING"
_ALLOC = "PYTORCH_CUDA_ALLOC_CONF"
_ON_ALL_GPUS = frozenset({"phase", "empty_cache"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareStack:
    """The software stack that a trace is replayed for.

    Attributes:
        alloc_conf: settings of the allocator as text; `options`: parsed.
        cublas_config: CUBLAS_WORKSPACE_CONFIG.
        caches_cublas: TORCH_CUBLAS_WORKSPACE_CACHE is 1, without which cuBLAS holds no workspaces from torch 2.15 on.
        loads_eagerly: whether CUDA loads all kernels when it starts, not each with its first use: by
            CUDA_MODULE_LOADING, which torch sets to LAZY where it is not set (torch/cuda/__init__.py). A driver before
            515 does so in any case, which is not known here.
        cudnn_workspaces: as the job's own cuDNN answered for its convolutions; None: it was not or cannot be queried.
        warnings: what is unknown or not modeled, as sentences.
    """

    torch_version: str
    alloc_conf: str
    cublas_config: str
    options: AllocatorOptions
    rules: AllocatorRules
    warnings: tuple[str, ...] = ()
    cudnn_workspaces: CudnnWorkspaces | None = None
    loads_eagerly: bool = False
    caches_cublas: bool = False


def software_stack(
    header: TraceHeader, *, env: Mapping[str, str] | None = None, torch_version: str | None = None
) -> SoftwareStack:
    """The stack in a trace's header, with the settings of `env` except those that the script set itself.

    Raises:
        UsageError: torch refuses the allocator's settings, so the job would not start.
    """
    version = torch_version or header.torch_version
    settings = _settings(header, env)
    made = make_software_stack(version, allocator_text(settings, version), settings.get(_CUBLAS, ""))
    made = replace(
        made, loads_eagerly=settings.get(_LOADING) == "EAGER", caches_cublas=settings.get(_CUBLAS_CACHE) == "1"
    )
    if header.memory_fraction is None:
        return made
    return replace(made, options=replace(made.options, per_process_memory_fraction=header.memory_fraction))


def make_software_stack(torch_version: str, alloc_conf: str, cublas_config: str = "") -> SoftwareStack:
    """A stack with these settings; raises as `software_stack` does."""
    rules = rules_for(torch_version)
    warnings = []
    if rules.beyond_table:
        warnings.append(
            f"torch {torch_version} is newer than the allocator that was read; its rules are assumed to be the same"
        )
    known = _ASYNC.sub("", alloc_conf)
    if known != alloc_conf:
        warnings.append(
            "`backend:cudaMallocAsync` is not modeled: there the driver decides what is reserved; "
            "this is for the native allocator"
        )
    return SoftwareStack(
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        cublas_config=cublas_config,
        options=parse_options(known, torch_version),
        rules=rules,
        warnings=tuple(warnings),
    )


def _settings(header: TraceHeader, env: Mapping[str, str] | None) -> dict[str, str]:
    after, before = header.settings, header.settings_before
    if after is None:
        return {_ALLOC: header.alloc_conf or "", _CUBLAS: header.cublas_workspace_config or ""}
    if env is None or before is None:
        return dict(after)
    own = {name: value for name, value in after.items() if before.get(name) != value}
    return {**env, **own}


def with_context(gpu: GpuSpec, stack: SoftwareStack, header: TraceHeader) -> GpuSpec:
    """`gpu` with the CUDA context of a process of this stack, NCCL's memory and what extensions allocate included."""
    gpu = with_nccl(gpu.with_eager_context() if stack.loads_eagerly else gpu, header)
    return replace(gpu, context=gpu.context.plus(header.outside_bytes, header.outside_bytes, header.outside_bytes))


def context_warnings(gpu: GpuSpec, stack: SoftwareStack, header: TraceHeader) -> tuple[str, ...]:
    """What is not measured of the context of `gpu`, and what NCCL takes of it, as sentences."""
    found = nccl_warnings(header, gpu)
    context = gpu.with_eager_context().context
    if not stack.loads_eagerly or not context.derived:
        return found
    interval = f"{format_bytes(context.low_bytes)} to {format_bytes(context.high_bytes)}"
    return (f"the CUDA context with all kernels loaded at once is assumed on {gpu.name}: {interval}", *found)


def blas_of(gpu: GpuSpec, stack: SoftwareStack) -> BlasWorkspaces:
    """The cuBLAS workspaces on `gpu`."""
    return blas_workspaces(
        gpu.cublas_workspace_bytes, stack.torch_version, stack.cublas_config, cached=stack.caches_cublas
    )


def conv_of(gpu: GpuSpec, stack: SoftwareStack | None = None, *, second_guess: bool = False) -> ConvRule:
    """The convolution workspaces on `gpu`, by the cuDNN answers of `stack` where it has them; `second_guess` as of
    `ConvRule`.
    """
    return ConvRule(
        capability=gpu.compute_capability,
        sm_count=gpu.sm_count,
        second_guess=second_guess,
        cudnn_workspaces=None if stack is None else stack.cudnn_workspaces,
        version=None if stack is None else cudnn_of_torch(stack.torch_version),
        other_sizes=stack is not None and is_cudnn_known(stack.torch_version),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInput:
    """A trace on one GPU, with its library calls turned into allocations.

    Attributes:
        spare: storages that a library does without where memory runs out.
        descending: whether the driver's addresses descend; their order breaks ties between free blocks.
    """

    gpu: GpuSpec
    stack: SoftwareStack
    events: tuple[MemoryEvent, ...]
    optional_storages: frozenset[int] = frozenset()
    descending: bool = True

    def with_settings(self, alloc_conf: str) -> ReplayInput:
        """The same input with other allocator settings; raises as `software_stack` does."""
        made, now = make_software_stack(self.stack.torch_version, alloc_conf, self.stack.cublas_config), self.stack
        stack = replace(
            made,
            cudnn_workspaces=now.cudnn_workspaces,
            loads_eagerly=now.loads_eagerly,
            caches_cublas=now.caches_cublas,
        )
        return replace(self, stack=stack)

    def replay(self, capacity_bytes: int | None = None) -> ReplayResult:
        """Replay through the allocator with at most `capacity_bytes`; None: unlimited, whatever the settings say."""
        return replay(
            self.events,
            options=self.stack.options if capacity_bytes is not None else self._without_fraction,
            rules=self.stack.rules,
            capacity_bytes=capacity_bytes,
            total_bytes=self.gpu.usable_bytes,
            optional_storages=self.optional_storages,
            descending=self.descending,
        )

    def peak_reserved_bytes(self) -> int:
        """That of `replay` with unlimited memory, and no more."""
        return peak_reserved_bytes(
            self.events,
            options=self._without_fraction,
            rules=self.stack.rules,
            total_bytes=self.gpu.usable_bytes,
            descending=self.descending,
            optional_storages=self.optional_storages,
        )

    def count_growing_repeats(self, start: int, carried: Collection[int]) -> int:
        """How often the events from `start` on come again until no more is reserved, with unlimited memory.

        See `allocator.count_growing_repeats`.
        """
        return count_growing_repeats(
            self.events[:start],
            self.events[start:],
            carried,
            options=self._without_fraction,
            rules=self.stack.rules,
            total_bytes=self.gpu.usable_bytes,
            descending=self.descending,
            optional_storages=self.optional_storages,
        )

    @property
    def _without_fraction(self) -> AllocatorOptions:
        options = self.stack.options
        if options.per_process_memory_fraction == 1:
            return options
        return replace(options, per_process_memory_fraction=1.0)


def make_replay_input(
    trace: MemoryTrace,
    gpu: GpuSpec,
    stack: SoftwareStack,
    *,
    blas: BlasWorkspaces | None = None,
    conv: ConvWorkspace | None = None,
) -> ReplayInput:
    """`trace` on `gpu`, with the default workspaces or with those given."""
    optional_storages: set[int] = set()
    rule = conv_of(gpu, stack)
    events = lower(
        trace,
        blas=blas or blas_of(gpu, stack),
        conv=conv or rule,
        reduction=ReductionRule(sm_count=gpu.sm_count, sm_threads=threads_of_sm(gpu.compute_capability)),
        attention=functools.partial(split_buffers, sm_count=gpu.sm_count),
        trial=rule.trial_bytes if any(op.params.get("benchmark") for op in trace.ops) else None,
        free_bytes=gpu.usable_bytes - gpu.context.typical_bytes,
        optional_storages=optional_storages,
    )
    return ReplayInput(gpu=gpu, stack=stack, events=tuple(events), optional_storages=frozenset(optional_storages))


def devices_of(trace: MemoryTrace) -> tuple[int, ...]:
    """Indices of the GPUs with any allocation; 0 if there is none."""
    return tuple(sorted({event.device for event in trace.events if event.action == "alloc"})) or (0,)


def on_device(trace: MemoryTrace, index: int) -> MemoryTrace:
    """The events of `trace` on GPU `index`, renumbered to 0. `empty_cache` applies to all GPUs."""
    if devices_of(trace) == (0,) and index == 0:
        return trace
    numbers = [
        number for number, event in enumerate(trace.events) if event.device == index or event.action in _ON_ALL_GPUS
    ]
    events = tuple(
        event if event.device == 0 else event._replace(device=0) for event in map(trace.events.__getitem__, numbers)
    )
    end = trace.header.epoch_end
    header = trace.header if end is None else replace(trace.header, epoch_end=bisect.bisect_left(numbers, end))
    return replace(trace, events=events, header=header)
