"""The driver below the allocator: a memory capacity, and addresses that never run out.

A module of its own: the simulated server puts a driver of its own below the same allocator.
"""

from __future__ import annotations

from cotenant.core.units import MiB

_ADDRESS_SPACE_END = 1 << 47
"""End of the address space of a Linux process on x86-64."""


class MemoryDriver:
    """Reserves memory up to a capacity.

    New addresses increase or, with `descending`, decrease. No documentation says what the real driver does. Decreasing
    addresses agree with more of the published runs in which it matters, so replays use them up to torch 2.12. From 2.13
    the age of a segment comes before its address (`AllocatorRules.orders_by_age`), as with increasing addresses.

    Attributes:
        capacity_bytes: maximum of one process; None: unlimited.
        reserved_bytes: reserved now; `peak_reserved_bytes`: maximum so far.
        segments: number of `cudaMalloc`ed segments; expandable ones are not counted, as in torch's statistics.
    """

    __slots__ = ("_descending", "_next_address", "capacity_bytes", "peak_reserved_bytes", "reserved_bytes", "segments")

    def __init__(self, capacity_bytes: int | None, *, descending: bool = False) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.segments = 0
        self._descending = descending
        self._next_address = _ADDRESS_SPACE_END if descending else 2 * MiB

    def take(self, size_bytes: int) -> bool:
        """Reserve memory; False, with nothing reserved, if that exceeds the capacity."""
        reserved = self.reserved_bytes + size_bytes
        if self.capacity_bytes is not None and reserved > self.capacity_bytes:
            return False
        self.reserved_bytes = reserved
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        return True

    def give_back(self, size_bytes: int) -> None:
        """Release reserved memory."""
        self.reserved_bytes -= size_bytes

    def address_space(self, size_bytes: int, page_bytes: int = 1) -> int:
        """Start of an unused address range, aligned to `page_bytes`."""
        if self._descending:
            address = (self._next_address - size_bytes) // page_bytes * page_bytes
            self._next_address = address
        else:
            address = -(-self._next_address // page_bytes) * page_bytes
            self._next_address = address + size_bytes
        return address
