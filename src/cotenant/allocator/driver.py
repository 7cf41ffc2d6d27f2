"""The driver below the allocator: it has so much memory, and addresses that never run out."""

from __future__ import annotations

from cotenant.core.units import MiB

_ADDRESS_SPACE_END = 1 << 47
"""First address that is never given: the end of the space of a Linux process."""


class MemoryDriver:
    """Gives memory up to a capacity.

    Addresses only grow or, `descending`, only shrink: which one a real driver takes is not told anywhere. Shrinking
    agrees with more of the published runs in which it matters (decision 0008), so replays ask for that.

    Attributes:
        capacity_bytes: what one process can get; None: as much as it asks for.
        reserved_bytes: given out now; `peak_reserved_bytes`: most at once so far.
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
        """Reserve memory; False, and nothing reserved, where the capacity does not allow it."""
        reserved = self.reserved_bytes + size_bytes
        if self.capacity_bytes is not None and reserved > self.capacity_bytes:
            return False
        self.reserved_bytes = reserved
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return memory taken before."""
        self.reserved_bytes -= size_bytes

    def address_space(self, size_bytes: int, page_bytes: int = 1) -> int:
        """Start of a range of addresses that nobody has, aligned to `page_bytes`."""
        if self._descending:
            address = (self._next_address - size_bytes) // page_bytes * page_bytes
            self._next_address = address
        else:
            address = -(-self._next_address // page_bytes) * page_bytes
            self._next_address = address + size_bytes
        return address
