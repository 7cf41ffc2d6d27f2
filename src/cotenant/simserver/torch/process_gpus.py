"""The GPUs of one process: a caching allocator each, whose segments come from a GPU of the simulated server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cotenant.allocator import AllocatorOptions, AllocatorRules
from cotenant.allocator.caching import CachingAllocator
from cotenant.allocator.driver import MemoryDriver
from cotenant.allocator.errors import OutOfMemory
from cotenant.simserver.gpu import SimulatedOutOfMemory
from cotenant.simserver.oom_message import out_of_memory_message
from cotenant.simserver.server import Attachment, SimulatedServer


class GpuOutOfMemory(Exception):
    """Out of memory, with torch's own message."""


class SimServerDriver(MemoryDriver):
    """The driver below the allocator. Other processes allocate from the same GPU at any time."""

    __slots__ = ("_attachment", "refusal")

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(None)
        self._attachment = attachment
        self.refusal: SimulatedOutOfMemory | None = None

    def take(self, size_bytes: int) -> bool:
        """Reserve memory of the GPU; False if it has less free."""
        try:
            self._attachment.allocate(size_bytes)
        except SimulatedOutOfMemory as refusal:
            # Without its traceback, whose frames keep tensors of the script alive: it may catch the error and go on.
            self.refusal = refusal.with_traceback(None)
            return False
        return super().take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Free memory reserved before."""
        super().give_back(size_bytes)
        self._attachment.free(size_bytes)


class ProcessGpu:
    """One GPU of the process, from the creation of its context on."""

    def __init__(
        self, device: int, attachment: Attachment, options: AllocatorOptions, rules: AllocatorRules, total_bytes: int
    ) -> None:
        self.device = device
        self.attachment = attachment
        self.driver = SimServerDriver(attachment)
        self.allocator = CachingAllocator(options, rules, total_bytes=total_bytes, driver=self.driver)

    def malloc(self, size_bytes: int, stream: int) -> int:
        """Address of a new block.

        Raises:
            GpuOutOfMemory: neither the allocator nor the GPU has enough memory.
        """
        try:
            return self.allocator.malloc(size_bytes, stream)
        except OutOfMemory as error:
            refusal = self.driver.refusal
            # torch's message names the fraction there, and no driver was involved (`malloc` of
            # c10/cuda/CUDACachingAllocator.cpp).
            if refusal is None:  # the script set a memory fraction
                raise GpuOutOfMemory(f"CUDA out of memory. {error.message}") from error
            message = out_of_memory_message(refusal, device=self.device, allocated_bytes=self.allocator.allocated_bytes)
            raise GpuOutOfMemory(message) from error

    @property
    def free_bytes(self) -> int:
        """Free memory of the GPU, for any process."""
        return self.attachment.server.gpu(self.attachment.index).free_bytes


class ProcessGpus:
    """All GPUs of the process; the context of a GPU is created when it is first used."""

    def __init__(
        self,
        server: SimulatedServer,
        uuids: Sequence[str],
        make: Callable[[int, Attachment], ProcessGpu],
        *,
        context_bytes: int,
        label: str,
    ) -> None:
        self._server = server
        self._uuids = uuids
        self._make = make
        self._context_bytes = context_bytes
        self._label = label
        self._gpus: dict[int, ProcessGpu] = {}
        self._activity: dict[str, float] | None = None

    def __getitem__(self, device: int) -> ProcessGpu:
        """The `device`-th GPU.

        Raises:
            GpuOutOfMemory: its context does not fit.
        """
        found = self._gpus.get(device)
        if found is None:
            try:
                attachment = self._server.attach(
                    self._uuids[device], context_bytes=self._context_bytes, label=self._label
                )
            except SimulatedOutOfMemory:
                # A context that does not fit is the driver's error, without the numbers of the allocator.
                raise GpuOutOfMemory("CUDA error: out of memory") from None
            found = self._gpus[device] = self._make(device, attachment)
            if self._activity is not None:
                attachment.set_activity(**self._activity)
        return found

    @property
    def used(self) -> Sequence[ProcessGpu]:
        """GPUs with a context."""
        return tuple(self._gpus.values())

    def work(self, **activity: float) -> None:
        """Set the activity on every GPU, also on those used later; see `Attachment.set_activity`."""
        if activity != self._activity:
            self._activity = activity
            for gpu in self._gpus.values():
                gpu.attachment.set_activity(**activity)

    def rest(self, virtual_s: float) -> None:
        """Sleep for this much time of the server."""
        if virtual_s > 0:
            time.sleep(virtual_s / self._server.time_scale)

    def now_s(self) -> float:
        """The server's time."""
        return self._server.now_s()

    def partners_smact(self) -> tuple[float, ...]:
        """Solo SM activities of the other processes on the busiest of the GPUs in use."""
        found = [tuple(partner.smact for partner in gpu.attachment.partners()) for gpu in self._gpus.values()]
        return max(found, key=sum, default=())
