"""The GPUs that one process sees: an allocator for each, whose segments are taken from a card of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cotenant.allocator import AllocatorOptions, AllocatorRules
from cotenant.allocator.caching import CachingAllocator
from cotenant.allocator.driver import MemoryDriver
from cotenant.allocator.errors import OutOfMemory
from cotenant.simserver.card import SimulatedOutOfMemory
from cotenant.simserver.oom_message import out_of_memory_message
from cotenant.simserver.server import Attachment, SimulatedServer


class GpuOutOfMemory(Exception):
    """What torch would raise; the message is torch's own."""


class SimServerDriver(MemoryDriver):
    """The driver below the allocator. Another process may have taken what was free a moment ago."""

    __slots__ = ("_card", "refusal")

    def __init__(self, card: Attachment) -> None:
        super().__init__(None)
        self._card = card
        self.refusal: SimulatedOutOfMemory | None = None

    def take(self, size_bytes: int) -> bool:
        """Reserve memory of the card; False, and nothing reserved, where it has less."""
        try:
            self._card.allocate(size_bytes)
        except SimulatedOutOfMemory as refusal:
            # Without its frames, which would keep alive what the script holds: the script may go on with less.
            self.refusal = refusal.with_traceback(None)
            return False
        return super().take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Return memory taken before."""
        super().give_back(size_bytes)
        self._card.free(size_bytes)


class ProcessGpu:
    """One GPU as a process uses it, from its context on."""

    def __init__(
        self, device: int, card: Attachment, options: AllocatorOptions, rules: AllocatorRules, total_bytes: int
    ) -> None:
        self.device = device
        self.card = card
        self.driver = SimServerDriver(card)
        self.allocator = CachingAllocator(options, rules, total_bytes=total_bytes, driver=self.driver)

    def malloc(self, size_bytes: int, stream: int) -> int:
        """Address of a new block.

        Raises:
            GpuOutOfMemory: neither the allocator nor the card has so much.
        """
        try:
            return self.allocator.malloc(size_bytes, stream)
        except OutOfMemory as error:
            refusal = self.driver.refusal
            if refusal is None:  # a memory fraction that the script has set
                raise GpuOutOfMemory(f"CUDA out of memory. {error.message}") from error
            message = out_of_memory_message(refusal, device=self.device, allocated_bytes=self.allocator.allocated_bytes)
            raise GpuOutOfMemory(message) from error

    @property
    def free_bytes(self) -> int:
        """What the card has left for anybody."""
        return self.card.server.card(self.card.index).free_bytes


class ProcessGpus:
    """All GPUs of the process; a context is made on each when it is first used."""

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
            GpuOutOfMemory: its context does not fit on the card.
        """
        found = self._gpus.get(device)
        if found is None:
            try:
                card = self._server.attach(self._uuids[device], context_bytes=self._context_bytes, label=self._label)
            except SimulatedOutOfMemory:
                raise GpuOutOfMemory("CUDA error: out of memory") from None
            found = self._gpus[device] = self._make(device, card)
            if self._activity is not None:
                card.set_activity(**self._activity)
        return found

    @property
    def used(self) -> Sequence[ProcessGpu]:
        """Those with a context."""
        return tuple(self._gpus.values())

    def work(self, **activity: float) -> None:
        """Show this activity on every GPU, also on those used later; see `Attachment.set_activity`."""
        if activity != self._activity:
            self._activity = activity
            for each in self._gpus.values():
                each.card.set_activity(**activity)

    def rest(self, virtual_s: float) -> None:
        """Let so much of the server's time pass."""
        if virtual_s > 0:
            time.sleep(virtual_s / self._server.time_scale)

    def now_s(self) -> float:
        """The server's time."""
        return self._server.now_s()

    def partners_smact(self) -> tuple[float, ...]:
        """SM activity, alone, of the other processes on the GPUs in use; of the busiest of them."""
        found = [tuple(partner.smact for partner in gpu.card.partners()) for gpu in self._gpus.values()]
        return max(found, key=sum, default=())
