"""Allocates where the tracer records: every storage of the script is a block on a simulated GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cotenant.core.trace import LibraryCall, TraceHeader
from cotenant.estimators.lowering import BlasWorkspaces, ConvWorkspace
from cotenant.simserver.torch.process_gpus import GpuOutOfMemory, ProcessGpus
from cotenant.tracing.recorder import TraceRecorder, sparse_parts


class AllocatingRecorder(TraceRecorder):
    """A recorder that stores no events, since it may run for days.

    A storage that does not fit raises torch's `OutOfMemoryError` in the operator that allocates it.
    """

    def __init__(self, gpus: ProcessGpus, *, blas: BlasWorkspaces, conv: ConvWorkspace, pace: Any) -> None:
        super().__init__()
        self.gpus = gpus
        self._blas = blas
        self._conv = functools.lru_cache(maxsize=4096)(
            lambda key: conv(LibraryCall(kind=key[0], thread="", params=dict(key[1])))
        )
        self._pace = pace
        self._blocks: dict[int, tuple[int, int]] = {}
        self._handles: set[tuple[str, int, int]] = set()
        self._busy = False
        self._freed_meanwhile: list[int] = []
        self._away = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Allocate nothing meanwhile: the operators are not the script's."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def reset(self, header: TraceHeader) -> None:
        """Set the header; there are no events to drop."""
        self.header = header

    # -- storages ---------------------------------------------------------------------------------------------

    def record_storage(self, tensor: torch.Tensor) -> None:
        """Allocate a block for the storage of a fake CUDA tensor if it is new; for a sparse one, for its parts."""
        if self._away:
            return
        if tensor.layout is not torch.strided:
            for part in sparse_parts(tensor):
                self.record_storage(part)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._blocks:
            return
        device = tensor.device.index or 0
        self.cuda_used = True
        self._blocks[key] = (device, self._take(device, storage.nbytes()))
        self._watch(storage)

    def record_resize(self, storage: torch.UntypedStorage) -> None:
        """Replace the block of a known storage."""
        key = storage._cdata
        if key not in self._blocks:
            return
        device, _ = self._blocks[key]
        self._record_free(key)
        self._blocks[key] = (device, self._take(device, storage.nbytes()))
        self._watch(storage)

    def classify(self, tensor: object, category: str, *, again: bool = True) -> None:
        """Ignored: a GPU does not know what its memory is for."""

    def _record_free(self, key: int) -> None:
        """Called whenever Python frees a storage, even while a block is allocated for another."""
        self._freed_meanwhile.append(key)
        if not self._busy:
            self._free_blocks()

    def _free_blocks(self) -> None:
        while self._freed_meanwhile:
            key = self._freed_meanwhile.pop()
            self._refs.pop(key, None)
            device, address = self._blocks.pop(key, (0, 0))
            if address:
                self.gpus[device].allocator.free(address)
                self._count(device)

    def _take(self, device: int, size_bytes: int) -> int:
        full = ""
        # A weak reference may die within `malloc`, whenever Python collects: freeing then would change pools in
        # mid-search.
        self._busy = True
        try:
            address = self.gpus[device].malloc(size_bytes, self.streams.get(device, 0))
        except GpuOutOfMemory as error:
            full = str(error)
        finally:
            self._busy = False
            self._free_blocks()
        if full:
            # Raised outside of the except block: frames of a context would keep released tensors alive.
            raise torch.cuda.OutOfMemoryError(full)
        self._count(device)
        return address

    def _count(self, device: int) -> None:
        live = self.gpus[device].allocator.allocated_bytes
        self.live_bytes[device] = live
        self.peak_bytes[device] = max(self.peak_bytes[device], live)

    # -- everything else --------------------------------------------------------------------------------------

    def record_call(self, kind: str, thread: str, params: Mapping[str, object], device: int) -> None:
        """Allocate the workspace of a library call: permanently for a cuBLAS handle, temporarily for a call."""
        if self._away:
            return
        if kind.startswith("gemm"):
            handle = (thread, self.streams.get(device, 0), device)
            if handle not in self._handles and self._blas.handle_bytes and not self._blas.per_call:
                self._handles.add(handle)
                self._take(device, self._blas.handle_bytes)
            of_call = self._blas.handle_bytes if self._blas.per_call else 0
            size_bytes = self._blas.lt_bytes if kind == "gemm_lt" else of_call
        elif kind.startswith("conv"):
            size_bytes = self._conv((kind, tuple(params.items())))
        else:
            return
        if size_bytes:
            address = self._take(device, size_bytes)
            self.gpus[device].allocator.free(address)
            self._count(device)

    def enter_phase(self, phase: str) -> str:
        """Enter a phase; the end of an optimizer step is throttled."""
        before, self.phase = self.phase, phase
        if before == "step" and phase != "step":
            self._pace.stepped(self.gpus)
        return before

    def empty_cache(self) -> None:
        """Free cached segments."""
        for gpu in self.gpus.used:
            gpu.allocator.empty_cache()
