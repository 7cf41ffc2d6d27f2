"""A training script's memory, as a list of events that no GPU had to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Action = Literal["alloc", "free", "op", "phase", "empty_cache"]

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
        action: `alloc` and `free` of a storage; `op`: a call that takes a workspace, not a storage, and whose
            bytes depend on the GPU; `phase`: a new phase begins; `empty_cache`: `torch.cuda.empty_cache()`.
        storage_id: of the storage; for `op` the index into `MemoryTrace.ops`; otherwise -1.
        bytes: requested bytes of the storage; 0 for the other actions.
        category: one of `CATEGORIES` for `alloc`; otherwise empty.
        phase: `load`, `forward`, `backward`, `step`, ...
        module: dotted name of the innermost module, or empty.
        stream: CUDA stream; 0 is the default stream, a negative one the private pool of CUDA graphs.
        device: index of the GPU, 0 for the first.
    """

    action: Action
    storage_id: int
    bytes: int
    category: str
    phase: str
    module: str
    stream: int
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """A library call that asks the allocator for a workspace on a real GPU.

    Attributes:
        kind: `gemm` or `gemm_lt` (cuBLAS handle of `thread`), `conv_forward`, `conv_dgrad`, `conv_wgrad`, `reduction`.
        thread: `main` or `autograd`: cuBLAS keeps a handle, and so a workspace, for each.
        params: what decides the size: for convolutions `x`, `w`, `y` (shapes), `stride`, `padding`, `dilation`,
            `groups`, `dtype`, `channels_last`, `transposed`, `benchmark`, `deterministic`, `allow_tf32`; for reductions
            `shape`, `strides`, `offset`, `dims`, `item_bytes`, `sum_bytes`.
    """

    kind: str
    thread: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Events of one process, and what was true when they were recorded.

    Attributes:
        events: in program order; every `free` names an `alloc` before it.
        ops: distinct library calls, named by `op` events.
        header: `torch`, `python`, `steps` (optimizer steps traced), `devices`, `capability`, versions of the
            libraries that the script imported, environment settings that matter to the allocator.
        warnings: what was assumed or not seen, as sentences.
        partial: the script ended before the trace was complete.
    """

    events: tuple[MemoryEvent, ...]
    ops: tuple[LibraryCall, ...]
    header: Mapping[str, object]
    warnings: tuple[str, ...] = ()
    partial: bool = False
