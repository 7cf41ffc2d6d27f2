"""Statistics of an allocator, and a snapshot of its segments and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cotenant.allocator.blocks import UNMAPPED, Block

BlockState = Literal["live", "free", "pending"]
_STATES: tuple[BlockState, ...] = ("live", "free", "pending")
"""Names of `LIVE`, `FREE` and `PENDING`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStats:
    """Statistics as in `torch.cuda.memory_stats`, of all pools and streams together, now and at the peak.

    Attributes:
        allocated_bytes: of allocated blocks; a block may be larger than its request.
        requested_bytes: of the requests whose blocks count in `active_bytes`.
        active_bytes: allocated, or freed but still in use by another stream.
        reserved_bytes: of segments.
        segments: number of `cudaMalloc`ed segments; expandable ones do not count.
        retries: requests for which the whole cache was released.
        ooms: requests that failed after that.
    """

    allocated_bytes: int
    peak_allocated_bytes: int
    requested_bytes: int
    peak_requested_bytes: int
    active_bytes: int
    peak_active_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    segments: int
    retries: int
    ooms: int


class BlockInfo(NamedTuple):
    """A block in a snapshot; `requested_bytes` is 0 unless it is live or pending."""

    address: int
    size_bytes: int
    requested_bytes: int
    state: BlockState


class SegmentInfo(NamedTuple):
    """A contiguous range of memory in a snapshot, as `torch.cuda.memory_snapshot` reports it."""

    address: int
    size_bytes: int
    stream: int
    pool: Literal["small", "large"]
    is_expandable: bool
    blocks: tuple[BlockInfo, ...]


def describe_segment(head: Block, *, is_expandable: bool) -> SegmentInfo:
    """The segment, or mapped range of an expandable one, that begins with `head`."""
    blocks = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        blocks.append(BlockInfo(block.address, block.size, block.requested, _STATES[block.state]))
        block = block.next
    return SegmentInfo(
        address=head.address,
        size_bytes=sum(info.size_bytes for info in blocks),
        stream=head.pool.stream,
        pool="small" if head.pool.small else "large",
        is_expandable=is_expandable,
        blocks=tuple(blocks),
    )
