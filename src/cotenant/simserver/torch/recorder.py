"""Takes memory where the tracer writes it down: every storage of the script is a block on a simulated card."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cotenant.core.trace import LibraryCall, TraceHeader
from cotenant.estimators.lowering import BlasWorkspaces, ConvWorkspace
from cotenant.simserver.torch.process_gpus import GpuOutOfMemory, ProcessGpus
from cotenant.tracing.recorder import TraceRecorder, sparse_parts


class AllocatingRecorder(TraceRecorder):
    """A recorder that keeps no events: it may run for days.

    A storage that does not fit raises torch's `OutOfMemoryError` in the operator that wanted it.
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
        self._ended_meanwhile: list[int] = []
        self._away = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens meanwhile is not the script's: it takes nothing."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def reset(self, header: TraceHeader) -> None:
        """Nothing was kept, so there is nothing to forget."""
        self.header = header

    # -- storages ---------------------------------------------------------------------------------------------

    def record_storage(self, tensor: torch.Tensor) -> None:
        """Take a block for the storage of a fake CUDA tensor, if it is new; of a sparse one, for its parts."""
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
        self._refs[key] = weakref.ref(storage, functools.partial(self._storage_freed, key))

    def record_resize(self, storage: torch.UntypedStorage) -> None:
        """The old block of a known storage goes, a new one comes."""
        key = storage._cdata
        if key not in self._blocks:
            return
        device, _ = self._blocks[key]
        self._record_free(key)
        self._blocks[key] = (device, self._take(device, storage.nbytes()))
        self._refs[key] = weakref.ref(storage, functools.partial(self._storage_freed, key))

    def classify(self, tensor: object, category: str, *, again: bool = True) -> None:
        """A card does not know what its memory is for."""

    def _record_free(self, key: int) -> None:
        """Called whenever Python frees a storage, even in the middle of taking a block for another."""
        self._ended_meanwhile.append(key)
        if not self._busy:
            self._give_back()

    def _give_back(self) -> None:
        while self._ended_meanwhile:
            key = self._ended_meanwhile.pop()
            self._refs.pop(key, None)
            device, address = self._blocks.pop(key, (0, 0))
            if address:
                self.gpus[device].allocator.free(address)
                self._count(device)

    def _take(self, device: int, size_bytes: int) -> int:
        full = ""
        self._busy = True
        try:
            address = self.gpus[device].malloc(size_bytes, self.streams.get(device, 0))
        except GpuOutOfMemory as error:
            full = str(error)
        finally:
            self._busy = False
            self._give_back()
        if full:
            # Raised here, without a context: its frames would keep tensors alive that the script lets go.
            raise torch.cuda.OutOfMemoryError(full)
        self._count(device)
        return address

    def _count(self, device: int) -> None:
        live = self.gpus[device].allocator.allocated_bytes
        self.live_bytes[device] = live
        self.peak_bytes[device] = max(self.peak_bytes[device], live)

    # -- everything else --------------------------------------------------------------------------------------

    def record_call(self, kind: str, thread: str, params: Mapping[str, object], device: int) -> None:
        """Take the workspace of a library call: for good for a handle, for a moment for a call."""
        if self._away:
            return
        if kind.startswith("gemm"):
            handle = (thread, self.streams.get(device, 0), device)
            if handle not in self._handles and self._blas.handle_bytes:
                self._handles.add(handle)
                self._take(device, self._blas.handle_bytes)
            size_bytes = self._blas.lt_bytes if kind == "gemm_lt" else 0
        elif kind.startswith("conv"):
            size_bytes = self._conv((kind, tuple(params.items())))
        else:
            return
        if size_bytes:
            address = self._take(device, size_bytes)
            self.gpus[device].allocator.free(address)
            self._count(device)

    def enter_phase(self, phase: str) -> str:
        """An optimizer step begins or ends: the job is at work, and keeps its pace."""
        before, self.phase = self.phase, phase
        if before == "step" and phase != "step":
            self._pace.stepped(self.gpus)
        return before

    def empty_cache(self) -> None:
        """Give back what is cached."""
        for each in self.gpus.used:
            each.allocator.empty_cache()
