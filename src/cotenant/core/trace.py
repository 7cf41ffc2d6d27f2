"""The memory of a training script, as a list of events that no GPU had to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Action = Literal["alloc", "free", "op", "phase", "empty_cache"]

Backend = Literal["trace", "null-gpu", "auto"]
"""What runs a script for its trace: fake tensors; PyTorch's CUDA build on a null GPU; the latter where the former would
leave out what the script runs."""
CompiledCode = Literal["auto", "eager", "inductor"]
"""What a trace runs for code of `torch.compile`: the model as it is; what PyTorch's compiler makes of it; or `auto`:
the latter in tried versions of torch, and the former for what fails."""

CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer state",
    "activation",
    "input",
    "buffer",
    "temporary",
    "workspace",
)


class MemoryEvent(NamedTuple):
    """One thing that happened to memory; a tuple, because a trace has 10^4 to 10^6 of them.

    Attributes:
        action: `alloc` and `free` of a storage; `op`: a library call, whose workspace depends on the GPU; `phase`: a
            new phase begins; `empty_cache`: `torch.cuda.empty_cache()`.
        storage_id: of the storage that `alloc` or `free` is about; otherwise -1.
        bytes: requested bytes of the storage; 0 for the other actions.
        category: one of `CATEGORIES` for `alloc`; otherwise empty.
        phase: `load`, `forward`, `backward`, `step`, ...
        module: dotted name of the innermost module, or empty.
        stream: CUDA stream; 0 is the default stream, a negative one a private pool, as of CUDA graphs.
        device: index of the GPU, 0 for the first.
        op_id: for `op`, the index of the call in `MemoryTrace.ops`; otherwise -1.
    """

    action: Action
    storage_id: int
    bytes: int
    category: str
    phase: str
    module: str
    stream: int
    device: int
    op_id: int = -1


def part_of(category: str, module: str) -> str:
    """The part of memory that a storage belongs to: its category, and the module that allocated it, if one ran."""
    return f"{category} {module}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """A library call that allocates a workspace from the caching allocator on a real GPU.

    Attributes:
        kind: `gemm` or `gemm_lt` (cuBLAS handle of `thread`), `conv_forward`, `conv_dgrad`, `conv_wgrad`, `reduction`,
            `flash_attention`.
        thread: `main` or `autograd`: cuBLAS has a handle, and so a workspace, for each.
        params: what decides the size: for convolutions `x`, `w`, `y` (shapes), `stride`, `padding`, `dilation`,
            `groups`, `dtype`, `channels_last`, `transposed`, `benchmark`, `deterministic`, `allow_tf32`; for reductions
            `shape`, `strides`, `offset`, `dims`, `item_bytes`, `sum_bytes`.
    """

    kind: str
    thread: str
    params: Mapping[str, object] = field(default_factory=dict)


KernelKind = Literal["product", "memory"]
"""Kernels that multiply matrices, convolutions and attention included; and others, which are bound by memory."""


class KernelGroup(NamedTuple):
    """Equal kernels of one optimizer step on the first GPU.

    Attributes:
        dtype: of the result, such as `float32`; empty where there is none.
        times: how many there are.
        flops, bytes: operations, and bytes that are read and written, of each.
        results: elements of the result of each.
    """

    kind: KernelKind
    dtype: str
    times: int
    flops: float
    bytes: int
    results: int


class LayerCall(NamedTuple):
    """A call of a `torch.nn` layer in the forward pass.

    Attributes:
        kind: name of the layer's class.
        parameters: elements of its parameters that no earlier call has used.
        output_shape: of its first output tensor, the batch first; empty if there is none.
    """

    kind: str
    parameters: int
    output_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclUsage:
    """What the script does with NCCL.

    Attributes:
        group_sizes: GPUs of each process group that a collective used, two or more.
        max_channels: NCCL_MAX_CTAS, or else NCCL_MAX_NCHANNELS; None: not set.
        buffer_bytes: NCCL_BUFFSIZE; None: not set.
    """

    group_sizes: tuple[int, ...]
    max_channels: int | None = None
    buffer_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What was true when a trace was recorded; None: not known.

    Attributes:
        torch_version: e.g. `2.13.0+cpu`; `cuda_version` is None for a CPU build.
        torch_folder: the package's folder.
        gpu: name of the simulated GPU; `capability`: its compute capability; `gpus`: how many of them the process saw.
        processes: of the distributed job, of which one was traced.
        steps: optimizer steps traced.
        epoch_end: events before the end of the traced epoch, where another one follows it that was not traced.
        memory_fraction: set by `torch.cuda.set_per_process_memory_fraction`.
        oom_raised: the script got an out-of-memory error, so the trace holds for this GPU only.
        libraries: versions of the libraries that the script imported, by name.
        layers: calls of layers in one forward pass.
        sources: (path, digest) of each imported file that is of the user; the digest is None for an unreadable one.
        site_folders: folders of the installed packages.
        settings: environment variables for the allocator and cuBLAS at the end of the trace; `settings_before`: in the
            environment that the script was started with.
        backend: `trace`, or `null-gpu`: the events are PyTorch's own memory history, from its CUDA build on a null GPU.
        counted_reserved_bytes: what PyTorch's allocator reserved there at most.
        outside_bytes: what other code allocated there at most, such as an extension that calls `cudaMalloc`.
        runs_otherwise: what the script does otherwise on a GPU than in the trace: `compiled` code, an `extension`.
        compiled: code of `torch.compile` ran in the trace as PyTorch's compiler makes it.
        lines: the script's line that allocated most of each part, such as `train.py, line 12`, by category and module.
        kernels: of one optimizer step, as operators that PyTorch does not compile; empty where not counted.
        alloc_conf, cublas_workspace_config: the same two settings at the start of the trace.
    """

    torch_version: str
    torch_folder: str | None = None
    cuda_version: str | None = None
    python_version: str | None = None
    gpu: str | None = None
    capability: tuple[int, int] | None = None
    gpus: int | None = None
    processes: int | None = None
    steps: int | None = None
    epoch_end: int | None = None
    nccl: NcclUsage | None = None
    memory_fraction: float | None = None
    oom_raised: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[LayerCall, ...] = ()
    sources: tuple[tuple[str, str | None], ...] | None = None
    site_folders: tuple[str, ...] | None = None
    settings: Mapping[str, str] | None = None
    settings_before: Mapping[str, str] | None = None
    alloc_conf: str | None = None
    cublas_workspace_config: str | None = None
    backend: str = "trace"
    counted_reserved_bytes: int | None = None
    outside_bytes: int = 0
    runs_otherwise: tuple[str, ...] = ()
    compiled: bool = False
    lines: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[KernelGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """The events of one process.

    Attributes:
        events: in program order; every `free` names an `alloc` before it.
        ops: distinct library calls; `op` events name them by index.
        warnings: what was assumed or left out, as sentences.
        partial: the script ended before the trace was complete.
    """

    events: tuple[MemoryEvent, ...]
    ops: tuple[LibraryCall, ...]
    header: TraceHeader
    warnings: tuple[str, ...] = ()
    partial: bool = False
