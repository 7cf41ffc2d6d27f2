"""Turns the library calls of a trace into allocations, for one GPU and one version of the libraries.

The result has only events that the allocator knows: alloc, free, phase, empty_cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace
from cotenant.core.units import KiB, MiB

ConvWorkspace = Callable[[LibraryCall], int]
"""Bytes of workspace of a convolution call."""

TrialBytes = Callable[[LibraryCall, int], int | None]
"""Bytes held while plans for a convolution are measured, of so many free ones; None where none are measured."""

Buffers = Callable[[LibraryCall], tuple[int, ...]]
"""Bytes of the buffers that a kernel allocates, in order."""

_LT_BYTES = 1 * MiB
_LT_HELD_SINCE, _SHARED_SINCE, _PER_CALL_SINCE = (2, 9), (2, 12), (2, 15)
_CAPTURE_STREAM = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasWorkspaces:
    """Workspaces of cuBLAS and cuBLASLt.

    Attributes:
        handle_bytes: held by each handle; there is one for each thread that multiplied matrices and each stream.
        lt_bytes: held during a cuBLASLt call; 0 where it shares the workspace of the handle.
        per_call: a call of cuBLAS takes `handle_bytes` while it runs, and handles hold nothing.
        holds_lt: a handle holds `lt_bytes` from its first cuBLASLt call on.
    """

    handle_bytes: int
    lt_bytes: int
    per_call: bool = False
    holds_lt: bool = False


def blas_workspaces(default_bytes: int, torch_version: str, config: str, *, cached: bool = False) -> BlasWorkspaces:
    """The sizes for a GPU whose default is `default_bytes`; `config` is CUBLAS_WORKSPACE_CONFIG.

    cuBLASLt has 1 MiB of its own to torch 2.11: to 2.8 for a call, then held. From 2.12 on it shares the workspace of
    the handle: so 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0 and 2.14.1 on a null A100. From 2.15 on a call
    takes its workspace, and cuBLASLt one of its own, unless they are `cached` by TORCH_CUBLAS_WORKSPACE_CACHE=1: so
    2.15.0 on a null A100, H100 and T4. Not modeled: CUBLASLT_WORKSPACE_SIZE, TORCH_CUBLASLT_UNIFIED_WORKSPACE.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`, `getCUDABlasLtWorkspaceSize`,
    `getCUDABlasLtWorkspace`; to 2.8 aten/src/ATen/cuda/CUDABlas.cpp, `gemm_and_bias`; ATen/cuda/CUDAContextLight.h of
    2.15, `CUDABlasHandleWithWorkspace`.
    """
    pairs = re.findall(r":(\d+):(\d+)", config)
    handle = sum(int(size) * int(count) for size, count in pairs) * KiB if pairs else default_bytes
    major, minor = (int(part) for part in re.findall(r"\d+", torch_version)[:2])
    per_call = (major, minor) >= _PER_CALL_SINCE and not cached
    shared = (major, minor) >= _SHARED_SINCE and not per_call
    return BlasWorkspaces(
        handle_bytes=handle,
        lt_bytes=0 if shared else _LT_BYTES,
        per_call=per_call,
        holds_lt=_LT_HELD_SINCE <= (major, minor) < _SHARED_SINCE,
    )


def lower(
    trace: MemoryTrace,
    *,
    blas: BlasWorkspaces,
    conv: ConvWorkspace,
    reduction: Buffers,
    attention: Buffers,
    trial: TrialBytes | None = None,
    free_bytes: int = 0,
    optional_storages: set[int] | None = None,
) -> Iterator[MemoryEvent]:
    """The events of `trace` with every `op` replaced by the allocations it makes.

    `optional_storages` collects the storages that a library does without where memory runs out. Where the workspace
    of a plan cannot be allocated, torch tries cuDNN's next plans (aten/src/ATen/native/cudnn/Conv_v8.cpp, `try_plans`),
    and one of those needs none: so in all of 1,800 lists of plans (cuDNN 9.10.2 for 8.0, and 9.20 for 8.6).

    `trial`: for the first call of each convolution with `cudnn.benchmark` (its cache belongs to a thread); afterwards
    torch empties the allocator's cache (`run_single_conv`). `free_bytes`: of the GPU, when the script begins.
    """
    number = max((event.storage_id for event in trace.events), default=-1)
    known: dict[int, tuple[int, ...]] = {}
    handles = _BlasHandles(blas)
    live = _LiveBytes()
    for event in trace.events:
        if event.action != "op":
            if trial is not None:
                live.count(event)
            yield event
            continue
        op = trace.ops[event.op_id]
        if event.op_id not in known:
            tried = None if trial is None else trial(op, free_bytes - live.total)
            if tried is not None:
                if tried:
                    number += 1
                    if optional_storages is not None:
                        optional_storages.add(number)
                    yield _alloc(event, number, tried)
                    yield _free(event, number)
                yield event._replace(action="empty_cache", op_id=-1)
            sizes = _taken_for(op, blas, conv, {"reduction": reduction, "flash_attention": attention})
            known[event.op_id] = tuple(size for size in sizes if size)
        first = number + 1
        for nbytes in known[event.op_id]:
            number += 1
            yield _alloc(event, number, nbytes)
        last = number
        if optional_storages is not None and op.kind.startswith("conv"):
            optional_storages.update(range(first, last + 1))
        for nbytes in handles.new_workspaces(op, event):
            number += 1
            yield _alloc(event, number, nbytes)
        # Buffers are local variables in C++: destroyed in the reverse order of their construction.
        for storage_id in range(last, first - 1, -1):
            yield _free(event, storage_id)


class _BlasHandles:
    """The workspaces that the handles of cuBLAS hold: one for each thread, stream and device.

    cuBLASLt uses the handle of cuBLAS, which allocates the workspace of that handle too. Captures of CUDA graphs, in
    pools with negative numbers, run on one stream of their own, whose workspace lies in the pool of the first; or on a
    stream that the script chose, which may have one.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `getCurrentCUDABlasLtHandle`; torch/cuda/graphs.py,
    `default_capture_stream`.
    """

    def __init__(self, blas: BlasWorkspaces) -> None:
        self._blas = blas
        self._own: set[tuple[str, int, int]] = set()
        self._lt: set[tuple[str, int, int]] = set()

    def new_workspaces(self, op: LibraryCall, event: MemoryEvent) -> Iterator[int]:
        """Bytes of the workspaces that are held from the call `op` on; what it takes for itself comes before them."""
        if self._blas.per_call or not op.kind.startswith("gemm"):
            return
        stream = op.params.get("capture_stream", max(event.stream, _CAPTURE_STREAM))
        handle = (op.thread, cast("int", stream), event.device)
        if handle not in self._own and self._blas.handle_bytes:
            self._own.add(handle)
            yield self._blas.handle_bytes
        if op.kind == "gemm_lt" and self._blas.holds_lt and handle not in self._lt:
            self._lt.add(handle)
            yield self._blas.lt_bytes


def _taken_for(
    op: LibraryCall, blas: BlasWorkspaces, conv: ConvWorkspace, buffers: Mapping[str, Buffers]
) -> tuple[int, ...]:
    """Bytes that a call allocates and frees when it returns."""
    if op.kind == "gemm_lt":
        return () if blas.holds_lt else (blas.lt_bytes,)
    if op.kind == "gemm":
        return (blas.handle_bytes,) if blas.per_call else ()
    if op.kind.startswith("conv"):
        return (conv(op),)
    return buffers[op.kind](op) if op.kind in buffers else ()


def _alloc(event: MemoryEvent, number: int, nbytes: int) -> MemoryEvent:
    return event._replace(action="alloc", storage_id=number, bytes=nbytes, category="workspace", op_id=-1)


def _free(event: MemoryEvent, number: int) -> MemoryEvent:
    return event._replace(action="free", storage_id=number, bytes=0, category="", module="", op_id=-1)


class _LiveBytes:
    """Bytes of the storages that are alive, without rounding."""

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[int, int] = {}

    def count(self, event: MemoryEvent) -> None:
        if event.action == "alloc":
            self._sizes[event.storage_id] = event.bytes
            self.total += event.bytes
        elif event.action == "free":
            self.total -= self._sizes.pop(event.storage_id, 0)
