"""The allocator's error.

A module of its own: callers catch it without the allocator.
"""

from __future__ import annotations

from cotenant.core.errors import CotenantError
from cotenant.core.units import format_bytes


class OutOfMemory(CotenantError):
    """No memory for a request, even after the cache was released. `replay` turns it into a report.

    Attributes:
        tried_bytes: the segment requested from the driver, as in torch's message.
        free_bytes: left in the driver; None without a capacity.
        total_bytes: memory of the GPU; None where neither it nor a capacity is known.
        allowed_bytes: limit set by a memory fraction; None without one.
        allocated_bytes, reserved_bytes: at the moment of the failure.
    """

    def __init__(
        self,
        *,
        tried_bytes: int,
        free_bytes: int | None,
        total_bytes: int | None,
        allowed_bytes: int | None,
        allocated_bytes: int,
        reserved_bytes: int,
    ) -> None:
        super().__init__(
            f"out of memory: tried to allocate {format_bytes(tried_bytes)}, {format_bytes(free_bytes)} free, "
            f"{format_bytes(allocated_bytes)} allocated, {format_bytes(reserved_bytes)} reserved"
        )
        self.tried_bytes = tried_bytes
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        self.allowed_bytes = allowed_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
